"""Write the C++ around a cubin by hand, as for tvm_ffi.cpp.load_inline: the checks and the launch are yours."""

from __future__ import annotations

import torch

import jitload
from jitload import nvrtc

KERNEL = r"""
extern "C" __global__ void axpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}"""

WRAPPER = r"""
#include <tvm/ffi/extra/cuda/cubin_launcher.h>

TVM_FFI_EMBED_CUBIN(kernels);

void axpy(double a, tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  TVM_FFI_CHECK(x.size(0) == y.size(0), ValueError) << "x has " << x.size(0) << " elements, y " << y.size(0);
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(kernels, "axpy");
  float factor = a;
  void *source = x.data_ptr(), *target = y.data_ptr();
  int n = x.size(0);
  void* args[] = {&factor, &source, &target, &n};
  DLDevice device = x.device();
  auto stream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  CUresult result = kernel.Launch(args, tvm::ffi::dim3((n + 255) / 256), tvm::ffi::dim3(256), stream);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}"""

arch = None if torch.cuda.is_available() else "sm_90a"
mod = jitload.load_inline(
    "by_hand",
    cuda_sources=WRAPPER,
    functions={"axpy": "Add a*x to y."},
    embed_cubin={"kernels": nvrtc.nvrtc_compile(KERNEL, arch=arch)},
)
print(mod)
(kernel,) = jitload.compile_cubin(KERNEL, arch=arch or "native").kernels
print(f"{kernel}: {kernel.registers} registers")

try:
    mod.axpy(2.0, torch.ones(4), torch.ones(3))
except ValueError as error:
    print(f"refused: {error}")

if torch.cuda.is_available():
    x, y = torch.randn(2, 100_000, device="cuda")
    expected = y + 2 * x
    mod.axpy(2.0, x, y)  # on torch's current stream
    torch.testing.assert_close(y, expected)
    print("axpy: equal to torch's result on 100000 elements")
else:
    print("no GPU here: launching needs one")
