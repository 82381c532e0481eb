"""The texts that the benchmarks compile: the trivial kernel, sixteen of them, and what other loaders want around it."""

from __future__ import annotations

_KERNEL = """
extern "C" __global__ void {name}(const float* x, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + {addend}.0f;
}}
"""


def kernel_text(addend: int, name: str = "add_one") -> str:
    """Return the kernel's text; each addend makes a text that no cache has seen."""
    return _KERNEL.format(name=name, addend=addend)


SOURCE = kernel_text(1)
SIXTEEN = [f"add_{i}" for i in range(16)]


def sixteen_text(addend: int) -> str:
    """Return one text with sixteen kernels."""
    return "".join(kernel_text(addend + i, name) for i, name in enumerate(SIXTEEN))


# A wrapper of one's own around a cubin, in the form of tvm-ffi's CUBIN launcher guide.
TVM_WRAPPER = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>

TVM_FFI_EMBED_CUBIN(bench_cubin);

void AddOne(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int32_t n) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(bench_cubin, "add_one");
  void* x_ptr = x.data_ptr();
  void* y_ptr = y.data_ptr();
  void* args[] = {&x_ptr, &y_ptr, &n};
  tvm::ffi::dim3 grid((n + 255) / 256);
  tvm::ffi::dim3 block(256);
  DLDevice device = x.device();
  auto stream = static_cast<tvm::ffi::cuda_api::StreamHandle>(
      TVMFFIEnvGetStream(device.device_type, device.device_id));
  TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR(kernel.Launch(args, grid, block, stream));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, AddOne);
"""

TORCH_DECLARATION = "void add_one_host(torch::Tensor x, torch::Tensor y, int64_t n);"
TORCH_SOURCE = (
    SOURCE
    + """
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
void add_one_host(torch::Tensor x, torch::Tensor y, int64_t n) {
    int blocks = (static_cast<int>(n) + 255) / 256;
    add_one<<<blocks, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), static_cast<int>(n));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
)
