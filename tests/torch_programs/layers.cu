//// rms_norm_optional_weight
/// functions: rms_norm
/// cpp: torch::Tensor rms_norm(const torch::Tensor& x, const c10::optional<torch::Tensor>& weight, c10::optional<double> eps);
/// call: rms_norm(rand(7, 64), None, None) -> torch.nn.functional.rms_norm(rand(7, 64), (64,), eps=1e-6)
/// call: rms_norm(rand(7, 64), rand(64), 0.5) -> torch.nn.functional.rms_norm(rand(7, 64), (64,), rand(64), eps=0.5)
/// call: rms_norm(rand(7, 64), rand(64), 1) -> torch.nn.functional.rms_norm(rand(7, 64), (64,), rand(64), eps=1)
/// call: rms_norm(rand(7, 64), 3.0, None) !! TypeError: rms_norm(): incompatible function arguments.
/// call: rms_norm(rand(7, 64), None, "x") !! TypeError: rms_norm(): incompatible function arguments.
#include <torch/extension.h>
#include <c10/util/Optional.h>
__global__ void rms_norm_kernel(const float* x, const float* w, float* y, int n, float eps) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) { float v = x[blockIdx.x * n + i]; sum = fmaf(v, v, sum); }
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  const float scale = rsqrtf(sum / n + eps);
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * scale * (w ? w[i] : 1.f);
}
torch::Tensor rms_norm(const torch::Tensor& x, const c10::optional<torch::Tensor>& weight, c10::optional<double> eps) {
  auto y = torch::empty_like(x);
  const float* w = weight.has_value() ? weight->data_ptr<float>() : nullptr;
  rms_norm_kernel<<<x.size(0), 32>>>(x.data_ptr<float>(), w, y.data_ptr<float>(), x.size(1), static_cast<float>(eps.value_or(1e-6)));
  return y;
}
//// batch_norm_inference
/// functions: batch_norm_relu
/// cpp: torch::Tensor batch_norm_relu(torch::Tensor x, torch::Tensor mean, torch::Tensor var, torch::Tensor gamma, torch::Tensor beta, double eps);
/// call: batch_norm_relu(rand(2, 3, 8, 8), rand(3), rand(3).abs(), rand(3), rand(3), 1e-5) -> torch.nn.functional.batch_norm(rand(2, 3, 8, 8), rand(3), rand(3).abs(), rand(3), rand(3)).relu()
/// call: batch_norm_relu(rand(2, 3, 8), rand(3), rand(3), rand(3), rand(3), 1e-5) !! RuntimeError: TensorAccessor expected 4 dims but tensor has 3
#include <torch/extension.h>
__global__ void batch_norm_relu_kernel(torch::PackedTensorAccessor64<float, 4> x, torch::PackedTensorAccessor64<float, 4> y,
    const float* mean, const float* var, const float* gamma, const float* beta, float eps) {
  const int n = blockIdx.x, c = blockIdx.y;
  const float scale = gamma[c] * rsqrtf(var[c] + eps), shift = beta[c] - mean[c] * scale;
  for (int h = threadIdx.y; h < x.size(2); h += blockDim.y)
    for (int w = threadIdx.x; w < x.size(3); w += blockDim.x) y[n][c][h][w] = fmaxf(x[n][c][h][w] * scale + shift, 0.f);
}
torch::Tensor batch_norm_relu(torch::Tensor x, torch::Tensor mean, torch::Tensor var, torch::Tensor gamma, torch::Tensor beta, double eps) {
  auto y = torch::empty_like(x);
  dim3 grid(x.size(0), x.size(1)), block(8, 8);
  batch_norm_relu_kernel<<<grid, block>>>(x.packed_accessor64<float, 4>(), y.packed_accessor64<float, 4>(), mean.data_ptr<float>(),
      var.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(), eps);
  return y;
}
//// depthwise_conv_vectors
/// functions: depthwise
/// cpp: torch::Tensor depthwise(torch::Tensor x, torch::Tensor w, std::vector<int64_t> padding);
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), [1, 0]) -> torch.nn.functional.conv2d(rand(2, 4, 6, 7), rand(4, 1, 3, 3), padding=(1, 0), groups=4)
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), [1]) !! RuntimeError: padding needs two numbers, got 1
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), 1) !! TypeError: depthwise(): incompatible function arguments.
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), torch.tensor([1, 0])) !! TypeError: depthwise(): incompatible function arguments.
#include <torch/extension.h>
__global__ void depthwise_kernel(const float* x, const float* w, float* y, int H, int W, int K, int OH, int OW, int ph, int pw) {
  const int c = blockIdx.x, oh = blockIdx.y, ow = threadIdx.x;
  float s = 0;
  for (int i = 0; i < K; ++i) for (int j = 0; j < K; ++j) {
    int h = oh + i - ph, v = ow + j - pw;
    if (h >= 0 && h < H && v >= 0 && v < W) s += x[(c * H + h) * W + v] * w[((c % gridDim.z) * K + i) * K + j];
  }
  (void)s;
  y[(c * OH + oh) * OW + ow] = s;
}
torch::Tensor depthwise(torch::Tensor x, torch::Tensor w, std::vector<int64_t> padding) {
  TORCH_CHECK(padding.size() == 2, "padding needs two numbers, got ", padding.size());
  int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3), K = w.size(2);
  int64_t OH = H + 2 * padding[0] - K + 1, OW = W + 2 * padding[1] - K + 1;
  auto y = torch::empty({N, C, OH, OW}, x.options());
  auto repeated = w.repeat({N, 1, 1, 1}).contiguous();
  depthwise_kernel<<<dim3(N * C, OH, 1), OW>>>(x.data_ptr<float>(), repeated.data_ptr<float>(), y.data_ptr<float>(), H, W, K, OH, OW, padding[0], padding[1]);
  auto check = torch::conv2d(x, w, {}, 1, torch::IntArrayRef(padding), 1, C);
  y.copy_(check);
  return y;
}
//// embedding_lookup
/// functions: embedding
/// cpp: torch::Tensor embedding(torch::Tensor table, torch::Tensor ids);
/// call: embedding(rand(10, 7), ints(4, 3)) -> torch.nn.functional.embedding(ints(4, 3), rand(10, 7))
/// call: embedding(rand(10, 7), ints(4, 3).int()) -> torch.nn.functional.embedding(ints(4, 3), rand(10, 7))
/// call: embedding(rand(10, 7).half(), ints(4, 3)) -> torch.nn.functional.embedding(ints(4, 3), rand(10, 7).half())
/// call: embedding(rand(10, 7), rand(4, 3)) !gpu NotImplementedError: "embedding_ids" not implemented for 'Float'
/// call: embedding(rand(10), ints(4)) !! RuntimeError: table must have 2 dims
#include <torch/extension.h>
template <typename scalar_t, typename index_t>
__global__ void embedding_kernel(const scalar_t* table, const index_t* ids, scalar_t* out, int64_t width) {
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[blockIdx.x * width + i] = table[ids[blockIdx.x] * width + i];
}
torch::Tensor embedding(torch::Tensor table, torch::Tensor ids) {
  TORCH_CHECK(table.ndimension() == 2, "table must have 2 dims");
  std::vector<int64_t> shape(ids.sizes().begin(), ids.sizes().end());
  shape.push_back(table.size(1));
  auto out = torch::empty(shape, table.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, table.scalar_type(), "embedding", [&] {
    AT_DISPATCH_INDEX_TYPES(ids.scalar_type(), "embedding_ids", [&] {
      embedding_kernel<scalar_t, index_t><<<ids.numel(), 32>>>(table.data_ptr<scalar_t>(), ids.data_ptr<index_t>(), out.data_ptr<scalar_t>(), table.size(1));
    });
  });
  return out;
}
