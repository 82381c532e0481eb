/* Device functions for kernels: atomic additions for all types of numbers, and warp shuffles. */
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

namespace c10 {
namespace cuda {
namespace compat {
#define X(name)                                                         \
  inline __device__ float name(float x) { return ::name##f(x); }        \
  inline __device__ double name(double x) { return ::name(x); }
X(ceil) X(floor) X(exp) X(log) X(log1p) X(sqrt) X(rsqrt) X(tan) X(tanh) X(sin) X(cos) X(erf) X(erfc) X(expm1) X(lgamma) X(round)
X(normcdf)
#undef X
#define X(name)                                                                    \
  inline __device__ float name(float x, float y) { return ::name##f(x, y); }       \
  inline __device__ double name(double x, double y) { return ::name(x, y); }
X(copysign) X(pow) X(fmod)
#undef X
inline __device__ float abs(float x) { return ::fabsf(x); }
inline __device__ double abs(double x) { return ::fabs(x); }
inline __device__ float max(float x, float y) { return ::fmaxf(x, y); }
inline __device__ double max(double x, double y) { return ::fmax(x, y); }
inline __device__ float min(float x, float y) { return ::fminf(x, y); }
inline __device__ double min(double x, double y) { return ::fmin(x, y); }
}  // namespace compat
}  // namespace cuda
}  // namespace c10

inline __device__ void WARP_SYNC(unsigned mask = 0xffffffff) { __syncwarp(mask); }
inline __device__ unsigned WARP_BALLOT(int predicate, unsigned mask = 0xffffffff) { return __ballot_sync(mask, predicate); }
#define JITLOAD_TORCH_SHUFFLE_(name, shuffle, Lane)                                                        \
  template <class T>                                                                                       \
  inline __device__ T name(T value, Lane lane, int width = warpSize, unsigned mask = 0xffffffff) {         \
    return shuffle(mask, value, lane, width);                                                              \
  }
JITLOAD_TORCH_SHUFFLE_(WARP_SHFL, __shfl_sync, int)
JITLOAD_TORCH_SHUFFLE_(WARP_SHFL_XOR, __shfl_xor_sync, int)
JITLOAD_TORCH_SHUFFLE_(WARP_SHFL_UP, __shfl_up_sync, unsigned)
JITLOAD_TORCH_SHUFFLE_(WARP_SHFL_DOWN, __shfl_down_sync, unsigned)
#undef JITLOAD_TORCH_SHUFFLE_
template <>
inline __device__ at::Half WARP_SHFL_DOWN<at::Half>(at::Half value, unsigned delta, int width, unsigned mask) {
  value.x = static_cast<uint16_t>(__shfl_down_sync(mask, static_cast<unsigned>(value.x), delta, width));
  return value;
}
#endif

namespace at {
/* Limits for reductions in kernels: the bounds are infinite where the type has infinities. */
template <class T>
struct numeric_limits {
  using Limits = std::numeric_limits<T>;
  static C10_HOST_DEVICE T lowest() { return Limits::lowest(); }
  static C10_HOST_DEVICE T max() { return Limits::max(); }
  static C10_HOST_DEVICE T lower_bound() { return Limits::has_infinity ? static_cast<T>(-Limits::infinity()) : lowest(); }
  static C10_HOST_DEVICE T upper_bound() { return Limits::has_infinity ? Limits::infinity() : max(); }
};
}  // namespace at

#endif  // JITLOAD_TORCH_DEVICE_H_
