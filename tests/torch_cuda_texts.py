"""CUDA sources of PyTorch extensions, as people and models write them, each with what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional


class CudaCase(NamedTuple):
    """A text with kernels, the declaration in C++, and the computation in Python."""

    name: str
    cuda: str
    cpp: str
    shapes: tuple[tuple[int, ...], ...]
    extra: tuple[Any, ...]
    reference: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)


CASES = (
    CudaCase(
        "elementwise_add_cuda",
        r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void elementwise_add_kernel(const float* a, const float* b, float* out, int size) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < size) {
        out[idx] = a[idx] + b[idx];
    }
}

torch::Tensor elementwise_add_cuda(torch::Tensor a, torch::Tensor b) {
    auto size = a.numel();
    auto out = torch::zeros_like(a);

    const int block_size = 256;
    const int num_blocks = (size + block_size - 1) / block_size;

    elementwise_add_kernel<<<num_blocks, block_size>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), size);

    return out;
}
""",
        "torch::Tensor elementwise_add_cuda(torch::Tensor a, torch::Tensor b);",
        ((1000,), (1000,)), (), torch.add,
    ),
    CudaCase(
        "relu_any",
        r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)

template <typename scalar_t>
__global__ void relu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    y[i] = x[i] > scalar_t(0) ? x[i] * scalar_t(2) : scalar_t(0);
}

torch::Tensor relu_any(torch::Tensor x) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard device_guard(device_of(x));
  auto y = torch::empty_like(x);
  const int threads = 128;
  const dim3 blocks((x.numel() + threads - 1) / threads);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "relu_any", ([&] {
    relu_kernel<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
""",
        "torch::Tensor relu_any(torch::Tensor x);",
        ((33, 65),), (), lambda x: torch.relu(x) * 2, (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    ),
    CudaCase(
        "matmul_tiled",
        r"""
#include <torch/extension.h>
#define TILE 16

__global__ void matmul_kernel(torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> a,
                              torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> b,
                              torch::PackedTensorAccessor64<float, 2> c) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int t = 0; t < (a.size(1) + TILE - 1) / TILE; ++t) {
    int k = t * TILE;
    as[threadIdx.y][threadIdx.x] = row < a.size(0) && k + threadIdx.x < a.size(1) ? a[row][k + threadIdx.x] : 0.0f;
    bs[threadIdx.y][threadIdx.x] = k + threadIdx.y < b.size(0) && col < b.size(1) ? b[k + threadIdx.y][col] : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();
  }
  if (row < c.size(0) && col < c.size(1)) c[row][col] = sum;
}

torch::Tensor matmul_tiled(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.size(1) == b.size(0), "shapes ", a.sizes(), " and ", b.sizes(), " do not match");
  auto c = torch::zeros({a.size(0), b.size(1)}, a.options());
  dim3 threads(TILE, TILE), blocks((b.size(1) + TILE - 1) / TILE, (a.size(0) + TILE - 1) / TILE);
  matmul_kernel<<<blocks, threads>>>(a.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
                                     b.packed_accessor32<float, 2, torch::RestrictPtrTraits>(), c.packed_accessor64<float, 2>());
  cudaError_t err = cudaGetLastError();
  TORCH_CHECK(err == cudaSuccess, "kernel failed: ", cudaGetErrorString(err));
  return c;
}
""",
        "torch::Tensor matmul_tiled(torch::Tensor a, torch::Tensor b);",
        ((33, 20), (20, 17)), (), torch.matmul,
    ),
    CudaCase(
        "row_softmax",
        r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <cfloat>

template <int THREADS>
__global__ void row_softmax_kernel(const float* x, float* y, int cols) {
  __shared__ float cache[THREADS];
  const float* row = x + (size_t)blockIdx.x * cols;
  float m = -FLT_MAX;
  for (int i = threadIdx.x; i < cols; i += THREADS) m = fmaxf(m, row[i]);
  cache[threadIdx.x] = m;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) cache[threadIdx.x] = fmaxf(cache[threadIdx.x], cache[threadIdx.x + s]);
    __syncthreads();
  }
  m = cache[0];
  __syncthreads();
  float sum = 0.f;
  for (int i = threadIdx.x; i < cols; i += THREADS) sum += expf(row[i] - m);
  cache[threadIdx.x] = sum;
  __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) cache[threadIdx.x] += cache[threadIdx.x + s];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < cols; i += THREADS) y[(size_t)blockIdx.x * cols + i] = expf(row[i] - m) / cache[0];
}

torch::Tensor row_softmax(torch::Tensor input) {
  auto x = input.contiguous();
  auto y = torch::empty({x.size(0), x.size(1)}, torch::TensorOptions().dtype(torch::kFloat32).device(x.device()));
  row_softmax_kernel<128><<<x.size(0), 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), static_cast<int>(x.size(1)));
  C10_CUDA_CHECK(cudaGetLastError());
  return y;
}
""",
        "torch::Tensor row_softmax(torch::Tensor input);",
        ((19, 300),), (), lambda x: functional.softmax(x, 1),
    ),
    CudaCase(
        "scale_half",
        r"""
#include <cuda_fp16.h>
__global__ void scale_half_kernel(const half* x, half* y, float s, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __float2half(__half2float(x[i]) * s);
}
torch::Tensor scale_half(torch::Tensor x, double s) {
  auto y = torch::empty_like(x);
  int n = x.numel();
  scale_half_kernel<<<(n + 255) / 256, 256>>>(reinterpret_cast<const half*>(x.data_ptr<at::Half>()),
                                              reinterpret_cast<half*>(y.data_ptr<at::Half>()), (float)s, n);
  return y;
}
""",
        "torch::Tensor scale_half(torch::Tensor x, double s);",
        ((77,),), (0.5,), lambda x, s: x * s, (torch.float16,),
    ),
    CudaCase(
        "sum_all",
        r"""
#include <torch/extension.h>
template <typename T>
__global__ void sum_kernel(const T* __restrict__ x, T* out, size_t n) {
  T sum = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}
std::vector<torch::Tensor> sum_all(std::vector<torch::Tensor> xs) {
  std::vector<torch::Tensor> results;
  for (const auto& x : xs) {
    torch::Tensor out = torch::zeros({1}, x.options());
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "sum_all", [&] {
      sum_kernel<scalar_t><<<4, 128>>>(x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.numel());
    });
    results.push_back(out);
  }
  return results;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("sum_all", &sum_all, "the sums", py::arg("xs")); }
""",
        "",
        (), ([torch.ones(100), torch.full((7,), 2.0, dtype=torch.float64)],),
        lambda xs: [x.sum().view(1) for x in xs],
    ),
    CudaCase(
        "layernorm",
        r"""
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>
#include <c10/cuda/CUDAStream.h>
#include <ATen/AccumulateType.h>
constexpr int kWarp = 32;
template <typename scalar_t, typename acc_t = at::acc_type<scalar_t, true>>
__global__ void layernorm_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ g, scalar_t* __restrict__ y, int n, float eps) {
  extern __shared__ unsigned char smem_raw[];
  acc_t* smem = reinterpret_cast<acc_t*>(smem_raw);
  const scalar_t* row = x + (int64_t)blockIdx.x * n;
  acc_t s = 0, ss = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { acc_t v = static_cast<acc_t>(row[i]); s += v; ss += v * v; }
  for (int o = kWarp / 2; o; o >>= 1) { s += __shfl_xor_sync(~0u, s, o); ss += __shfl_xor_sync(~0u, ss, o); }
  if (threadIdx.x % kWarp == 0) { smem[2 * (threadIdx.x / kWarp)] = s; smem[2 * (threadIdx.x / kWarp) + 1] = ss; }
  __syncthreads();
  if (threadIdx.x == 0) { for (int w = 1; w < blockDim.x / kWarp; ++w) { smem[0] += smem[2 * w]; smem[1] += smem[2 * w + 1]; } }
  __syncthreads();
  acc_t mean = smem[0] / n, inv = rsqrt(smem[1] / n - mean * mean + static_cast<acc_t>(eps));
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[(int64_t)blockIdx.x * n + i] = static_cast<scalar_t>((static_cast<acc_t>(row[i]) - mean) * inv * static_cast<acc_t>(g[i]));
}
std::vector<torch::Tensor> layernorm(torch::Tensor x, const std::optional<torch::Tensor>& weight, double eps) {
  TORCH_CHECK(x.is_cuda() && x.dim() == 2);
  auto g = weight.value_or(torch::ones({x.size(1)}, x.options()));
  auto y = torch::empty_like(x);
  auto stream = c10::cuda::getCurrentCUDAStream(x.device().index());
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "layernorm", [&] {
    using acc_t = at::acc_type<scalar_t, true>;
    layernorm_kernel<scalar_t><<<x.size(0), 128, 2 * 4 * sizeof(acc_t), stream>>>(x.data_ptr<scalar_t>(), g.template data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.size(1), eps);
  });
  AT_CUDA_CHECK(cudaGetLastError());
  return {y, g};
}
""",
        "std::vector<torch::Tensor> layernorm(torch::Tensor x, const std::optional<torch::Tensor>& weight, double eps);",
        ((5, 300),), (None, 1e-5), lambda x, _, eps: [functional.layer_norm(x, (300,), eps=eps), torch.ones_like(x[0])], (torch.float32, torch.float64, torch.float16),
    ),
    CudaCase(
        "gather_rows",
        r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void idx_kernel(const int64_t* idx, const float* src, float* dst, int n, int d) { CUDA_KERNEL_LOOP(i, n * d) { dst[i] = src[idx[i / d] * d + i % d]; } }
template <typename T, int N> struct Vec { T v[N]; };
template <typename scalar_t, typename index_t> __global__ void gk(Vec<scalar_t, 4> a, index_t* p) { if (a.v[0] > scalar_t(0)) p[0] = static_cast<index_t>(a.v[1]); }
at::Tensor gather_rows(const at::Tensor& src, const at::Tensor& idx) {
  c10::cuda::CUDAGuard guard(src.device());
  TORCH_CHECK(idx.scalar_type() == at::kLong, "idx must be int64, got ", idx.dtype());
  TORCH_CHECK_INDEX(idx.dim() == 1, "idx must be 1D");
  auto out = at::empty({idx.size(0), src.size(1)}, src.options());
  const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  idx_kernel<<<sms, 256, 0, at::cuda::getCurrentCUDAStream().stream()>>>(idx.data_ptr<int64_t>(), src.const_data_ptr<float>(), out.mutable_data_ptr<float>(), idx.size(0), src.size(1));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, src.scalar_type(), "x", [&] { AT_DISPATCH_INDEX_TYPES(idx.scalar_type(), "y", [&] { Vec<scalar_t, 4> v{}; gk<scalar_t, index_t><<<1, 1>>>(v, idx.data_ptr<index_t>()); }); });
  AT_DISPATCH_SWITCH(src.scalar_type(), "sw", AT_DISPATCH_CASE(at::kFloat, [&] { out.mul_(2); }) AT_DISPATCH_CASE_INTEGRAL_TYPES([&] { out.mul_(3); }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("gather_rows", &gather_rows, "gather", py::arg("src"), py::arg("idx")); }

""",
        "",
        ((9, 40),), (torch.tensor([3, 1, 8]),), lambda x, rows: x[rows] * 2,
    ),
    CudaCase(
        "gelu_forward",
        r"""
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
__global__ void gelu4(const float4* x, float4* y, int n4) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n4) { float4 v = x[i]; v.x = gelu(v.x); v.y = gelu(v.y); v.z = gelu(v.z); v.w = gelu(v.w); y[i] = v; }
}
torch::Tensor gelu_forward(torch::Tensor x) {
  auto y = torch::empty_like(x);
  int n4 = x.numel() / 4;
  gelu4<<<(n4 + 255) / 256, 256>>>((float4*)x.data_ptr<float>(), (float4*)y.data_ptr<float>(), n4);
  cudaError_t e = cudaGetLastError(); if (e != cudaSuccess) printf("err %s\n", cudaGetErrorString(e));
  return y;
}

""",
        "torch::Tensor gelu_forward(torch::Tensor x);",
        ((33, 64),), (), lambda x: functional.gelu(x, approximate="tanh"),
    ),
)  # fmt: skip
