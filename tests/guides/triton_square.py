"""The Triton kernel of the guides, and C++ that launches it; importing it needs Triton."""

# mypy: ignore-errors

import triton
import triton.language as tl

import jitload as cpp

# A launch passes the arguments of the kernel, and two pointers more.
SQUARE = r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>

TVM_FFI_EMBED_CUBIN(compiled_by_triton);

void Square(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(compiled_by_triton, "square");
  int32_t n = static_cast<int32_t>(x.size(0));
  void* source = x.data_ptr();
  void* target = y.data_ptr();
  uint64_t no_scratch = 0;
  void* args[] = {&source, &target, &n, &no_scratch, &no_scratch};
  DLDevice device = x.device();
  CUstream stream = static_cast<CUstream>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  CUresult result = kernel.Launch(args, tvm::ffi::dim3((n + 1023) / 1024), tvm::ffi::dim3(128), stream);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(square, Square);
"""


@triton.jit
def square(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(y_ptr + offsets, x * x, mask=offsets < n)


def load_square(cubin):
    """Load the wrapper around the kernel's cubin."""
    return cpp.load_inline("square", cuda_sources=SQUARE, embed_cubin={"compiled_by_triton": cubin})
