//// warp_shuffle_rowsum
/// functions: row_sum, row_max
/// cpp: torch::Tensor row_sum(torch::Tensor x); torch::Tensor row_max(torch::Tensor x);
/// call: row_sum(ints(17, 70).float()) -> ints(17, 70).float().sum(1)
/// call: row_max(rand(17, 70)) -> rand(17, 70).amax(1)
/// call: row_sum(rand(17)) !! IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)
/// call: row_sum(rand(1).sum()) !! IndexError: Dimension specified as 0 but tensor has no dimensions
#include <torch/extension.h>
#include <cfloat>
#define FULL_MASK 0xffffffff
__inline__ __device__ float warp_sum(float v) {
  for (int offset = warpSize / 2; offset > 0; offset /= 2) v += __shfl_down_sync(FULL_MASK, v, offset);
  return v;
}
__inline__ __device__ float warp_max(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, mask, 32));
  return v;
}
__global__ void row_sum_kernel(const float* x, float* y, int cols) {
  float v = 0;
  for (int c = threadIdx.x; c < cols; c += 32) v += x[blockIdx.x * cols + c];
  v = warp_sum(v);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
__global__ void row_max_kernel(const float* x, float* y, int cols) {
  float v = -FLT_MAX;
  for (int c = threadIdx.x; c < cols; c += 32) v = fmaxf(v, x[blockIdx.x * cols + c]);
  v = warp_max(v);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
torch::Tensor row_sum(torch::Tensor x) {
  const int rows = x.size(0), cols = x.size(1);
  auto y = torch::empty({rows}, torch::dtype(torch::kFloat32).device(x.device()));
  row_sum_kernel<<<rows, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), cols);
  return y;
}
torch::Tensor row_max(torch::Tensor x) {
  const int rows = x.size(0), cols = x.size(1);
  auto y = torch::empty({rows}, torch::device(x.device()).dtype(x.dtype()));
  row_max_kernel<<<rows, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), cols);
  return y;
}
//// mean_along_dim
/// functions: mean_dim
/// cpp: torch::Tensor mean_dim(torch::Tensor x, int dim);
/// call: mean_dim(rand(4, 30, 5), 1) -> rand(4, 30, 5).mean(1)
/// call: mean_dim(rand(4, 30, 5), -1) -> rand(4, 30, 5).mean(-1)
/// call: mean_dim(rand(4, 30, 5).transpose(0, 2), 0) -> rand(4, 30, 5).transpose(0, 2).mean(0)
/// call: mean_dim(rand(4, 30), 2) !! RuntimeError: dim 2 is out of range for 2 dims
#include <torch/extension.h>
#include <algorithm>
#include <vector>
__global__ void mean_dim_kernel(const float* in, float* out, int64_t outer, int64_t reduce, int64_t inner) {
  int64_t index = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (index >= outer * inner) return;
  const float* p = in + index / inner * reduce * inner + index % inner;
  float total = 0.f;
  for (int64_t r = 0; r < reduce; ++r) total += p[r * inner];
  out[index] = total / reduce;
}
torch::Tensor mean_dim(torch::Tensor x, int dim) {
  if (dim < 0) dim += x.dim();
  TORCH_CHECK(dim >= 0 && dim < x.dim(), "dim ", dim, " is out of range for ", x.dim(), " dims");
  x = x.contiguous();
  auto sizes = x.sizes().vec();
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < dim; i++) outer *= sizes[i];
  for (int i = dim + 1; i < (int)sizes.size(); i++) inner *= sizes[i];
  const int64_t reduce = sizes[dim];
  sizes.erase(sizes.begin() + dim);
  auto out = torch::empty(sizes, x.options());
  const int threads = std::min<int64_t>(256, outer * inner);
  mean_dim_kernel<<<(outer * inner + threads - 1) / threads, threads>>>(x.data_ptr<float>(), out.data_ptr<float>(), outer, reduce, inner);
  return out;
}
//// argmax_rows
/// functions: argmax_rows
/// cpp: std::pair<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& scores);
/// call: argmax_rows(rand(6, 50)) -> (rand(6, 50).max(1)[0], rand(6, 50).argmax(1))
/// call: argmax_rows(rand(6, 0)) !! RuntimeError: scores has an empty row, sizes [6, 0]
#include <torch/torch.h>
#include <utility>
__global__ void argmax_rows_kernel(const float* s, float* best, int64_t* index, int n) {
  int row = blockIdx.x;
  __shared__ float values[64];
  __shared__ int places[64];
  float v = -INFINITY; int p = 0;
  for (int i = threadIdx.x; i < n; i += 64) if (s[row * n + i] > v) { v = s[row * n + i]; p = i; }
  values[threadIdx.x] = v; places[threadIdx.x] = p;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int t = 1; t < 64; ++t) if (values[t] > v) { v = values[t]; p = places[t]; }
    best[row] = v; index[row] = p;
  }
}
std::pair<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& scores) {
  TORCH_CHECK(scores.size(1) > 0, "scores has an empty row, sizes ", scores.sizes());
  auto best = at::empty({scores.size(0)}, scores.options());
  auto index = at::empty({scores.size(0)}, scores.options().dtype(at::kLong));
  argmax_rows_kernel<<<scores.size(0), 64>>>(scores.const_data_ptr<float>(), best.mutable_data_ptr<float>(), index.mutable_data_ptr<int64_t>(), scores.size(1));
  return {best, index};
}
//// histogram_atomics
/// functions: histogram
/// cpp: torch::Tensor histogram(torch::Tensor values, int64_t bins);
/// call: histogram(ints(500).int(), 10) -> torch.bincount(ints(500), minlength=10).int()
/// call: histogram(ints(500), 10) !! RuntimeError: expected int32 values
/// call: histogram(ints(500).int(), 0) !! RuntimeError: Expected bins > 0 && bins <= 1024 to be true, but got false.  (Could this error message be improved?  If so, please report an enhancement request to PyTorch.)
#include <torch/extension.h>
__global__ void histogram_kernel(const int* values, int* counts, int n, int bins) {
  extern __shared__ int local[];
  for (int i = threadIdx.x; i < bins; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[values[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x) atomicAdd(&counts[i], local[i]);
}
torch::Tensor histogram(torch::Tensor values, int64_t bins) {
  TORCH_CHECK(values.dtype() == torch::kInt32, "expected int32 values");
  TORCH_CHECK(bins > 0 && bins <= 1024);
  torch::Tensor counts = torch::zeros({bins}, torch::TensorOptions().dtype(torch::kInt32).device(torch::kCUDA, values.get_device()));
  histogram_kernel<<<4, 128, bins * sizeof(int)>>>(values.data_ptr<int>(), counts.data_ptr<int>(), values.numel(), bins);
  return counts;
}
//// welford_variance
/// functions: mean_variance
/// cpp: std::vector<torch::Tensor> mean_variance(torch::Tensor x, bool unbiased);
/// call: mean_variance(rand(9, 33), True) -> [rand(9, 33).mean(1), rand(9, 33).var(1)]
/// call: mean_variance(rand(9, 33).double(), False) -> [rand(9, 33).double().mean(1), rand(9, 33).double().var(1, unbiased=False)]
/// call: mean_variance(rand(9, 33).half(), False)
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
template <typename scalar_t>
__global__ void mean_variance_kernel(const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
                                     torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> mean,
                                     torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> var, bool unbiased) {
  using acc_t = at::acc_type<scalar_t, true>;
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= x.size(0)) return;
  acc_t m = 0, m2 = 0;
  for (int i = 0; i < x.size(1); ++i) {
    const acc_t v = static_cast<acc_t>(x[row][i]), d = v - m;
    m += d / (i + 1);
    m2 += d * (v - m);
  }
  mean[row] = static_cast<scalar_t>(m);
  var[row] = static_cast<scalar_t>(m2 / (x.size(1) - (unbiased ? 1 : 0)));
}
std::vector<torch::Tensor> mean_variance(torch::Tensor x, bool unbiased) {
  auto options = torch::TensorOptions().dtype(x.dtype()).device(x.device()).requires_grad(false);
  auto mean = torch::empty({x.size(0)}, options), var = torch::empty({x.size(0)}, options);
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, x.scalar_type(), "mean_variance", ([&] {
    mean_variance_kernel<scalar_t><<<(x.size(0) + 31) / 32, 32>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(), mean.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(),
        var.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(), unbiased);
  }));
  return {mean, var};
}
//// cooperative_norm
/// functions: l2_normalize
/// cpp: torch::Tensor l2_normalize(torch::Tensor x, double eps);
/// call: l2_normalize(rand(5, 200), 1e-12) -> torch.nn.functional.normalize(rand(5, 200), dim=1)
/// call: l2_normalize(rand(5, 200), -1.0) !! RuntimeError: eps must not be negative: -1
#include <torch/extension.h>
#include <ATen/cuda/Exceptions.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void l2_normalize_kernel(const float* x, float* y, int n, float eps) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<32>(block);
  __shared__ float partial[4];
  const float* row = x + blockIdx.x * n;
  float sum = 0;
  for (int i = block.thread_rank(); i < n; i += block.size()) sum += row[i] * row[i];
  sum = cg::reduce(tile, sum, cg::plus<float>());
  if (tile.thread_rank() == 0) partial[tile.meta_group_rank()] = sum;
  block.sync();
  const float norm = fmaxf(sqrtf(partial[0] + partial[1] + partial[2] + partial[3]), eps);
  for (int i = block.thread_rank(); i < n; i += block.size()) y[blockIdx.x * n + i] = row[i] / norm;
}
torch::Tensor l2_normalize(torch::Tensor x, double eps) {
  TORCH_CHECK(eps >= 0, "eps must not be negative: ", eps);
  auto y = torch::empty_like(x);
  l2_normalize_kernel<<<x.size(0), 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), (float)eps);
  AT_CUDA_CHECK(cudaGetLastError());
  return y;
}
