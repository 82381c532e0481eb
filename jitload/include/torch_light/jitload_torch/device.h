/* Device functions for kernels: atomic additions for all types of numbers. */
#ifndef JITLOAD_TORCH_DEVICE_H_
#define JITLOAD_TORCH_DEVICE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda.h"

#if defined(__CUDACC__)
inline __device__ int32_t gpuAtomicAdd(int32_t* address, int32_t value) { return atomicAdd(address, value); }
inline __device__ float gpuAtomicAdd(float* address, float value) { return atomicAdd(address, value); }
inline __device__ double gpuAtomicAdd(double* address, double value) { return atomicAdd(address, value); }
inline __device__ void gpuAtomicAdd(int64_t* address, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
/* Adds to a number of one or two bytes, by exchanging the 32-bit word that contains the number. */
template <class T>
inline __device__ T jitload_torch_atomic_add(T* address, T value) {
  const size_t offset = reinterpret_cast<size_t>(address) & 3;
  unsigned* const word = reinterpret_cast<unsigned*>(reinterpret_cast<char*>(address) - offset);
  const unsigned shift = static_cast<unsigned>(8 * offset), mask = (sizeof(T) == 1 ? 0xffu : 0xffffu) << shift;
  unsigned before = *word, expected;
  do {
    expected = before;
    const T sum = static_cast<T>(static_cast<T>((expected & mask) >> shift) + value);
    const unsigned bits = static_cast<unsigned>(sum) << shift & mask;
    before = atomicCAS(word, expected, (expected & ~mask) | bits);
  } while (before != expected);
  return static_cast<T>((before & mask) >> shift);
}
inline __device__ uint8_t gpuAtomicAdd(uint8_t* address, uint8_t value) { return jitload_torch_atomic_add(address, value); }
inline __device__ int8_t gpuAtomicAdd(int8_t* address, int8_t value) { return jitload_torch_atomic_add(address, value); }
inline __device__ int16_t gpuAtomicAdd(int16_t* address, int16_t value) { return jitload_torch_atomic_add(address, value); }
inline __device__ at::Half gpuAtomicAdd(at::Half* address, at::Half value) {
  const __half before = atomicAdd(reinterpret_cast<__half*>(address), *reinterpret_cast<__half*>(&value));
  return *reinterpret_cast<const at::Half*>(&before);
}
inline __device__ at::BFloat16 gpuAtomicAdd(at::BFloat16* address, at::BFloat16 value) {
  const __nv_bfloat16 before =
      atomicAdd(reinterpret_cast<__nv_bfloat16*>(address), *reinterpret_cast<__nv_bfloat16*>(&value));
  return *reinterpret_cast<const at::BFloat16*>(&before);
}
template <class T>
inline __device__ void gpuAtomicAddNoReturn(T* address, T value) {
  gpuAtomicAdd(address, value);
}
inline __device__ at::Half atomicAdd(at::Half* address, at::Half value) { return gpuAtomicAdd(address, value); }
inline __device__ at::BFloat16 atomicAdd(at::BFloat16* address, at::BFloat16 value) { return gpuAtomicAdd(address, value); }
inline __device__ void atomicAdd(int64_t* address, int64_t value) { gpuAtomicAdd(address, value); }
#endif

#endif  // JITLOAD_TORCH_DEVICE_H_
