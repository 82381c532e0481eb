/* NVIDIA's header, and the functions that it defines for GPUs only. */
#pragma once

#if !__has_include_next(<cuda_bf16.h>)
#error "cuda_bf16.h is NVIDIA's: pip install 'jitload[cu13]' brings it ('jitload[cu12]' for CUDA 12)"
#endif
#include <cuda_fp16.h>
#ifdef __SANITIZE_THREAD__ /* which watches no structures that functions take or return by value */
#define unused unused, always_inline
#endif
#include_next <cuda_bf16.h>
#undef unused
#include "jitload_cpu_half.h"

__JITLOAD_NARROW(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __double2bfloat16, __halves2bfloat162)
__JITLOAD_NARROW_TO_INTEGERS(__nv_bfloat16, __bfloat162float, __bfloat162)

/* Rounding to float and then to bfloat16, both in the same direction, gives the same result as rounding once. */
#define __JITLOAD_TO_BFLOAT16(from, wide, type, mode)                 \
  __JITLOAD_INLINE __nv_bfloat16 __##from##2bfloat16_##mode(type x) { \
    return __float2bfloat16_##mode(__##wide##2float_##mode(x));       \
  }
#define __JITLOAD_TO_BFLOAT16S(from, wide, type) \
  __JITLOAD_TO_BFLOAT16(from, wide, type, rz)    \
  __JITLOAD_TO_BFLOAT16(from, wide, type, ru)    \
  __JITLOAD_TO_BFLOAT16(from, wide, type, rd)
__JITLOAD_TO_BFLOAT16S(short, int, short)
__JITLOAD_TO_BFLOAT16S(ushort, uint, unsigned short)
__JITLOAD_TO_BFLOAT16S(int, int, int)
__JITLOAD_TO_BFLOAT16S(uint, uint, unsigned)
__JITLOAD_TO_BFLOAT16S(ll, ll, long long)
__JITLOAD_TO_BFLOAT16S(ull, ull, unsigned long long)
#undef __JITLOAD_TO_BFLOAT16S
#undef __JITLOAD_TO_BFLOAT16
