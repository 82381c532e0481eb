/* NVIDIA's header, and the functions that it defines for GPUs only. */
#ifndef JITLOAD_CPU_BF16_H_
#define JITLOAD_CPU_BF16_H_

#if !__has_include_next(<cuda_bf16.h>)
#error "cuda_bf16.h is NVIDIA's: pip install 'jitload[cu13]' brings it"
#endif
#include <cuda_fp16.h>
#include_next <cuda_bf16.h>
#include "jitload_cpu_half.h"

__JITLOAD_NARROW(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __double2bfloat16, __halves2bfloat162)
__JITLOAD_NARROW_TO_INTEGERS(__nv_bfloat16, __bfloat162float, __bfloat162)

#endif /* JITLOAD_CPU_BF16_H_ */
