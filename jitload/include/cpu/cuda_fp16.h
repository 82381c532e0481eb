/* NVIDIA's header, and the functions that it defines for GPUs only. */
#pragma once

#if !__has_include_next(<cuda_fp16.h>)
#error "cuda_fp16.h is NVIDIA's: pip install 'jitload[cu13]' brings it ('jitload[cu12]' for CUDA 12)"
#endif
#ifdef __SANITIZE_THREAD__ /* which watches no structures that functions take or return by value */
#define unused unused, always_inline
#endif
#include_next <cuda_fp16.h>
#undef unused
#include "jitload_cpu_half.h"

__JITLOAD_NARROW(__half, __half2, __half2float, __double2half, __halves2half2)
__JITLOAD_NARROW_TO_INTEGERS(__half, __half2float, __half2)
