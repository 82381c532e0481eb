// Stands in where no CUDA header is installed: what device code needs of
// <cuda_runtime.h> is built into NVRTC.
