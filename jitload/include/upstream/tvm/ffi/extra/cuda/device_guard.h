/* jitload's `tvm/ffi/extra/cuda/device_guard.h`, which replaces tvm-ffi's header and needs no CUDA runtime. */
#ifndef TVM_FFI_EXTRA_CUDA_DEVICE_GUARD_H_
#define TVM_FFI_EXTRA_CUDA_DEVICE_GUARD_H_

#include <tvm/ffi/extra/cuda/base.h>

namespace tvm::ffi {
inline namespace jitload_v1 {

/* Makes a device current, and restores the previous context, or the absence of one, on destruction. Any context of the
 * right device, such as a green context, stays current. The destructor never throws. */
struct CUDADeviceGuard {
  CUDADeviceGuard() = delete;
  explicit CUDADeviceGuard(int device_index) : driver_(cuda_api::GetDriver()) {
    int current = -1;
    if (driver_.context_device(&current) == JITLOAD_CUDA_SUCCESS && current == device_index) return;
    cuda_api::ThrowIfFailed(::jitload::EnterDevice(&driver_, device_index, &before_));
    is_entered_ = true;
  }
  ~CUDADeviceGuard() {
    if (is_entered_) driver_.set_context(before_);
  }
  CUDADeviceGuard(const CUDADeviceGuard&) = delete;
  CUDADeviceGuard& operator=(const CUDADeviceGuard&) = delete;

 private:
  const ::jitload::Driver& driver_;
  jitload_cu_context before_ = nullptr;
  bool is_entered_ = false;
};

}  // namespace jitload_v1
}  // namespace tvm::ffi

#endif  // TVM_FFI_EXTRA_CUDA_DEVICE_GUARD_H_
