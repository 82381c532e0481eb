#error "<pybind11/pybind11.h> is for host code; NVRTC compiles the kernels alone: leave the bindings out"
