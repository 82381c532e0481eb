// The guide's wrapper in the driver's spelling, with two cubins.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>

TVM_FFI_EMBED_CUBIN(first);
TVM_FFI_EMBED_CUBIN(second);

void AddOne(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "add_one");
  int64_t n = x.size(0);
  void* x_ptr = x.data_ptr();
  void* y_ptr = y.data_ptr();
  void* args[] = {&x_ptr, &y_ptr, &n};
  tvm::ffi::dim3 grid((n + 255) / 256);
  tvm::ffi::dim3 block(256);
  DLDevice device = x.device();
  CUstream stream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  CUresult result = kernel.Launch(args, grid, block, stream);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, AddOne);

void Empty(int64_t stream, int64_t shared_bytes) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(second, "empty");
  tvm::ffi::dim3 grid(1, 2, 3), block(32, 2);
  CUresult result = kernel.Launch(nullptr, grid, block, reinterpret_cast<CUstream>(stream), shared_bytes);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(empty, Empty);

void Missing() { TVM_FFI_EMBED_CUBIN_GET_KERNEL(second, "full"); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(missing, Missing);
