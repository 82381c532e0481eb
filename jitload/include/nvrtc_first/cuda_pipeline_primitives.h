// This header reads its helpers from beside itself; those of this directory must come before (found by angle brackets,
// or else #include_next begins at this directory again).
#ifndef JITLOAD_NVRTC_FIRST_CUDA_PIPELINE_PRIMITIVES_H
#define JITLOAD_NVRTC_FIRST_CUDA_PIPELINE_PRIMITIVES_H
#include <cuda_pipeline_helpers.h>
#if __CUDA_ARCH__ >= 700
#include <cuda_awbarrier_helpers.h>
#endif
#include_next <cuda_pipeline_primitives.h>
#endif
