"""A kernel library's function: check, pick the device and the stream, dispatch on the dtype, launch. No toolkit."""

from __future__ import annotations

import torch

import jitload

KERNELS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define SCALE(T, name)                                                                             \
  extern "C" __global__ void scale_##name(T* y, const T* x, float factor, const T* bias, int n) {  \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                                 \
    if (i < n) y[i] = T(float(x[i]) * factor + (bias ? float(bias[i]) : 0.0f));                    \
  }
SCALE(float, float32)
SCALE(__half, float16)
SCALE(__nv_bfloat16, bfloat16)
"""
LIBRARY = r"""
#include <jitload/kernel_library.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN(kernels);

Tensor scale(TensorView x, Optional<double> factor, Optional<TensorView> bias) {
  CHECK_INPUT(x);
  if (bias.has_value()) CHECK_DEVICE(x, bias.value());
  ffi::CUDADeviceGuard guard(x.device().device_id);
  Tensor y = alloc_tensor(x.shape(), x.dtype(), x.device());
  DISPATCH_DTYPE(x.dtype(), T, (float, __half, __nv_bfloat16), {
    static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(kernels, jitload::KernelName<T>("scale_").c_str());
    T *to = element_ptr<T>(y), *from = element_ptr<T>(x), *add = bias ? element_ptr<T>(*bias) : nullptr;
    float by = factor.value_or(1.0);
    int n = x.numel(), blocks = (n + 255) / 256;
    void* args[] = {&to, &from, &by, &add, &n};
    TVM_FFI_CHECK_CUDA_ERROR(kernel.Launch(args, ffi::dim3(blocks), ffi::dim3(256), get_cuda_stream(x.device())));
  });
  return y;
}"""

cubin = jitload.compile_cubin(KERNELS, arch="native" if torch.cuda.is_available() else "sm_90a")
mod = jitload.load_inline("library", cuda_sources=LIBRARY, functions="scale", embed_cubin={"kernels": cubin})
for kernel in cubin.kernels:
    print(f"{kernel}: {kernel.registers} registers")

try:
    mod.scale(torch.ones(4), None, None)
except ValueError as error:
    print(f"refused: {error}")

if torch.cuda.is_available():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, bias = torch.randn(2, 100_000, device="cuda", dtype=dtype)
        torch.testing.assert_close(mod.scale(x, 3.0, bias), (x.float() * 3 + bias.float()).to(dtype))
        torch.testing.assert_close(mod.scale(x, None, None), x)
    print("scale: equal to torch's results in three dtypes")
else:
    print("no GPU here: launching needs one")
