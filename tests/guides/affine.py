"""The guide's NVRTC example, written afresh: one kernel, and its wrapper in both spellings of CUDA's types."""

from typing import Any

import jitload as cpp
from jitload import nvrtc

KERNEL = r"""
extern "C" __global__ void affine(const float* x, float* y, float scale, float shift, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * scale + shift;
}
"""
_WRAPPER = r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>

TVM_FFI_EMBED_CUBIN(affine_cubin);

namespace guide {

void Affine(tvm::ffi::TensorView x, tvm::ffi::TensorView y, double scale, double shift) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(affine_cubin, "affine");
  void* source = x.data_ptr();
  void* target = y.data_ptr();
  auto factor = static_cast<float>(scale);
  auto offset = static_cast<float>(shift);
  int64_t n = x.size(0);
  void* args[] = {&source, &target, &factor, &offset, &n};
  DLDevice device = x.device();
  auto stream = static_cast<STREAM_T>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  RESULT_T result = kernel.Launch(args, tvm::ffi::dim3((n + 127) / 128), tvm::ffi::dim3(128), stream);
  CHECK_RESULT(result);
}

}  // namespace guide

TVM_FFI_DLL_EXPORT_TYPED_FUNC(affine, guide::Affine);
"""
SPELLINGS = {
    "driver": {"STREAM_T": "CUstream", "RESULT_T": "CUresult", "CHECK_RESULT": "TVM_FFI_CHECK_CUDA_DRIVER_ERROR"},
    "runtime": {"STREAM_T": "cudaStream_t", "RESULT_T": "cudaError_t", "CHECK_RESULT": "TVM_FFI_CHECK_CUDA_ERROR"},
}


def load_affine(spelling: str, arch: str | None = None) -> Any:
    """Compile and load the example as the guide does."""
    wrapper = _WRAPPER
    for name, value in SPELLINGS[spelling].items():
        wrapper = wrapper.replace(name, value)
    cubin_bytes = nvrtc.nvrtc_compile(KERNEL, name="affine.cu", arch=arch)
    return cpp.load_inline(f"affine_{spelling}", cuda_sources=wrapper, embed_cubin={"affine_cubin": cubin_bytes})
