/* jitload's `tvm/ffi/extra/cuda/base.h`: `dim3`, macros that check CUDA's error codes, and the result of a launch.
 *
 * It replaces tvm-ffi's header and needs neither the CUDA runtime nor linking with libcuda.
 */
#ifndef TVM_FFI_EXTRA_CUDA_BASE_H_
#define TVM_FFI_EXTRA_CUDA_BASE_H_

#include <jitload/cuda_types.h>
#include <jitload/launcher.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <ostream>

#ifdef __CUDACC__
/* The kernels in tvm-ffi's kernel library guide use `half` without including this header. */
#include <cuda_fp16.h>
#endif

namespace tvm::ffi {
inline namespace jitload_v1 {

/* Extents of a grid or a block. */
struct dim3 {
  unsigned int x;
  unsigned int y;
  unsigned int z;

  dim3() : x(1), y(1), z(1) {}
  explicit dim3(unsigned int x_) : x(x_), y(1), z(1) {}
  dim3(unsigned int x_, unsigned int y_) : x(x_), y(y_), z(1) {}
  dim3(unsigned int x_, unsigned int y_, unsigned int z_) : x(x_), y(y_), z(z_) {}
};

namespace cuda_api {

/* The result of a launch, usable both as a `CUresult` and as a `cudaError_t`, whose values agree for launches. Only
 * `switch` needs an assignment to one of these types first. */
class Result {
 public:
  constexpr explicit Result(int code) : code_(code) {}
  constexpr operator CUresult() const { return static_cast<CUresult>(code_); }
  constexpr operator cudaError_t() const { return static_cast<cudaError_t>(code_); }
  constexpr operator int() const { return code_; }
  /* True for an error. */
  constexpr explicit operator bool() const { return code_ != 0; }

#define JITLOAD_COMPARE_(Type)                                                                  \
  friend constexpr bool operator==(Result a, Type b) { return a.code_ == static_cast<int>(b); } \
  friend constexpr bool operator!=(Result a, Type b) { return a.code_ != static_cast<int>(b); } \
  friend constexpr bool operator==(Type a, Result b) { return static_cast<int>(a) == b.code_; } \
  friend constexpr bool operator!=(Type a, Result b) { return static_cast<int>(a) != b.code_; }
  JITLOAD_COMPARE_(CUresult)
  JITLOAD_COMPARE_(cudaError_t)
  JITLOAD_COMPARE_(int)
#undef JITLOAD_COMPARE_
  friend constexpr bool operator==(Result a, Result b) { return a.code_ == b.code_; }
  friend constexpr bool operator!=(Result a, Result b) { return a.code_ != b.code_; }
  friend std::ostream& operator<<(std::ostream& out, Result result) { return out << result.code_; }

 private:
  int code_;
};

/* Throw tvm-ffi's current error. */
[[noreturn]] __attribute__((cold, noinline)) inline void ThrowRaised() {
  TVM_FFI_CHECK_SAFE_CALL(-1);
  __builtin_unreachable();
}

inline void ThrowIfFailed(int failed) {
  if (__builtin_expect(failed != 0, 0)) ThrowRaised();
}

template <class Code>
inline void CheckCode(const char* context, Code code) {
  if (__builtin_expect(static_cast<int>(code) != 0, 0))
    ThrowIfFailed(::jitload::RaiseCode(context, static_cast<int>(code)));
}

/* Return the driver; throw if there is none that can be used. */
inline const ::jitload::Driver& GetDriver() {
  const ::jitload::Driver* driver = ::jitload::OpenDriver();
  if (driver == nullptr) ThrowRaised();
  return *driver;
}

}  // namespace cuda_api
}  // namespace jitload_v1
}  // namespace tvm::ffi

/* Each of these macros accepts a `CUresult`, a `cudaError_t` or the result of a launch. If it is an error, the macro
 * throws a RuntimeError with its name and text.
 */
#define TVM_FFI_CHECK_CUDA_ERROR(stmt) ::tvm::ffi::cuda_api::CheckCode("CUDA Runtime Error", stmt)
#define TVM_FFI_CHECK_CUDA_DRIVER_ERROR(stmt) ::tvm::ffi::cuda_api::CheckCode("CUDA Driver Error", stmt)
#define TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(stmt) ::tvm::ffi::cuda_api::CheckCode("CUDA Error", stmt)

#endif  // TVM_FFI_EXTRA_CUDA_BASE_H_
