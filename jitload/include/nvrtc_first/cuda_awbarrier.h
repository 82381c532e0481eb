// This header reads its helpers from beside itself; those of this directory must come before (found by angle brackets,
// or else #include_next begins at this directory again).
#ifndef JITLOAD_NVRTC_FIRST_CUDA_AWBARRIER_H
#define JITLOAD_NVRTC_FIRST_CUDA_AWBARRIER_H
#if __CUDA_ARCH__ >= 700
#include <cuda_awbarrier_helpers.h>
#endif
#include_next <cuda_awbarrier.h>
#endif
