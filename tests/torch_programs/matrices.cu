//// transpose_tiles
/// functions: transpose_copy2
/// cpp: torch::Tensor transpose_copy2(torch::Tensor x);
/// call: transpose_copy2(rand(33, 70)) -> rand(33, 70).t().contiguous()
/// call: transpose_copy2(rand(33, 70).double()) -> rand(33, 70).double().t().contiguous()
/// call: transpose_copy2(ints(33, 70).byte()) -> ints(33, 70).byte().t().contiguous()
/// call: transpose_copy2(rand(33, 70) > 0) -> (rand(33, 70) > 0).t().contiguous()
/// call: transpose_copy2(rand(33, 70)[:, ::2]) !! RuntimeError: x must be contiguous, strides [70, 2]
#include <torch/extension.h>
template <typename T>
__global__ void transpose_tiles_kernel(const T* in, T* out, int rows, int cols) {
  __shared__ T tile[32][32 + 1];
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
  if (x < cols && y < rows) tile[threadIdx.y][threadIdx.x] = in[y * cols + x];
  __syncthreads();
  if (x < cols && y < rows) out[x * rows + y] = tile[threadIdx.y][threadIdx.x];
}
torch::Tensor transpose_copy2(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous, strides ", x.strides());
  auto out = torch::empty({x.size(1), x.size(0)}, x.options());
  const dim3 grid((x.size(1) + 31) / 32, (x.size(0) + 31) / 32), block(32, 32);
  AT_DISPATCH_ALL_TYPES_AND3(at::ScalarType::Half, at::ScalarType::Bool, at::ScalarType::BFloat16, x.scalar_type(), "transpose", [&] {
    transpose_tiles_kernel<scalar_t><<<grid, block>>>(x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.size(0), x.size(1));
  });
  return out;
}
//// large_shared_attribute
/// functions: column_cumsum
/// cpp: torch::Tensor column_cumsum(torch::Tensor x);
/// call: column_cumsum(ints(400, 40).float()) -> ints(400, 40).float().cumsum(0)
/// call: column_cumsum(ints(9000, 8).float()) !gpu RuntimeError: too much shared memory: 288000 bytes
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
__global__ void column_cumsum_kernel(const float* x, float* y, int rows, int cols) {
  extern __shared__ float values[];
  for (int i = threadIdx.x; i < rows * cols; i += blockDim.x) values[i] = x[i];
  __syncthreads();
  if (threadIdx.x < cols) { float s = 0; for (int r = 0; r < rows; ++r) y[r * cols + threadIdx.x] = s += values[r * cols + threadIdx.x]; }
}
torch::Tensor column_cumsum(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int bytes = x.numel() * sizeof(float);
  cudaError_t status = cudaFuncSetAttribute(column_cumsum_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) { cudaGetLastError(); TORCH_CHECK(false, "too much shared memory: ", bytes, " bytes"); }
  column_cumsum_kernel<<<1, 64, bytes>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));
  C10_CUDA_CHECK(cudaGetLastError());
  return y;
}
//// wmma_tensor_cores
/// functions: wmma_matmul
/// cpp: torch::Tensor wmma_matmul(torch::Tensor a, torch::Tensor b);
/// call: wmma_matmul(ints(32, 16).half(), ints(16, 48).half()) -> (ints(32, 16).float() @ ints(16, 48).float())
/// call: wmma_matmul(ints(30, 16).half(), ints(16, 48).half()) !! RuntimeError: sizes must be multiples of 16
#include <torch/extension.h>
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
__global__ void wmma_kernel(const half* a, const half* b, float* c, int N, int K) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int k = 0; k < K; k += 16) {
    wmma::load_matrix_sync(fa, a + blockIdx.y * 16 * K + k, K);
    wmma::load_matrix_sync(fb, b + k * N + blockIdx.x * 16, N);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(c + blockIdx.y * 16 * N + blockIdx.x * 16, fc, N, wmma::mem_row_major);
}
torch::Tensor wmma_matmul(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.size(0) % 16 == 0 && a.size(1) % 16 == 0 && b.size(1) % 16 == 0, "sizes must be multiples of 16");
  auto c = torch::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
  wmma_kernel<<<dim3(b.size(1) / 16, a.size(0) / 16), 32>>>(reinterpret_cast<half*>(a.data_ptr<c10::Half>()),
      reinterpret_cast<half*>(b.data_ptr<c10::Half>()), c.data_ptr<float>(), b.size(1), a.size(1));
  return c;
}
//// triangular_mask
/// functions: tril_mul
/// cpp: torch::Tensor tril_mul(torch::Tensor x, int64_t diagonal);
/// call: tril_mul(rand(3, 6, 6), 1) -> rand(3, 6, 6).tril(1)
/// call: tril_mul(rand(6, 6).t(), -1) -> rand(6, 6).t().tril(-1)
/// call: tril_mul(rand(4), 0) !! RuntimeError: at least two dims
#include <torch/extension.h>
#include <climits>
#include <ATen/cuda/detail/KernelUtils.h>
template <typename index_t>
__global__ void tril_kernel(float* x, index_t n, index_t rows, index_t cols, index_t diagonal) {
  CUDA_KERNEL_LOOP_TYPE(i, n, index_t) { if (i % cols > (i / cols) % rows + diagonal) x[i] = 0.f; }
}
torch::Tensor tril_mul(torch::Tensor x, int64_t diagonal) {
  TORCH_CHECK(x.dim() >= 2, "at least two dims");
  auto y = x.clone(at::MemoryFormat::Contiguous);
  if (y.numel() < INT_MAX) tril_kernel<int><<<3, 50>>>(y.data_ptr<float>(), y.numel(), y.size(-2), y.size(-1), diagonal);
  else tril_kernel<int64_t><<<3, 50>>>(y.data_ptr<float>(), y.numel(), y.size(-2), y.size(-1), diagonal);
  return y;
}
//// channels_last_copy
/// functions: scale_channels
/// cpp: torch::Tensor scale_channels(torch::Tensor x, torch::Tensor s);
/// call: scale_channels(rand(2, 3, 4, 5), rand(3)) -> rand(2, 3, 4, 5) * rand(3).view(3, 1, 1)
/// call: scale_channels(rand(2, 3, 4, 5).to(memory_format=torch.channels_last), rand(3)) -> rand(2, 3, 4, 5).to(memory_format=torch.channels_last) * rand(3).view(3, 1, 1)
/// call: scale_channels(rand(2, 3, 4, 5).permute(0, 2, 3, 1), rand(4))
#include <torch/extension.h>
__global__ void scale_channels_kernel(const float* x, const float* s, float* y, int n, int C, int inner) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * s[i / inner % C];
}
torch::Tensor scale_channels(torch::Tensor x, torch::Tensor s) {
  const auto format = x.suggest_memory_format();
  auto xc = x.contiguous(format);
  auto y = torch::empty_like(xc, xc.options(), format);
  const int inner = format == at::MemoryFormat::ChannelsLast ? 1 : x.size(2) * x.size(3);
  scale_channels_kernel<<<(x.numel() + 63) / 64, 64>>>(xc.data_ptr<float>(), s.data_ptr<float>(), y.data_ptr<float>(), x.numel(), x.size(1), inner);
  return y;
}
//// gather_scatter_accessors
/// functions: scatter_rows
/// cpp: torch::Tensor scatter_rows(torch::Tensor src, torch::Tensor index, int64_t size);
/// call: scatter_rows(ints(6, 4).float(), ints(6), 10) -> torch.zeros(10, 4, device=DEVICE).index_add(0, ints(6), ints(6, 4).float())
/// call: scatter_rows(ints(6, 4).float(), ints(6, 1), 10) !! RuntimeError: TensorAccessor expected 1 dims but tensor has 2
/// call: scatter_rows(ints(6, 4).float(), ints(6).int(), 10) !! RuntimeError: expected scalar type Long but found Int
/// call: scatter_rows(ints(6, 4).float(), ints(6), -1) !!
#include <torch/extension.h>
__global__ void scatter_rows_kernel(at::GenericPackedTensorAccessor<float, 2> src, torch::PackedTensorAccessor32<int64_t, 1> index, torch::PackedTensorAccessor<float, 2, torch::RestrictPtrTraits, size_t> out) {
  const auto row = blockIdx.x;
  for (int c = threadIdx.x; c < src.size(1); c += blockDim.x) atomicAdd(&out[index[row]][c], src[row][c]);
}
torch::Tensor scatter_rows(torch::Tensor src, torch::Tensor index, int64_t size) {
  auto out = torch::zeros({size, src.size(1)}, src.options());
  auto idx = index.packed_accessor32<int64_t, 1>();
  scatter_rows_kernel<<<src.size(0), 32>>>(src.generic_packed_accessor<float, 2>(), idx, out.packed_accessor<float, 2, torch::RestrictPtrTraits, size_t>());
  return out;
}
