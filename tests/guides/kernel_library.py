"""The kernel library guide's form, afresh: kernels, checks, dispatch and `<<<…>>>` in one text, for nvcc."""

from typing import Any

import jitload

SOURCE = r"""
#include <cuda_fp16.h>
#include <tvm/ffi/extra/cuda/device_guard.h>
#include <tvm/ffi/optional.h>

namespace guide {

using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

template <typename T>
__global__ void FusedScale(T* y, const T* x, const T* bias, T factor, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] * factor + (bias != nullptr ? bias[i] : T(0.0f));
}

template <typename T>
void Run(TensorView y, TensorView x, const Optional<TensorView>& bias, double factor, cudaStream_t stream) {
  const int64_t n = x.numel();
  if (n == 0) return;
  const T* added = bias.has_value() ? static_cast<const T*>(bias.value().data_ptr()) : nullptr;
  FusedScale<T><<<(n + 255) / 256, 256, 0, stream>>>(static_cast<T*>(y.data_ptr()),
                                                     static_cast<const T*>(x.data_ptr()), added,
                                                     static_cast<T>(static_cast<float>(factor)), n);
}

Tensor Scale(TensorView x, double factor, Optional<TensorView> bias) {
  TVM_FFI_CHECK(x.device().device_type == kDLCUDA, ValueError) << "x must be a CUDA tensor";
  TVM_FFI_CHECK(x.IsContiguous(), ValueError) << "x must be contiguous";
  TVM_FFI_CHECK(!bias.has_value() || bias.value().dtype() == x.dtype(), ValueError) << "bias must have x's dtype";
  tvm::ffi::CUDADeviceGuard guard(x.device().device_id);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  Tensor y = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  const DLDataType dtype = x.dtype();
  if (dtype == DLDataType{kDLFloat, 32, 1}) {
    Run<float>(y, x, bias, factor, stream);
  } else if (dtype == DLDataType{kDLFloat, 16, 1}) {
    Run<half>(y, x, bias, factor, stream);
  } else {
    TVM_FFI_THROW(TypeError) << "Unsupported dtype: " << dtype;
  }
  const cudaError_t code = cudaGetLastError();
  TVM_FFI_CHECK(code == cudaSuccess, RuntimeError) << cudaGetErrorString(code);
  return y;
}

}  // namespace guide

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, guide::Scale);
"""


def build_scale(output: str, arch: str = "native") -> str:
    """Build the guide's library; a machine with nvcc may do it for one without."""
    return jitload.build_inline("guide_scale", cuda_sources=SOURCE, arch=arch, output=output)


def check_scale(module: Any) -> None:
    """Compare its function with torch on this machine's GPUs."""
    import torch

    for index in range(torch.cuda.device_count()):
        for dtype in (torch.float32, torch.float16):
            x = torch.randn(1000, 37, device=f"cuda:{index}", dtype=dtype)
            bias = torch.randn_like(x)
            stream = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]  # torch's own
            stream.wait_stream(torch.cuda.current_stream(index))
            with torch.cuda.stream(stream):
                plain, added = module.scale(x, 2.0, None), module.scale(x, -0.5, bias)
            stream.synchronize()
            with torch.cuda.device(index):  # torch exports tensors of the current device only
                results = [torch.from_dlpack(result) for result in (plain, added)]
            assert {result.device for result in results} == {x.device}
            torch.testing.assert_close(results[0], x * 2)
            torch.testing.assert_close(results[1], x * -0.5 + bias)
    assert torch.from_dlpack(module.scale(torch.empty(0, device="cuda"), 2.0, None)).numel() == 0
