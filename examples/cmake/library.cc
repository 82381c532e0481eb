// A library around an embedded cubin: checks, the current stream, the launch.
#include <jitload/kernel_library.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>

TVM_FFI_EMBED_CUBIN(kernels);

void Add(tvm::ffi::TensorView x, tvm::ffi::TensorView y, double number) {
  CHECK_INPUT(x);
  CHECK_INPUT(y);
  TVM_FFI_CHECK(x.numel() == y.numel(), ValueError) << "x has " << x.numel() << " elements, y " << y.numel();
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(kernels, "add");

  void *from = x.data_ptr(), *to = y.data_ptr();
  float value = number;
  int64_t n = x.numel();
  void* args[] = {&from, &to, &value, &n};
  tvm::ffi::dim3 grid((n + 255) / 256), block(256);
  DLDevice device = x.device();
  auto stream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  CUresult result = kernel.Launch(args, grid, block, stream);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add, Add);
