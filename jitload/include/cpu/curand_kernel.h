/* NVIDIA's header, of which g++ gets the code for devices. */
#pragma once

#if !__has_include_next(<curand_kernel.h>)
#error "curand_kernel.h is NVIDIA's: pip install nvidia-curand brings it (nvidia-curand-cu12 for CUDA 12)"
#endif
#include <cuda_fp16.h>
#include <math.h>
#include <nv/target>
#include <cuda/std/type_traits>

#define __CUDACC_RTC__ 1 /* leaves out what is for the host */
#define __CUDA_ARCH__ 0
#pragma push_macro("NV_IS_DEVICE")
#undef NV_IS_DEVICE
#define NV_IS_DEVICE NV_ANY_TARGET
#include_next <curand_kernel.h>
#pragma pop_macro("NV_IS_DEVICE")
#undef __CUDACC_RTC__
#undef __CUDA_ARCH__
