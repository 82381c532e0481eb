#error "<c10/cuda/CUDAGuard.h> is for host code; NVRTC compiles the kernels alone: leave the bindings out"
