//// module_of_many
/// call: forward(rand(40), 2.0) -> rand(40) * 2
/// call: backward(rand(40), 2.0) -> rand(40) * 2
/// call: inference(rand(40)) -> rand(40)
/// call: Version() -> "1.2"
/// call: forward(rand(40)) -> rand(40)
/// call: forward(scale=3.0, input=rand(40)) -> rand(40) * 3
/// call: forward(rand(40), scale=None) !! TypeError: forward(): incompatible function arguments.
/// call: forward(rand(40), 1.0, 2.0) !! TypeError: forward(): incompatible function arguments.
/// call: sizes(rand(4, 5)) -> ([4, 5], 20, True)
/// call: kinds([1, 2], ["a"], (1, "x")) -> 4
/// call: kinds([1, 2], [1], (1, "x")) !! TypeError: kinds(): incompatible function arguments.
#include <torch/extension.h>
#include <map>
#include <string>
__global__ void many_kernel(const float* x, float* y, float s, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * s;
}
static torch::Tensor scaled(const torch::Tensor& input, float scale) {
  auto output = torch::empty_like(input);
  const auto n = static_cast<int>(input.numel());
  many_kernel<<<(n + 127) / 128, 128>>>(input.data_ptr<float>(), output.data_ptr<float>(), scale, n);
  return output;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "several functions";
  m.def("forward", &scaled, "forward (CUDA)", py::arg("input"), py::arg("scale") = 1.0f);
  m.def("backward", [](torch::Tensor grad, double scale) { return scaled(grad.contiguous(), scale); }, "backward (CUDA)");
  m.def("inference", [](const torch::Tensor& x) { torch::NoGradGuard no_grad; return scaled(x, 1.f); });
  m.def("Version", []() -> std::string { return "1.2"; });
  m.def("sizes", [](torch::Tensor x) { return std::make_tuple(x.sizes().vec(), x.numel(), x.is_contiguous()); });
  m.def("kinds", [](std::vector<int> a, std::vector<std::string> b, std::tuple<int, std::string> c) {
    return (int)a.size() + (int)b.size() + (int)std::get<1>(c).size(); });
}
//// autograd_pair
/// functions: tanh_forward, tanh_backward
/// cpp: torch::Tensor tanh_forward(torch::Tensor x); torch::Tensor tanh_backward(torch::Tensor grad, torch::Tensor y);
/// call: tanh_forward(rand(60).requires_grad_())
/// call: tanh_backward(rand(60), rand(60).tanh()) -> rand(60) * (1 - rand(60).tanh() ** 2)
/// call: tanh_backward(rand(60), rand(61)) !! RuntimeError: size mismatch: [60] and [61]
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
namespace {
template <typename scalar_t>
__global__ void tanh_kernel(const scalar_t* x, scalar_t* y, int64_t n) { const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; if (i < n) y[i] = ::tanh(x[i]); }
template <typename scalar_t>
__global__ void tanh_grad_kernel(const scalar_t* g, const scalar_t* y, scalar_t* d, int64_t n) { const int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; if (i < n) d[i] = g[i] * (scalar_t(1) - y[i] * y[i]); }
inline int blocks_for(int64_t n) { return static_cast<int>((n + 255) / 256); }
}  // namespace
torch::Tensor tanh_forward(torch::Tensor x) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "tanh_forward", [&] {
    tanh_kernel<scalar_t><<<blocks_for(x.numel()), 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
torch::Tensor tanh_backward(torch::Tensor grad, torch::Tensor y) {
  TORCH_CHECK(grad.sizes() == y.sizes(), "size mismatch: ", grad.sizes(), " and ", y.sizes());
  const at::cuda::CUDAGuard guard{grad.device()};
  at::cuda::CUDAStream stream = at::cuda::getCurrentCUDAStream();
  auto d = torch::empty_like(grad);
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "tanh_backward", [&] {
    tanh_grad_kernel<scalar_t><<<blocks_for(d.numel()), 256, 0, stream.stream()>>>(grad.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), d.data_ptr<scalar_t>(), d.numel());
  });
  return d;
}
//// launch_errors
/// functions: bad_launch
/// cpp: void bad_launch(int how);
/// call: bad_launch(0) -> None
/// call: bad_launch(1) !gpu RuntimeError: launch failed: invalid 
/// call: bad_launch(2) !gpu
/// call: bad_launch(3) !gpu
/// call: bad_launch(4) !gpu AcceleratorError: CUDA error: invalid device ordinal
/// call: bad_launch(-1) -> None
#include <torch/extension.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/Exceptions.h>
__global__ void bad_launch_kernel() {}
void bad_launch(int how) {
  if (how == 1) {
    bad_launch_kernel<<<1, 4096>>>();
    auto e = cudaGetLastError();
    TORCH_CHECK(e == cudaSuccess, "launch failed: ", cudaGetErrorString(e));
  }
  if (how == 2) { bad_launch_kernel<<<0, 1>>>(); C10_CUDA_KERNEL_LAUNCH_CHECK(); }
  if (how == 3) { bad_launch_kernel<<<1, 1, 1 << 20>>>(); AT_CUDA_CHECK(cudaGetLastError()); }
  if (how == 4) C10_CUDA_CHECK(cudaSetDevice(1000));
}
//// stream_and_device_queries
/// functions: queries
/// cpp: std::vector<int64_t> queries(torch::Tensor x);
/// call: queries(rand(3))
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/CUDAFunctions.h>
__global__ void noop_kernel() {}
std::vector<int64_t> queries(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda());
  auto stream = at::cuda::getCurrentCUDAStream(x.get_device());
  const cudaDeviceProp* prop = at::cuda::getCurrentDeviceProperties();
  noop_kernel<<<1, 1, 0, stream>>>();
  stream.synchronize();
  cudaStream_t raw = stream;
  return {prop->multiProcessorCount, prop->warpSize, prop->major, x.device().index(), (int64_t)(raw == stream.stream()), stream.device_index(),
          (int64_t)stream.query(), c10::cuda::device_count() > 0, (int64_t)c10::cuda::current_device(), at::cuda::warp_size()};
}
//// type_method_dispatch
/// functions: legacy
/// cpp: at::Tensor legacy(at::Tensor x);
/// call: legacy(rand(12)) -> rand(12) + 1
/// call: legacy(rand(12).double()) -> rand(12).double() + 1
/// call: legacy(rand(2).cpu()) !! RuntimeError: x must be a CUDA tensor
/// torch: refused
#include <torch/extension.h>
#define CHECK_CUDA(x) AT_ASSERTM(x.type().is_cuda(), #x " must be a CUDA tensor")
template <typename scalar_t>
__global__ void legacy_kernel(const scalar_t* x, scalar_t* y, int n) { int i = threadIdx.x; if (i < n) y[i] = x[i] + static_cast<scalar_t>(1); }
at::Tensor legacy(at::Tensor x) {
  TORCH_CHECK(x.type().is_cuda(), "x must be a CUDA tensor");
  auto y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.type(), "legacy", ([&] { legacy_kernel<scalar_t><<<1, 32>>>(x.data<scalar_t>(), y.data<scalar_t>(), x.numel()); }));
  return y;
}
//// two_texts_one_header
/// functions: add_one, times_two
/// cpp: torch::Tensor add_one(torch::Tensor x); torch::Tensor times_two(torch::Tensor x) { return x.mul(2); }
/// call: add_one(rand(9)) -> rand(9) + 1
/// call: times_two(rand(9)) -> rand(9) * 2
#include <torch/types.h>
using torch::Tensor;
using namespace torch::indexing;
__global__ void add_one_kernel(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1.f; }
Tensor add_one(Tensor x) {
  Tensor y = x.index({Slice()}).clone();
  add_one_kernel<<<1, 32>>>(y.data_ptr<float>(), static_cast<int>(y.numel()));
  return y;
}
//// half_host_arithmetic
/// functions: scaled_by_half
/// cpp: torch::Tensor scaled_by_half(torch::Tensor x, double s);
/// call: scaled_by_half(rand(20).half(), 0.3)
/// call: scaled_by_half(rand(20).bfloat16(), 0.3)
/// call: scaled_by_half(rand(20), 0.3) !gpu NotImplementedError: "scaled_by_half" not implemented for 'Float'
#include <torch/extension.h>
template <typename T>
__global__ void scaled_by_half_kernel(const T* x, T* y, T s, int n) {
  int i = threadIdx.x;
  if (i < n) { T v = x[i] * s; v += T(1); y[i] = v > T(0.5f) ? -v : v / T(2); }
}
torch::Tensor scaled_by_half(torch::Tensor x, double s) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_REDUCED_FLOATING_TYPES(x.scalar_type(), "scaled_by_half", [&] {
    scalar_t value = static_cast<scalar_t>(s);
    value = value * static_cast<scalar_t>(2.0f) - scalar_t(0.1f);
    scaled_by_half_kernel<scalar_t><<<1, 32>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), value, x.numel());
  });
  return y;
}
//// optional_outputs
/// functions: most
/// cpp: std::tuple<torch::Tensor, c10::optional<torch::Tensor>, double, bool> most(torch::Tensor x, bool with_index, c10::optional<int64_t> start);
/// call: most(rand(4, 9), True, None)
/// call: most(rand(4, 9), False, 3)
/// call: most(rand(4, 9), False, start=3) !! TypeError: most(): incompatible function arguments.
/// call: most(rand(4, 9), False, 3.5) !! TypeError: most(): incompatible function arguments.
#include <torch/extension.h>
__global__ void most_kernel(const float* x, float* best, int* where, int n, int start) {
  int first = start;
  for (int i = start + 1; i < n; ++i) if (x[threadIdx.x * n + i] > x[threadIdx.x * n + first]) first = i;
  best[threadIdx.x] = x[threadIdx.x * n + first];
  if (where) where[threadIdx.x] = first;
}
std::tuple<torch::Tensor, c10::optional<torch::Tensor>, double, bool> most(torch::Tensor x, bool with_index, c10::optional<int64_t> start) {
  auto best = torch::empty({x.size(0)}, x.options());
  c10::optional<torch::Tensor> where = c10::nullopt;
  if (with_index) where = torch::empty({x.size(0)}, x.options().dtype(torch::kInt));
  most_kernel<<<1, x.size(0)>>>(x.data_ptr<float>(), best.data_ptr<float>(), where ? where->data_ptr<int>() : nullptr, x.size(1), start.value_or(0));
  return std::make_tuple(best, where, 0.5, with_index);
}
//// strided_views
/// functions: add_diagonal_
/// cpp: torch::Tensor add_diagonal_(torch::Tensor x, double v);
/// call: add_diagonal_(rand(4, 4), 2.0) -> rand(4, 4) + 2 * torch.eye(4, device=DEVICE)
/// call: add_diagonal_(rand(4, 6).t(), 2.0) -> rand(4, 6).t() + 2 * torch.eye(6, 4, device=DEVICE)
/// call: add_diagonal_(rand(8, 8)[::2, 1::2], 2.0)
/// call: add_diagonal_(rand(3, 3, 3), 1.0) !! RuntimeError: diagonal: expected 2 dims
#include <torch/extension.h>
__global__ void add_diagonal_kernel(float* x, int64_t s0, int64_t s1, float v, int n) { if (threadIdx.x < n) x[threadIdx.x * (s0 + s1)] += v; }
torch::Tensor add_diagonal_(torch::Tensor x, double v) {
  TORCH_CHECK(x.dim() == 2, "diagonal: expected 2 dims");
  const int n = std::min(x.size(0), x.size(1));
  add_diagonal_kernel<<<1, 32>>>(x.data_ptr<float>(), x.stride(0), x.stride(1), static_cast<float>(v), n);
  return x;
}
//// list_of_tensors_pointers
/// functions: fused_list_scale
/// cpp: std::vector<torch::Tensor> fused_list_scale(const std::vector<torch::Tensor>& list, double s);
/// call: fused_list_scale([rand(3), rand(5), rand(2, 2)], 2.0) -> [rand(3) * 2, rand(5) * 2, rand(2, 2) * 2]
/// call: fused_list_scale((rand(3),), 2.0) -> [rand(3) * 2]
/// call: fused_list_scale([], 2.0) !! RuntimeError: no tensors
/// call: fused_list_scale([rand(3), 4], 2.0) !! TypeError: fused_list_scale(): incompatible function arguments.
/// call: fused_list_scale(rand(3), 2.0) !gpu
#include <torch/extension.h>
struct Pointers { const float* in[4]; float* out[4]; int n[4]; };
__global__ void list_scale_kernel(Pointers p, float s) {
  const int which = blockIdx.x;
  for (int i = threadIdx.x; i < p.n[which]; i += blockDim.x) p.out[which][i] = p.in[which][i] * s;
}
std::vector<torch::Tensor> fused_list_scale(const std::vector<torch::Tensor>& list, double s) {
  const torch::TensorList xs = list;
  TORCH_CHECK(xs.size() > 0, "no tensors");
  Pointers p;
  std::vector<torch::Tensor> outputs;
  outputs.reserve(xs.size());
  for (const auto i : c10::irange(xs.size())) {
    outputs.emplace_back(torch::empty_like(xs[i]));
    p.in[i] = xs[i].data_ptr<float>(); p.out[i] = outputs.back().data_ptr<float>(); p.n[i] = xs[i].numel();
  }
  list_scale_kernel<<<xs.size(), 32>>>(p, s);
  return outputs;
}
//// scalar_arguments
/// functions: fill_like
/// cpp: torch::Tensor fill_like(torch::Tensor x, uint8_t a, int16_t b, unsigned int c, size_t d, long long e, bool g, float h);
/// call: fill_like(rand(2), 255, -5, 7, 9, -11, True, 0.25)
/// call: fill_like(rand(2), 256, -5, 7, 9, -11, True, 0.25) !! TypeError: fill_like(): incompatible function arguments.
/// call: fill_like(rand(2), -1, -5, 7, 9, -11, True, 0.25) !! TypeError: fill_like(): incompatible function arguments.
/// call: fill_like(rand(2), 1, 40000, 7, 9, -11, True, 0.25) !! TypeError: fill_like(): incompatible function arguments.
/// call: fill_like(rand(2), 1, 4, 7, -9, -11, True, 0.25) !! TypeError: fill_like(): incompatible function arguments.
/// call: fill_like(rand(2), True, False, 7, 9, -11, None, 1e300)
#include <torch/extension.h>
__global__ void fill_like_kernel(float* y, float v, int n) { if (threadIdx.x < n) y[threadIdx.x] = v; }
torch::Tensor fill_like(torch::Tensor x, uint8_t a, int16_t b, unsigned int c, size_t d, long long e, bool g, float h) {
  auto y = torch::full_like(x, 0);
  fill_like_kernel<<<1, 8>>>(y.data_ptr<float>(), a + b + c + d + e + g + h, y.numel());
  return y;
}
//// side_streams
/// functions: on_side_stream
/// cpp: torch::Tensor on_side_stream(torch::Tensor x, bool high);
/// call: on_side_stream(rand(100), False) -> rand(100) * 2 + 1
/// call: on_side_stream(rand(100), True) -> rand(100) * 2 + 1
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void side_stream_kernel(const float* x, float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i] * 2.f; }
torch::Tensor on_side_stream(torch::Tensor x, bool high) {
  at::cuda::CUDAStream before = at::cuda::getCurrentCUDAStream(), side = at::cuda::getStreamFromPool(high);
  TORCH_CHECK(side != before && side.stream() != nullptr, "the side stream is the current one");
  torch::Tensor y;
  C10_CUDA_CHECK(cudaStreamSynchronize(before));
  {
    at::cuda::CUDAStreamGuard guard(side);
    TORCH_CHECK(at::cuda::getCurrentCUDAStream().stream() == side.stream(), "the guard does not switch streams");
    y = torch::empty_like(x);
    side_stream_kernel<<<1, 128, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    y.add_(1);
    side.synchronize();
  }
  TORCH_CHECK(at::cuda::getCurrentCUDAStream() == before, "the guard does not switch back");
  return y;
}
//// atomics_of_halves
/// functions: add_all
/// cpp: torch::Tensor add_all(torch::Tensor x);
/// call: add_all(ints(64).half()) -> ints(64).half().sum().reshape(1)
/// call: add_all(ints(64).bfloat16()) -> ints(64).bfloat16().sum().reshape(1)
/// call: add_all(ints(64).float()) -> ints(64).float().sum().reshape(1)
/// call: add_all(ints(64).double()) -> ints(64).double().sum().reshape(1)
#include <torch/extension.h>
#include <THC/THCAtomics.cuh>
#include <THC/THCDeviceUtils.cuh>
template <typename scalar_t>
__global__ void C10_LAUNCH_BOUNDS_1(64) add_all_kernel(const scalar_t* x, scalar_t* sum) {
  float v = static_cast<float>(__ldg(x + threadIdx.x));
  for (int offset = C10_WARP_SIZE / 2; offset > 0; offset /= 2) v += WARP_SHFL_DOWN(v, offset);
  if (threadIdx.x % 32 == 0) gpuAtomicAdd(sum, static_cast<scalar_t>(v));
}
torch::Tensor add_all(torch::Tensor x) {
  auto sum = torch::zeros({1}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "add_all", [&] {
    add_all_kernel<scalar_t><<<1, 64>>>(x.data_ptr<scalar_t>(), sum.data_ptr<scalar_t>());
  });
  return sum;
}
//// small_atomics
/// functions: counted
/// cpp: torch::Tensor counted(torch::Tensor x, int64_t bins);
/// call: counted(ints(64).clamp(0, 6), 7) -> torch.bincount(ints(64).clamp(0, 6), minlength=7)
/// call: counted(ints(64).clamp(0, 6).to(torch.uint8), 7) -> torch.bincount(ints(64).clamp(0, 6), minlength=7).to(torch.uint8)
/// call: counted(ints(64).clamp(0, 6).to(torch.int8), 7) -> torch.bincount(ints(64).clamp(0, 6), minlength=7).to(torch.int8)
/// call: counted(ints(64).clamp(0, 6).to(torch.int16), 7) -> torch.bincount(ints(64).clamp(0, 6), minlength=7).to(torch.int16)
/// call: counted(ints(64).clamp(0, 6).int(), 7) -> torch.bincount(ints(64).clamp(0, 6), minlength=7).int()
#include <torch/extension.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/cuda/CUDAException.h>
template <typename scalar_t>
__global__ void count_kernel(const scalar_t* x, scalar_t* counts, int n) {
  CUDA_KERNEL_LOOP(i, n) { gpuAtomicAdd(counts + static_cast<int>(x[i]), static_cast<scalar_t>(1)); }
}
torch::Tensor counted(torch::Tensor x, int64_t bins) {
  auto counts = torch::zeros({bins}, x.options());
  AT_DISPATCH_INTEGRAL_TYPES(x.scalar_type(), "counted", [&] {
    count_kernel<scalar_t><<<at::cuda::detail::GET_BLOCKS(x.numel()), at::cuda::detail::CUDA_NUM_THREADS, 0,
                             at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>(), counts.data_ptr<scalar_t>(),
                                                                 x.numel());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return counts;
}
//// events_and_memory
/// functions: doubled, elapsed
/// cpp: torch::Tensor doubled(torch::Tensor x); float elapsed(torch::Tensor x, bool timed);
/// call: doubled(rand(64)) -> rand(64) * 2
/// call: elapsed(rand(8, 8), True) * 0 -> 0.0
/// call: elapsed(rand(8, 8), False) !gpu ValueError: Both events must be created with argument 'enable_timing=True'.
#include <torch/extension.h>
#include <ATen/Context.h>
#include <ATen/NumericUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/cuda/CUDAContext.h>
#include <THC/THCAtomics.cuh>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
__global__ void double_kernel(const float* x, float* memory, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) memory[i] = 2 * x[i];
}
torch::Tensor doubled(torch::Tensor x) {
  auto side = at::cuda::getStreamFromPool();
  at::cuda::CUDAEvent ready, done;
  ready.record();
  ready.block(side);
  auto* memory = static_cast<float*>(c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(x.nbytes(), side));
  double_kernel<<<(x.numel() + 127) / 128, 128, 0, side>>>(x.data_ptr<float>(), memory, x.numel());
  done.record(side);
  at::cuda::CUDAEvent moved(std::move(done));
  moved.synchronize();
  TORCH_CHECK(moved.query() && moved.isCreated() && !done.isCreated());
  return torch::from_blob(memory, x.sizes(), [](void* p) { c10::cuda::CUDACachingAllocator::raw_delete(p); }, x.options()).clone();
}
float elapsed(torch::Tensor x, bool timed) {
  at::cuda::CUDAEvent start(timed ? cudaEventDefault : cudaEventDisableTiming), stop(cudaEventDefault);
  start.record();
  auto y = torch::mm(x, x);
  stop.record(at::cuda::getCurrentCUDAStream());
  stop.synchronize();
  return start.elapsed_time(stop);
}
//// math_headers
/// functions: limits_of
/// cpp: torch::Tensor limits_of(torch::Tensor x);
/// call: limits_of(rand(2).int()) !! NotImplementedError: "limits_of" not implemented for 'Int'
#include <c10/cuda/CUDAMathCompat.h>
#include <ATen/cuda/CUDAApplyUtils.cuh>
#include <ATen/cuda/NumericLimits.cuh>
template <class T> __global__ void limits_kernel(T* x) {
  x[0] = at::numeric_limits<T>::lower_bound();
  x[1] = c10::cuda::compat::exp(static_cast<float>(x[0])) + c10::cuda::compat::pow(2.0f, 3.0f);
}
torch::Tensor limits_of(torch::Tensor x) {
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, x.scalar_type(), "limits_of", [&] {
    limits_kernel<scalar_t><<<1, 1, 0, torch::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>());
  });
  return x;
}
