// A kernel library's function: validate, guard, stream, dispatch, launch.
#include <jitload/kernel_library.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>

TVM_FFI_EMBED_CUBIN(scale);

template <class T>
static void Launch(TensorView output, TensorView input, cudaStream_t stream) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(scale, jitload::KernelName<T>("scale_").c_str());
  int64_t n = input.numel();
  T* y = element_ptr<T>(output);
  T* x = element_ptr<T>(input);
  void* args[] = {&y, &x, &n};
  TVM_FFI_CHECK_CUDA_ERROR(kernel.Launch(args, ffi::dim3((n + 255) / 256), ffi::dim3(256), stream));
}

void Scale(TensorView output, TensorView input, Optional<TensorView> bias) {
  CHECK_INPUT(input);
  CHECK_INPUT(output);
  CHECK_DIM(1, input);
  CHECK_DEVICE(input, output);
  if (bias.has_value()) CHECK_CUDA(*bias);
  ffi::CUDADeviceGuard guard(input.device().device_id);
  cudaStream_t stream = get_cuda_stream(input.device());
  DISPATCH_DTYPE(input.dtype(), T, (float, __half), { Launch<T>(output, input, stream); });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, Scale);

ffi::Tensor Allocate(TensorView like) { return alloc_tensor({2, 3}, dl_bfloat16, like.device()); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(allocate, Allocate);
