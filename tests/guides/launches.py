"""The guides' other launches, written afresh: bytes at run time, two GPUs, shared memory, attributes, a Triton kernel.

One library; the kernels are small, so that what is launched how shows in their results.
"""

from __future__ import annotations

import functools
from typing import Any

import jitload as cpp
from jitload import nvrtc

KERNELS = r"""
extern "C" __global__ void negate(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = -x[i];
}
// The sum of each block's elements, by way of dynamic shared memory: one float a thread.
extern "C" __global__ void block_sums(const float* x, float* sums, int n) {
    extern __shared__ float tile[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0;
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) tile[threadIdx.x] += tile[threadIdx.x + width];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = tile[0];
}
// The cluster's size in each dimension, and whether what came before in the stream is seen.
extern "C" __global__ void clustered(const float* before, int* out, int n) {
    unsigned size[3];
    asm("griddepcontrol.wait;" ::: "memory");
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size[0]));
    asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(size[1]));
    asm("mov.u32 %0, %%cluster_nctaid.z;" : "=r"(size[2]));
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    if (threadIdx.x == 0) out[block] = size[0] + 10 * size[1] + 100 * size[2] + (before[n - 1] < 0 ? 1000 : 0);
}
// What a compiler makes of a Triton kernel: the arguments of the text, and two pointers more.
extern "C" __global__ void square(const float* x, float* y, int n, void* global_scratch, void* profile_scratch) {
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) {
        const int at = blockIdx.x * 1024 + i;
        if (at < n) y[at] = x[at] * x[at];
    }
}
"""
WRAPPER = r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <memory>

TVM_FFI_EMBED_CUBIN(launches);

using tvm::ffi::CubinKernel;
using tvm::ffi::TensorView;

static cudaStream_t StreamOf(TensorView x) {
  DLDevice device = x.device();
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

static cudaError_t LaunchOn(CubinKernel& kernel, TensorView x, TensorView y, tvm::ffi::dim3 block, uint32_t shared) {
  void* source = x.data_ptr();
  void* target = y.data_ptr();
  int n = static_cast<int>(x.numel());
  void* args[] = {&source, &target, &n};
  return kernel.Launch(args, tvm::ffi::dim3((n + block.x - 1) / block.x), block, StreamOf(x), shared);
}

// Embedded when the library is built; on two GPUs in one call.
void Negate(TensorView x0, TensorView y0, TensorView x1, TensorView y1) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(launches, "negate");
  TVM_FFI_CHECK_CUDA_ERROR(LaunchOn(kernel, x0, y0, tvm::ffi::dim3(128), 0));
  TVM_FFI_CHECK_CUDA_ERROR(LaunchOn(kernel, x1, y1, tvm::ffi::dim3(128), 0));
}

// Loaded from bytes at run time, kept as long as the kernel is used.
static std::unique_ptr<tvm::ffi::CubinModule> loaded;
void Load(const tvm::ffi::Bytes& cubin) { loaded = std::make_unique<tvm::ffi::CubinModule>(cubin); }
void RunLoaded(tvm::ffi::String name, TensorView x, TensorView y) {
  TVM_FFI_CHECK(loaded != nullptr, RuntimeError) << "load a cubin first";
  CubinKernel kernel = (*loaded)[name.c_str()];
  TVM_FFI_CHECK_CUDA_ERROR(LaunchOn(kernel, x, y, tvm::ffi::dim3(64), 0));
}

// Dynamic shared memory, as much as the block needs.
void BlockSums(TensorView x, TensorView sums, int64_t threads) {
  static auto kernel = EmbedCubinModule_launches::Global()->mod.GetKernelWithMaxDynamicSharedMemory("block_sums", -1);
  TVM_FFI_CHECK_CUDA_ERROR(LaunchOn(kernel, x, sums, tvm::ffi::dim3(threads), threads * sizeof(float)));
}

// A cluster, its scheduling, and a start before the launch ahead has ended.
void Clustered(TensorView before, TensorView out, int64_t x, int64_t y, int64_t z) {
  static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(launches, "clustered");
  CUlaunchConfig config = {};
  config.gridDimX = 2 * x;
  config.gridDimY = y;
  config.gridDimZ = z;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = StreamOf(out);
  CUlaunchAttribute attributes[3] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  attributes[1].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
  attributes[2].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[2].value.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = 3;
  void* source = before.data_ptr();
  void* target = out.data_ptr();
  int n = static_cast<int>(before.numel());
  void* args[] = {&source, &target, &n};
  CUresult result = kernel.LaunchEx(args, config);
  TVM_FFI_CHECK_CUDA_DRIVER_ERROR(result);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(negate, Negate);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(load, Load);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_loaded, RunLoaded);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(block_sums, BlockSums);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(clustered, Clustered);
"""
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


@functools.cache
def compile_kernels(arch: str | None = None) -> bytes:
    """Return the kernels' cubin."""
    return nvrtc.nvrtc_compile(KERNELS, name="launches.cu", arch=arch)


@functools.cache
def load_launches(arch: str | None = None) -> Any:
    """Compile and load the library."""
    return cpp.load_inline("launches", cuda_sources=WRAPPER, embed_cubin={"launches": compile_kernels(arch)})


def load_square(cubin: bytes) -> Any:
    """Load the wrapper around a Triton kernel's cubin, or around one that looks like it."""
    return cpp.load_inline("square", cuda_sources=SQUARE, embed_cubin={"compiled_by_triton": cubin})
