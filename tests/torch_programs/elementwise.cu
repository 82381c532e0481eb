//// vector_add
/// functions: vector_add
/// cpp: torch::Tensor vector_add(torch::Tensor a, torch::Tensor b);
/// call: vector_add(rand(1000), rand(1000) * 2) -> rand(1000) * 3
/// call: vector_add(rand(2, 3, 5), rand(2, 3, 5)) -> rand(2, 3, 5) * 2
/// call: vector_add(rand(4).double(), rand(4).double()) !! RuntimeError: expected scalar type Float but found Double
/// call: vector_add(rand(4)) !! TypeError: vector_add(): incompatible function arguments.
/// call: vector_add(None, rand(4)) !! TypeError: vector_add(): incompatible function arguments.
/// call: vector_add(a=rand(4), b=rand(4)) !! TypeError: vector_add(): incompatible function arguments.
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void vector_add_kernel(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
torch::Tensor vector_add(torch::Tensor a, torch::Tensor b) {
    auto n = a.numel();
    auto out = torch::zeros_like(a);
    const int threads = 256;
    const int blocks = (n + threads - 1) / threads;
    vector_add_kernel<<<blocks, threads>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
//// swish_any_float
/// functions: swish
/// cpp: torch::Tensor swish(torch::Tensor input);
/// call: swish(rand(130)) -> torch.nn.functional.silu(rand(130))
/// call: swish(rand(130).double()) -> torch.nn.functional.silu(rand(130).double())
/// call: swish(rand(130).half())
/// call: swish(rand(130).bfloat16()) !gpu NotImplementedError: "swish_cuda" not implemented for 'BFloat16'
/// call: swish(rand(130).int()) !gpu NotImplementedError: "swish_cuda" not implemented for 'Int'
/// call: swish(rand(5).cpu()) !! RuntimeError: input must be a CUDA tensor
#include <torch/extension.h>
#include <cuda.h>
#include <cuda_runtime.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) \
  CHECK_CUDA(x);       \
  CHECK_CONTIGUOUS(x)
template <typename scalar_t>
__device__ __forceinline__ scalar_t swish_sigmoid(scalar_t z) {
  return 1.0 / (1.0 + exp(-z));
}
template <typename scalar_t>
__global__ void swish_kernel(const scalar_t* __restrict__ in, scalar_t* __restrict__ out, size_t size) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < size) out[index] = in[index] * swish_sigmoid(in[index]);
}
torch::Tensor swish(torch::Tensor input) {
  CHECK_INPUT(input);
  auto output = torch::empty_like(input);
  const int threads = 1024;
  const dim3 blocks((input.numel() + threads - 1) / threads);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(input.scalar_type(), "swish_cuda", ([&] {
    swish_kernel<scalar_t><<<blocks, threads>>>(input.data_ptr<scalar_t>(), output.data_ptr<scalar_t>(), input.numel());
  }));
  return output;
}
//// fused_bias_gelu
/// functions: fused_bias_gelu
/// cpp: at::Tensor fused_bias_gelu(at::Tensor x, at::Tensor bias, bool approximate);
/// call: fused_bias_gelu(rand(9, 64), rand(64), True) -> torch.nn.functional.gelu(rand(9, 64) + rand(64), approximate="tanh")
/// call: fused_bias_gelu(rand(9, 64), rand(64), False) -> torch.nn.functional.gelu(rand(9, 64) + rand(64))
/// call: fused_bias_gelu(rand(9, 64), rand(32), False) !! RuntimeError: bias has 32 elements, expected 64
/// call: fused_bias_gelu(rand(9, 64).long(), rand(64).long(), True) !! RuntimeError: Expected x.dtype() == torch::kFloat32 to be true, but got false.  (Could this error message be improved?  If so, please report an enhancement request to PyTorch.)
/// call: fused_bias_gelu(rand(9, 64), rand(64), 1) -> torch.nn.functional.gelu(rand(9, 64) + rand(64), approximate="tanh")
/// cuda_flags: -O3 --use_fast_math
#include <torch/types.h>
#include <cmath>
constexpr float kSqrt2OverPi = 0.7978845608028654f;
template <bool kApproximate>
__global__ void bias_gelu_kernel(const float4* __restrict__ x, const float4* __restrict__ bias, float4* __restrict__ y, int rows, int cols4) {
  auto gelu = [](float v) {
    if constexpr (kApproximate) return 0.5f * v * (1.0f + tanhf(kSqrt2OverPi * (v + 0.044715f * v * v * v)));
    return 0.5f * v * (1.0f + erff(v * static_cast<float>(M_SQRT1_2)));
  };
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols4; i += gridDim.x * blockDim.x) {
    float4 a = x[i], b = __ldg(bias + i % cols4);
    y[i] = make_float4(gelu(a.x + b.x), gelu(a.y + b.y), gelu(a.z + b.z), gelu(a.w + b.w));
  }
}
at::Tensor fused_bias_gelu(at::Tensor x, at::Tensor bias, bool approximate) {
  TORCH_CHECK(x.dtype() == torch::kFloat32);
  TORCH_CHECK(bias.numel() == x.size(-1), "bias has ", bias.numel(), " elements, expected ", x.size(-1));
  auto y = at::empty(x.sizes(), x.options());
  const int cols4 = x.size(1) / 4, rows = x.size(0);
  auto kernel = approximate ? bias_gelu_kernel<true> : bias_gelu_kernel<false>;
  kernel<<<8, 128>>>(reinterpret_cast<const float4*>(x.data_ptr<float>()), reinterpret_cast<const float4*>(bias.data_ptr<float>()),
                     reinterpret_cast<float4*>(y.data_ptr<float>()), rows, cols4);
  return y;
}
//// clamp_scalar_args
/// functions: clamp_mul
/// cpp: torch::Tensor clamp_mul(torch::Tensor x, double low, double high, int64_t factor);
/// call: clamp_mul(rand(50), -0.5, 0.5, 3) -> rand(50).clamp(-0.5, 0.5) * 3
/// call: clamp_mul(ints(50), 1, 3, -1) -> ints(50).clamp(1, 3) * -1
/// call: clamp_mul(ints(50).short(), 1, 3, 2)
/// call: clamp_mul(rand(50), 1.0, 0.0, 3) !! ValueError: low (1) must not exceed high (0)
/// call: clamp_mul(rand(50), 1.0, 2.0, 1.5) !! TypeError: clamp_mul(): incompatible function arguments.
/// call: clamp_mul(rand(50), 1.0, 2.0, 2**70) !! TypeError: clamp_mul(): incompatible function arguments.
/// call: clamp_mul(rand(0), 1.0, 2.0, 1) -> rand(0)
/// call: clamp_mul(rand(3) > 0, 0.0, 2.0, 1) !gpu NotImplementedError: "clamp_mul" not implemented for 'Bool'
#include <torch/extension.h>
template <typename T>
__global__ void clamp_mul_kernel(const T* x, T* y, T low, T high, T factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  T v = x[i];
  v = v < low ? low : (v > high ? high : v);
  y[i] = v * factor;
}
torch::Tensor clamp_mul(torch::Tensor x, double low, double high, int64_t factor) {
  TORCH_CHECK_VALUE(low <= high, "low (", low, ") must not exceed high (", high, ")");
  if (x.numel() == 0) return x;
  torch::Tensor y = torch::empty(x.sizes(), x.options());
  AT_DISPATCH_ALL_TYPES(x.scalar_type(), "clamp_mul", [&] {
    clamp_mul_kernel<scalar_t><<<(x.numel() + 63) / 64, 64>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(),
        static_cast<scalar_t>(low), static_cast<scalar_t>(high), static_cast<scalar_t>(factor), (int)x.numel());
  });
  return y;
}
//// half2_scale
/// functions: half2_scale
/// cpp: torch::Tensor half2_scale(torch::Tensor x, float s);
/// call: half2_scale(rand(256).half(), 0.5) -> rand(256).half() * 0.5
/// call: half2_scale(rand(255).half(), 0.5) !! RuntimeError: even number of elements needed, got 255
/// call: half2_scale(rand(256), 0.5) !! RuntimeError: Half expected, got Float
/// cuda_flags: -U__CUDA_NO_HALF_OPERATORS__ -U__CUDA_NO_HALF2_OPERATORS__ -U__CUDA_NO_HALF_CONVERSIONS__
#include <torch/extension.h>
#include <cuda_fp16.h>
__global__ void half2_scale_kernel(const half2* x, half2* y, half2 s, int n2) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n2) y[i] = x[i] * s;
}
torch::Tensor half2_scale(torch::Tensor x, float s) {
  TORCH_CHECK(x.scalar_type() == at::kHalf, "Half expected, got ", x.scalar_type());
  TORCH_CHECK(x.numel() % 2 == 0, "even number of elements needed, got ", x.numel());
  auto y = torch::empty_like(x);
  int n2 = static_cast<int>(x.numel() / 2);
  half2_scale_kernel<<<(n2 + 127) / 128, 128>>>(reinterpret_cast<const half2*>(x.data_ptr<at::Half>()),
      reinterpret_cast<half2*>(y.data_ptr<at::Half>()), __float2half2_rn(s), n2);
  return y;
}
//// bfloat16_axpy
/// functions: bf16_axpy
/// cpp: torch::Tensor bf16_axpy(double a, torch::Tensor x, torch::Tensor y);
/// call: bf16_axpy(2.0, rand(301).bfloat16(), rand(301).bfloat16())
/// call: bf16_axpy(2.0, rand(301).bfloat16(), rand(300).bfloat16()) !! RuntimeError: sizes differ: [301] vs [300]
/// call: bf16_axpy(2.0, rand(301), rand(301)) !gpu RuntimeError: expected scalar type BFloat16 but found Float
#include <torch/extension.h>
#include <cuda_bf16.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void bf16_axpy_kernel(float a, const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16(a * __bfloat162float(x[i]) + __bfloat162float(y[i]));
}
torch::Tensor bf16_axpy(double a, torch::Tensor x, torch::Tensor y) {
  TORCH_CHECK(x.sizes() == y.sizes(), "sizes differ: ", x.sizes(), " vs ", y.sizes());
  const at::cuda::OptionalCUDAGuard guard(at::device_of(x));
  auto out = torch::empty_like(x, x.options());
  bf16_axpy_kernel<<<(x.numel() + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      static_cast<float>(a), reinterpret_cast<__nv_bfloat16*>(x.data_ptr<at::BFloat16>()),
      reinterpret_cast<__nv_bfloat16*>(y.data_ptr<at::BFloat16>()), reinterpret_cast<__nv_bfloat16*>(out.data_ptr<at::BFloat16>()), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
//// int8_dequantize
/// functions: dequantize
/// cpp: torch::Tensor dequantize(torch::Tensor q, torch::Tensor scale);
/// call: dequantize(ints(8, 100).char(), rand(8)) -> ints(8, 100).float() * rand(8)[:, None]
/// call: dequantize(ints(8, 100), rand(8)) !gpu RuntimeError: expected scalar type Char but found Long
#include <torch/extension.h>
__global__ void dequantize_kernel(const int8_t* q, const float* scale, float* x, int cols) {
  for (int i = threadIdx.x; i < cols; i += blockDim.x) x[blockIdx.x * cols + i] = q[blockIdx.x * cols + i] * scale[blockIdx.x];
}
torch::Tensor dequantize(torch::Tensor q, torch::Tensor scale) {
  auto x = torch::empty_like(q, torch::TensorOptions().dtype(torch::kFloat).device(q.device()));
  dequantize_kernel<<<q.size(0), 128>>>(q.data_ptr<int8_t>(), scale.data_ptr<float>(), x.data_ptr<float>(), q.size(1));
  return x;
}
//// dropout_mask
/// functions: masked_scale
/// cpp: std::vector<at::Tensor> masked_scale(const at::Tensor x, const at::Tensor mask, const double p);
/// call: masked_scale(rand(65), ints(65) > 4, 0.5) -> [rand(65) * (ints(65) > 4) * 2, (ints(65) > 4).sum()]
/// call: masked_scale(rand(65), ints(65), 0.5) !! RuntimeError: mask must be bool but is long int
/// call: masked_scale(rand(65), ints(65) > 4, 1.0) !! RuntimeError: p must be in [0, 1), got 1
#include <ATen/ATen.h>
#include <torch/extension.h>
#include <vector>
template <typename scalar_t>
__global__ void masked_scale_kernel(const scalar_t* x, const bool* mask, scalar_t* y, scalar_t scale, int n) {
  const auto i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = mask[i] ? x[i] * scale : scalar_t(0);
}
std::vector<at::Tensor> masked_scale(const at::Tensor x, const at::Tensor mask, const double p) {
  AT_ASSERTM(true, "never");
  TORCH_CHECK(mask.scalar_type() == at::ScalarType::Bool, "mask must be bool but is ", mask.scalar_type() == at::kLong ? "long int" : "something else");
  TORCH_CHECK(p >= 0 && p < 1, "p must be in [0, 1), got ", p);
  at::Tensor y = at::zeros(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "masked_scale", [&]() {
    masked_scale_kernel<<<4, 64>>>(x.data_ptr<scalar_t>(), mask.data_ptr<bool>(), y.data_ptr<scalar_t>(), static_cast<scalar_t>(1.0 / (1.0 - p)), (int)x.numel());
  });
  return {y, mask.sum()};
}
//// structure_of_coefficients
/// functions: polynomial
/// cpp: torch::Tensor polynomial(torch::Tensor x, std::vector<double> coefficients);
/// call: polynomial(rand(40), [1.0, 2.0, 3.0]) -> 1 + 2 * rand(40) + 3 * rand(40) ** 2
/// call: polynomial(rand(40), (1, 2)) -> 1 + 2 * rand(40)
/// call: polynomial(rand(40), []) !! RuntimeError: no coefficients
/// call: polynomial(rand(40), 3.0) !! TypeError: polynomial(): incompatible function arguments.
/// call: polynomial(rand(40), ["a"]) !! TypeError: polynomial(): incompatible function arguments.
#include <torch/extension.h>
struct Coefficients { float c[8]; };
__global__ void polynomial_kernel(const float* __restrict__ x, float* __restrict__ y, Coefficients k) {
  float result = 0;
#pragma unroll
  for (int j = 7; j >= 0; --j) result = result * x[threadIdx.x] + k.c[j];
  y[threadIdx.x] = result;
}
torch::Tensor polynomial(torch::Tensor x, std::vector<double> coefficients) {
  TORCH_CHECK(!coefficients.empty(), "no coefficients");
  Coefficients k{};
  for (size_t i = 0; i < coefficients.size() && i < 8; i++) k.c[i] = coefficients[i];
  auto y = torch::empty_like(x);
  polynomial_kernel<<<1, x.numel()>>>(x.data_ptr<float>(), y.data_ptr<float>(), k);
  cudaDeviceSynchronize();
  return y;
}
//// dispatch_switch_cases
/// functions: twice_plus
/// cpp: torch::Tensor twice_plus(torch::Tensor x);
/// call: twice_plus(rand(33)) -> rand(33) * 2 + 1
/// call: twice_plus(rand(33).half())
/// call: twice_plus(rand(33).bfloat16())
/// call: twice_plus(ints(33).int()) -> ints(33).int() * 2 + 1
/// call: twice_plus(ints(33).byte()) !gpu NotImplementedError: "twice_plus" not implemented for 'Byte'
#include <torch/extension.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/cuda/detail/KernelUtils.h>
template <typename T>
__global__ void twice_plus_kernel(const T* x, T* y, int64_t n) {
  using opmath_t = at::opmath_type<T>;
  CUDA_KERNEL_LOOP(i, n) { y[i] = static_cast<T>(static_cast<opmath_t>(x[i]) * opmath_t(2) + opmath_t(1)); }
}
torch::Tensor twice_plus(torch::Tensor x) {
  auto y = torch::empty_like(x);
  auto run = [&](auto value) {
    using T = decltype(value);
    twice_plus_kernel<T><<<2, 32>>>(x.data_ptr<T>(), y.data_ptr<T>(), x.numel());
  };
  AT_DISPATCH_SWITCH(x.scalar_type(), "twice_plus",
    AT_DISPATCH_CASE_FLOATING_TYPES([&] { run(scalar_t{}); })
    AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] { run(scalar_t{}); })
    AT_DISPATCH_CASE(at::kInt, [&] { run(scalar_t{}); }));
  return y;
}
