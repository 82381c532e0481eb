//// softmax_online
/// functions: softmax_forward
/// cpp: torch::Tensor softmax_forward(torch::Tensor input);
/// call: softmax_forward(rand(12, 333)) -> rand(12, 333).softmax(1)
/// call: softmax_forward(rand(2, 3, 4)) !! RuntimeError: Expected 2D input, but got 3D
/// call: softmax_forward(rand(2, 4).half()) !gpu RuntimeError: expected scalar type Float but found Half
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <math.h>

__global__ void softmax_forward_kernel(const float* __restrict__ input, float* __restrict__ output, int N, int D) {
    int row = blockIdx.x;
    if (row >= N) return;
    extern __shared__ float sdata[];
    float max_val = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < D; i += blockDim.x) {
        float v = input[row * D + i];
        if (v > max_val) { sum *= __expf(max_val - v); max_val = v; }
        sum += __expf(v - max_val);
    }
    float* maxes = sdata;
    float* sums = sdata + blockDim.x;
    maxes[threadIdx.x] = max_val;
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) {
            float a = maxes[threadIdx.x], b = maxes[threadIdx.x + s], m = max(a, b);
            sums[threadIdx.x] = (a == -INFINITY ? 0.f : sums[threadIdx.x] * __expf(a - m)) + (b == -INFINITY ? 0.f : sums[threadIdx.x + s] * __expf(b - m));
            maxes[threadIdx.x] = m;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < D; i += blockDim.x) output[row * D + i] = __expf(input[row * D + i] - maxes[0]) / sums[0];
}

torch::Tensor softmax_forward(torch::Tensor input) {
    TORCH_CHECK(input.dim() == 2, "Expected 2D input, but got ", input.dim(), "D");
    auto output = torch::empty_like(input);
    int N = input.size(0), D = input.size(1);
    softmax_forward_kernel<<<N, 128, 2 * 128 * sizeof(float)>>>(input.data_ptr<float>(), output.data_ptr<float>(), N, D);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) {
        throw std::runtime_error(std::string("CUDA kernel failed: ") + cudaGetErrorString(err));
    }
    return output;
}
//// layer_norm_affine
/// functions: layer_norm
/// cpp: torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, float eps = 1e-5);
/// call: layer_norm(rand(3, 5, 96), rand(96), rand(96), 1e-5) -> torch.nn.functional.layer_norm(rand(3, 5, 96), (96,), rand(96), rand(96))
/// call: layer_norm(rand(3, 5, 96), rand(95), rand(96), 1e-5) !! RuntimeError: weight has the wrong size
/// call: layer_norm(rand(3, 5, 96), rand(96), None, 1e-5) !! TypeError: layer_norm(): incompatible function arguments.
#include <torch/extension.h>
__global__ void layer_norm_kernel(const float* x, const float* w, const float* b, float* y, int n, float eps) {
  __shared__ float s_mean, s_inv;
  __shared__ float buffer[2][32];
  const float* row = x + (size_t)blockIdx.x * n;
  float sum = 0, sq = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { sum += row[i]; sq += row[i] * row[i]; }
  for (int o = 16; o > 0; o >>= 1) { sum += __shfl_down_sync(0xffffffffu, sum, o); sq += __shfl_down_sync(0xffffffffu, sq, o); }
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) { buffer[0][warp] = sum; buffer[1][warp] = sq; }
  __syncthreads();
  if (threadIdx.x == 0) {
    float a = 0, c = 0;
    for (int i = 0; i < blockDim.x / 32; ++i) { a += buffer[0][i]; c += buffer[1][i]; }
    s_mean = a / n;
    s_inv = rsqrtf(c / n - s_mean * s_mean + eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] = (row[i] - s_mean) * s_inv * w[i] + b[i];
}
torch::Tensor layer_norm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, float eps) {
  const auto n = x.sizes().back();
  TORCH_CHECK(weight.numel() == n && weight.dim() == 1, "weight has the wrong size");
  const auto rows = x.numel() / n;
  auto y = torch::empty_like(x);
  layer_norm_kernel<<<rows, 128>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), n, eps);
  return y;
}
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
//// group_norm_shared
/// functions: group_norm
/// cpp: torch::Tensor group_norm(torch::Tensor x, int64_t groups);
/// call: group_norm(rand(2, 8, 5, 5), 4) -> torch.nn.functional.group_norm(rand(2, 8, 5, 5), 4)
/// call: group_norm(rand(2, 8, 5, 5), 3) !! RuntimeError: 8 channels cannot be split into 3 groups
/// call: group_norm(rand(2, 8, 5, 5).permute(0, 2, 3, 1), 4) !! RuntimeError: x must be contiguous
#include <torch/extension.h>
__global__ void group_norm_kernel(const float* x, float* y, int count) {
  __shared__ double total, square;
  if (threadIdx.x == 0) {
    total = square = 0;
    for (int i = 0; i < count; ++i) { double v = x[blockIdx.x * count + i]; total += v; square += v * v; }
  }
  __syncthreads();
  double mean = total / count, inv = rsqrt(square / count - mean * mean + 1e-5);
  for (int i = threadIdx.x; i < count; i += blockDim.x) y[blockIdx.x * count + i] = (x[blockIdx.x * count + i] - mean) * inv;
}
torch::Tensor group_norm(torch::Tensor x, int64_t groups) {
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");
  const int64_t N = x.size(0), C = x.size(1);
  TORCH_CHECK(C % groups == 0, C, " channels cannot be split into ", groups, " groups");
  auto y = torch::empty(x.sizes(), x.options());
  group_norm_kernel<<<N * groups, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel() / (N * groups));
  return y;
}
//// max_pool2d_indices
/// functions: max_pool2d
/// cpp: std::tuple<torch::Tensor, torch::Tensor> max_pool2d(torch::Tensor x, int kernel, int stride, int padding);
/// call: max_pool2d(rand(2, 3, 9, 9), 3, 2, 1) -> torch.nn.functional.max_pool2d(rand(2, 3, 9, 9), 3, 2, 1, return_indices=True)
/// call: max_pool2d(rand(2, 3, 2, 2), 5, 1, 0) !! RuntimeError: output would be -2x-2
/// call: max_pool2d(rand(2, 3, 9, 9), 3.0, 2, 1) !! TypeError: max_pool2d(): incompatible function arguments.
#include <torch/extension.h>
__global__ void max_pool2d_kernel(const float* x, float* y, int64_t* indices, int H, int W, int OH, int OW, int k, int s, int p, int total) {
  int idx = blockIdx.x * blockDim.x + threadIdx.x;
  if (idx >= total) return;
  int ow = idx % OW, oh = (idx / OW) % OH, nc = idx / (OW * OH);
  float best = -INFINITY; int64_t where = -1;
  for (int i = 0; i < k; ++i) for (int j = 0; j < k; ++j) {
    int h = oh * s - p + i, w = ow * s - p + j;
    if (h < 0 || h >= H || w < 0 || w >= W) continue;
    float v = x[(nc * H + h) * W + w];
    if (v > best) { best = v; where = h * W + w; }
  }
  y[idx] = best; indices[idx] = where;
}
std::tuple<torch::Tensor, torch::Tensor> max_pool2d(torch::Tensor x, int kernel, int stride, int padding) {
  const int N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
  const int OH = (H + 2 * padding - kernel) / stride + 1, OW = (W + 2 * padding - kernel) / stride + 1;
  TORCH_CHECK(OH > 0 && OW > 0, "output would be ", OH, "x", OW);
  auto y = torch::empty({N, C, OH, OW}, x.options());
  auto indices = torch::empty({N, C, OH, OW}, x.options().dtype(torch::kLong));
  const int total = y.numel();
  max_pool2d_kernel<<<(total + 127) / 128, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), indices.data_ptr<int64_t>(), H, W, OH, OW, kernel, stride, padding, total);
  return {y, indices};
}
//// avg_pool1d
/// functions: avg_pool1d_forward
/// cpp: torch::Tensor avg_pool1d_forward(const torch::Tensor &x, int kernel_size, int stride, int padding);
/// call: avg_pool1d_forward(rand(2, 3, 20), 4, 2, 1) -> torch.nn.functional.avg_pool1d(rand(2, 3, 20), 4, 2, 1)
/// call: avg_pool1d_forward(rand(3, 20), 4, 2, 1) !! RuntimeError: x must be 3D
/// call: avg_pool1d_forward(rand(2, 3, 20), 0, 2, 1) !! RuntimeError: Invalid kernel parameters.
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void avg_pool1d_kernel(const float *__restrict__ input, float *output, const int kernel_size, const int stride, const int padding,
                                  const int input_length, const int output_length, const int channels) {
    const int o = threadIdx.x + blockIdx.x * blockDim.x, channel = blockIdx.y, batch = blockIdx.z;
    if (o >= output_length) return;
    float sum = 0.0f;
    for (int k = 0; k < kernel_size; ++k) {
        int pos = o * stride + k - padding;
        if (pos >= 0 && pos < input_length) sum += input[(batch * channels + channel) * input_length + pos];
    }
    output[(batch * channels + channel) * output_length + o] = sum / kernel_size;
}
torch::Tensor avg_pool1d_forward(const torch::Tensor &x, int kernel_size, int stride, int padding) {
    TORCH_CHECK(x.dim() == 3, "x must be 3D");
    TORCH_CHECK(kernel_size > 0 && stride > 0 && padding >= 0, "Invalid kernel parameters.");
    const int batch = x.size(0), channels = x.size(1), length = x.size(2);
    const int out = (length + 2 * padding - kernel_size) / stride + 1;
    auto output = torch::empty({batch, channels, out}, x.options());
    dim3 threads(256), grid((out + threads.x - 1) / threads.x, channels, batch);
    avg_pool1d_kernel<<<grid, threads>>>(x.data_ptr<float>(), output.data_ptr<float>(), kernel_size, stride, padding, length, out, channels);
    return output;
}
//// conv2d_direct
/// call: forward(rand(2, 3, 10, 10), rand(4, 3, 3, 3), rand(4)) -> torch.nn.functional.conv2d(rand(2, 3, 10, 10), rand(4, 3, 3, 3), rand(4))
/// call: forward(rand(2, 3, 10, 10), rand(4, 3, 3, 3), None, stride=2, padding=1) -> torch.nn.functional.conv2d(rand(2, 3, 10, 10), rand(4, 3, 3, 3), None, 2, 1)
/// call: forward(rand(2, 3, 10, 10), rand(4, 2, 3, 3), None) !! RuntimeError: channels: 3 in x, 2 in weight
/// call: forward(x=rand(2, 3, 10, 10)) !! TypeError: forward(): incompatible function arguments.
/// call: forward(rand(2, 3, 10, 10), rand(4, 3, 3, 3), rand(4), dilation=2) !! TypeError: forward(): incompatible function arguments.
#include <torch/extension.h>
#include <optional>
__global__ void conv2d_kernel(const float* x, const float* w, const float* b, float* y, int C, int H, int W, int O, int KH, int KW, int OH, int OW, int stride, int pad, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int ow = i % OW, oh = i / OW % OH, o = i / OW / OH % O, batch = i / OW / OH / O;
  float sum = b != nullptr ? b[o] : 0.0f;
  for (int c = 0; c < C; ++c)
    for (int kh = 0; kh < KH; ++kh)
      for (int kw = 0; kw < KW; ++kw) {
        int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
        if (ih >= 0 && ih < H && iw >= 0 && iw < W) sum += x[((batch * C + c) * H + ih) * W + iw] * w[((o * C + c) * KH + kh) * KW + kw];
      }
  y[i] = sum;
}
torch::Tensor conv2d_forward(torch::Tensor x, torch::Tensor weight, std::optional<torch::Tensor> bias, int stride, int padding) {
  TORCH_CHECK(x.size(1) == weight.size(1), "channels: ", x.size(1), " in x, ", weight.size(1), " in weight");
  const float* bias_ptr = nullptr;
  if (bias.has_value() && bias.value().defined()) bias_ptr = bias.value().data_ptr<float>();
  int OH = (x.size(2) + 2 * padding - weight.size(2)) / stride + 1, OW = (x.size(3) + 2 * padding - weight.size(3)) / stride + 1;
  auto y = torch::zeros({x.size(0), weight.size(0), OH, OW}, x.options());
  int n = y.numel();
  conv2d_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), weight.data_ptr<float>(), bias_ptr, y.data_ptr<float>(), x.size(1), x.size(2), x.size(3),
      weight.size(0), weight.size(2), weight.size(3), OH, OW, stride, padding, n);
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &conv2d_forward, "convolution", py::arg("x"), py::arg("weight"), py::arg("bias") = py::none(), py::arg("stride") = 1, py::arg("padding") = 0);
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
//// cross_entropy_loss
/// functions: cross_entropy
/// cpp: torch::Tensor cross_entropy(torch::Tensor logits, torch::Tensor targets);
/// call: cross_entropy(rand(6, 10), ints(6)) -> torch.nn.functional.cross_entropy(rand(6, 10), ints(6))
/// call: cross_entropy(rand(6, 10), ints(5)) !! RuntimeError: 6 rows but 5 targets
#include <torch/extension.h>
__global__ void cross_entropy_kernel(const float* logits, const int64_t* targets, float* losses, int rows, int classes) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  const float* row = logits + r * classes;
  float m = row[0];
  for (int i = 1; i < classes; ++i) m = fmaxf(m, row[i]);
  float s = 0;
  for (int i = 0; i < classes; ++i) s += expf(row[i] - m);
  losses[r] = logf(s) + m - row[targets[r]];
}
torch::Tensor cross_entropy(torch::Tensor logits, torch::Tensor targets) {
  TORCH_CHECK(logits.size(0) == targets.size(0), logits.size(0), " rows but ", targets.size(0), " targets");
  auto losses = torch::empty({logits.size(0)}, logits.options());
  cross_entropy_kernel<<<1, 128>>>(logits.data_ptr<float>(), targets.data_ptr<int64_t>(), losses.data_ptr<float>(), logits.size(0), logits.size(1));
  return losses.mean();
}
//// residual_fusion_chain
/// functions: fused_block
/// cpp: torch::Tensor fused_block(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor residual);
/// call: fused_block(rand(5, 16), rand(8, 16), rand(8), rand(5, 8)) -> torch.nn.functional.linear(rand(5, 16), rand(8, 16), rand(8)).sigmoid() + rand(5, 8)
/// call: fused_block(rand(5, 16), rand(8, 15), rand(8), rand(5, 8)) !! RuntimeError: mat1 and mat2 shapes cannot be multiplied (5x16 and 15x8)
#include <torch/extension.h>
__global__ void epilogue_kernel(float* y, const float* b, const float* r, int cols, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 1.f / (1.f + expf(-(y[i] + b[i % cols]))) + r[i];
}
torch::Tensor fused_block(torch::Tensor x, torch::Tensor w, torch::Tensor b, torch::Tensor residual) {
  auto y = torch::matmul(x, w.t());
  int n = y.numel();
  epilogue_kernel<<<(n + 255) / 256, 256>>>(y.data_ptr<float>(), b.contiguous().data_ptr<float>(), residual.contiguous().data_ptr<float>(), y.size(1), n);
  return y;
}
