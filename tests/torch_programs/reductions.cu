//// warp_shuffle_rowsum
/// functions: row_sum, row_max
/// cpp: torch::Tensor row_sum(torch::Tensor x); torch::Tensor row_max(torch::Tensor x);
/// call: row_sum(ints(17, 70).float()) -> ints(17, 70).float().sum(1)
/// call: row_max(rand(17, 70)) -> rand(17, 70).amax(1)
/// call: row_sum(rand(17)) !! IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)
/// call: row_sum(rand(1).sum()) !! IndexError: Dimension specified as 0 but tensor has no dimensions
#include <torch/extension.h>
#include <cfloat>
__global__ void rows_kernel(const float* x, float* sum, float* most, int cols) {
  float s = 0, m = -FLT_MAX;
  for (int c = threadIdx.x; c < cols; c += 32) { s += x[blockIdx.x * cols + c]; m = fmaxf(m, x[blockIdx.x * cols + c]); }
  for (int offset = warpSize / 2; offset > 0; offset /= 2) s += __shfl_down_sync(0xffffffff, s, offset);
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, mask, 32));
  if (threadIdx.x == 0) *(sum ? sum + blockIdx.x : most + blockIdx.x) = sum ? s : m;
}
torch::Tensor row_sum(torch::Tensor x) {
  const int rows = x.size(0), cols = x.size(1);
  auto y = torch::empty({rows}, torch::dtype(torch::kFloat32).device(x.device()));
  rows_kernel<<<rows, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), nullptr, cols);
  return y;
}
torch::Tensor row_max(torch::Tensor x) {
  const int rows = x.size(0), cols = x.size(1);
  auto y = torch::empty({rows}, torch::device(x.device()).dtype(x.dtype()));
  rows_kernel<<<rows, 32>>>(x.data_ptr<float>(), nullptr, y.data_ptr<float>(), cols);
  return y;
}
//// argmax_rows
/// functions: argmax_rows
/// cpp: std::pair<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& scores);
/// call: argmax_rows(rand(6, 50)) -> (rand(6, 50).max(1)[0], rand(6, 50).argmax(1))
/// call: argmax_rows(rand(6, 0)) !! RuntimeError: scores has an empty row, sizes [6, 0]
#include <torch/torch.h>
#include <utility>
__global__ void argmax_rows_kernel(const float* s, float* best, int64_t* index, int n) {
  const float* row = s + blockIdx.x * n;
  int64_t at = 0;
  for (int i = 1; i < n; ++i) if (row[i] > row[at]) at = i;
  best[blockIdx.x] = row[at]; index[blockIdx.x] = at;
}
std::pair<at::Tensor, at::Tensor> argmax_rows(const at::Tensor& scores) {
  TORCH_CHECK(scores.size(1) > 0, "scores has an empty row, sizes ", scores.sizes());
  auto best = scores.new_empty({scores.size(0)});
  auto index = at::empty({scores.size(0)}, scores.options().dtype(at::kLong));
  argmax_rows_kernel<<<scores.size(0), 1>>>(scores.const_data_ptr<float>(), best.mutable_data_ptr<float>(), index.mutable_data_ptr<int64_t>(), scores.size(1));
  return {best, index};
}
//// histogram_atomics
/// functions: histogram
/// cpp: torch::Tensor histogram(torch::Tensor values, int64_t bins);
/// call: histogram(ints(500).int(), 10) -> torch.bincount(ints(500), minlength=10).int()
/// call: histogram(ints(500), 10) !! RuntimeError: expected int32 values
/// call: histogram(ints(500).int(), 0) !! RuntimeError: Expected bins > 0 && bins <= 1024 to be true, but got false.  (Could this error message be improved?  If so, please report an enhancement request to PyTorch.)
#include <torch/extension.h>
__global__ void histogram_kernel(const int* values, int* counts, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&counts[values[i]], 1);
}
torch::Tensor histogram(torch::Tensor values, int64_t bins) {
  TORCH_CHECK(values.dtype() == torch::kInt32, "expected int32 values");
  TORCH_CHECK(bins > 0 && bins <= 1024);
  torch::Tensor counts = torch::zeros({bins}, torch::TensorOptions().dtype(torch::kInt32).device(torch::kCUDA, values.get_device()));
  histogram_kernel<<<4, 128>>>(values.data_ptr<int>(), counts.data_ptr<int>(), values.numel());
  return counts;
}
//// accumulated_means
/// functions: means
/// cpp: std::vector<torch::Tensor> means(torch::Tensor x);
/// call: means(rand(9, 33)) -> [rand(9, 33).mean(1)]
/// call: means(rand(9, 33).double()) -> [rand(9, 33).double().mean(1)]
/// call: means(rand(9, 33).half())
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
template <typename scalar_t>
__global__ void means_kernel(const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
                             torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> mean) {
  at::acc_type<scalar_t, true> sum = 0;
  for (int i = 0; i < x.size(1); ++i) sum += static_cast<decltype(sum)>(x[threadIdx.x][i]);
  mean[threadIdx.x] = static_cast<scalar_t>(sum / x.size(1));
}
std::vector<torch::Tensor> means(torch::Tensor x) {
  auto options = torch::TensorOptions().dtype(x.dtype()).device(x.device()).requires_grad(false);
  auto mean = torch::empty({x.size(0)}, options);
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, x.scalar_type(), "means", ([&] {
    means_kernel<scalar_t><<<1, x.size(0)>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(), mean.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>());
  }));
  return {mean};
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
