// The guide's wrapper in the driver's spelling, around two cubins: the parts that need no CUDA header.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>

TVM_FFI_EMBED_CUBIN(first);
TVM_FFI_EMBED_CUBIN(second);

static CUstream StreamOf(tvm::ffi::TensorView x) {
  DLDevice device = x.device();
  return static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

static void AddOne(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "add_one");
  int64_t n = x.size(0);
  void* x_ptr = x.data_ptr();
  void* y_ptr = y.data_ptr();
  void* args[] = {&x_ptr, &y_ptr, &n};
  tvm::ffi::dim3 grid((n + 255) / 256);
  tvm::ffi::dim3 block(256);
  CUresult result = kernel.Launch(args, grid, block, StreamOf(x));
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, AddOne);

static void Empty(int64_t stream) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(second, "empty");
  CUresult result =
      kernel.Launch(nullptr, tvm::ffi::dim3(1, 2, 3), tvm::ffi::dim3(32, 2), reinterpret_cast<CUstream>(stream));
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(empty, Empty);
