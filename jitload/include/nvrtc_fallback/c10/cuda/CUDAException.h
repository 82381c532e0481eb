#error "<c10/cuda/CUDAException.h> is for host code; NVRTC compiles the kernels alone: leave the bindings out"
