//// lltm_cell
/// call: forward(rand(2, 5), rand(12, 9), rand(1, 12), rand(2, 4), rand(2, 4))
/// call: d_sigmoid(rand(6)) -> rand(6).sigmoid() * (1 - rand(6).sigmoid())
#include <torch/extension.h>
#include <vector>
torch::Tensor d_sigmoid(torch::Tensor z) {
  auto s = torch::sigmoid(z);
  return (1 - s) * s;
}
std::vector<at::Tensor> lltm_forward(torch::Tensor input, torch::Tensor weights, torch::Tensor bias, torch::Tensor old_h, torch::Tensor old_cell) {
  auto X = torch::cat({old_h, input}, /*dim=*/1);
  auto gate_weights = torch::addmm(bias, X, weights.transpose(0, 1));
  auto gates = gate_weights.chunk(3, /*dim=*/1);
  auto input_gate = torch::sigmoid(gates[0]), output_gate = torch::sigmoid(gates[1]);
  auto candidate_cell = torch::elu(gates[2], /*alpha=*/1.0);
  auto new_cell = old_cell + candidate_cell * input_gate;
  auto new_h = torch::tanh(new_cell) * output_gate;
  return {new_h, new_cell, input_gate, output_gate, candidate_cell, X, gate_weights};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &lltm_forward, "forward");
  m.def("d_sigmoid", &d_sigmoid);
}
//// indexing_and_slices
/// functions: windows, assign, pick
/// call: windows(rand(6, 8)) -> [rand(6, 8)[1:-1:2], rand(6, 8)[..., 0], rand(6, 8)[None, 2], rand(6, 8)[rand(6, 8)[:, 0] > 0], rand(6, 8)[:, ::3], rand(6, 8)[0:-1]]
/// call: assign(rand(6, 8)) 
/// call: pick(rand(6, 8), ints(4).clamp(0, 5)) -> rand(6, 8)[ints(4).clamp(0, 5)]
/// call: pick(rand(6, 8), rand(4)) !! IndexError: tensors used as indices must be long, int, byte or bool tensors
/// call: pick(rand(2, 8), ints(4) + 100) !cpu IndexError:
#include <torch/extension.h>
using namespace torch::indexing;
std::vector<torch::Tensor> windows(torch::Tensor x) {
  return {x.index({Slice(1, -1, 2)}), x.index({"...", 0}), x.index({None, 2}), x.index({x.index({Slice(), 0}) > 0}), x.index({Ellipsis, Slice(None, None, 3)}), x.index({Slice(0, -1, None)})};
}
torch::Tensor assign(torch::Tensor x) {
  auto y = x.clone();
  y.index_put_({0}, 7.5);
  y.index_put_({Slice(2, 4), Slice(None, 3)}, torch::ones({2, 3}, x.options()));
  y[4] = y[5] * 2;
  y[1][2] = -1;
  y.slice(1, 6, 8).zero_();
  y.select(0, 3).add_(1, 2);
  y.narrow(1, 4, 2).fill_(0.5);
  return y.masked_fill(y == -1, 100);
}
torch::Tensor pick(torch::Tensor x, torch::Tensor i) { return x.index({i}); }
//// factories
/// functions: make_all
/// call: make_all(rand(2, 3))
#include <torch/torch.h>
std::vector<torch::Tensor> make_all(torch::Tensor like) {
  auto options = torch::TensorOptions().dtype(torch::kFloat64).device(like.device()).layout(torch::kStrided);
  auto on = like.options();
  return {torch::zeros({2, 3}, options), torch::ones({2}, on.dtype(torch::kInt32)), torch::full({2, 2}, 1.5, options), torch::full({3}, 7, on.dtype(torch::kLong)),
          torch::arange(5, options), torch::arange(1, 9, 2, on), torch::linspace(0, 1, 5, on), torch::eye(3, on), torch::zeros_like(like),
          torch::ones_like(like, torch::dtype(torch::kBool)), torch::full_like(like, -2), torch::tensor({1, 2, 3}), torch::tensor({1.5, 2.5}, on),
          torch::tensor(3.5), torch::tensor({{1, 2}, {3, 4}}), torch::scalar_tensor(4, on), torch::zeros(3), torch::zeros({}, on), like.new_zeros({2, 2}),
          like.new_full({2}, 3.0), like.new_ones({1}, torch::kInt8), torch::empty({0}, on), torch::zeros({2, 2}, torch::kHalf), torch::ones(4, torch::requires_grad())};
}
//// conversions
/// functions: convert
/// call: convert(rand(2, 3), ints(2, 3))
/// call: convert(rand(2, 3).double(), ints(2, 3).bool())
#include <torch/extension.h>
std::vector<torch::Tensor> convert(torch::Tensor x, torch::Tensor other) {
  return {x.to(torch::kHalf), x.to(torch::kCPU), x.to(other), x.to(other.options()), x.to(x.device(), torch::kDouble), x.toType(torch::kInt), x.to(torch::kFloat, false, true),
          x.type_as(other), x.cpu().contiguous(), x.detach(), x.to(torch::dtype(torch::kInt64)), x.to(torch::Device("cpu"), torch::kBFloat16), x.flatten(), x.reshape({-1}), x.view({3, 2}),
          x.unsqueeze(0).squeeze(), x.expand({4, 2, 3}), x.permute({1, 0}), x.repeat({2, 1}), x.t().contiguous()};
}
//// reductions_and_scalars
/// functions: reduce_all
/// call: reduce_all(rand(4, 5))
/// call: reduce_all(ints(4, 5).double())
/// call: reduce_all(rand(0, 5)) !! 
/// call: reduce_all(rand(4)) !! IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)
#include <torch/extension.h>
std::tuple<std::vector<torch::Tensor>, double, int64_t, bool, float> reduce_all(torch::Tensor x) {
  auto [values, indices] = x.max(1);
  std::tuple<torch::Tensor, torch::Tensor> smallest = torch::min(x, 0, true);
  auto sorted = std::get<0>(torch::sort(x, -1, true));
  std::vector<torch::Tensor> results = {x.sum(), x.sum(0), x.sum(at::IntArrayRef({0, 1}), true), x.mean(), x.mean(-1, false), x.prod(), x.norm(), x.norm(2, 1), x.std(), x.var(0, false), x.max(), x.min(), values, indices,
      std::get<0>(smallest), std::get<1>(smallest), sorted, x.argmax(), x.argmax(1, true), x.any(), x.all(0), x.cumsum(1), std::get<1>(x.topk(2, 1)), x.abs().amax(1), x.softmax(-1), torch::logsumexp(x, 1), x.median()};
  return {results, x.sum().item<double>(), x.argmax().item().toLong(), (x > 100).any().item<bool>(), x[0][0].item().to<float>()};
}
//// arithmetic_operators
/// functions: arithmetic
/// call: arithmetic(rand(3, 4), rand(3, 4) + 3)
/// call: arithmetic(ints(3, 4), ints(3, 4) + 3) !! RuntimeError: For integral input tensors, argument alpha must not be a floating point number.
/// call: arithmetic(rand(3, 4), rand(5)) !! RuntimeError: The size of tensor a (4) must match the size of tensor b (5) at non-singleton dimension 1
/// call: arithmetic(rand(3, 4).half(), rand(1).double()[0])
#include <torch/extension.h>
std::vector<torch::Tensor> arithmetic(torch::Tensor a, torch::Tensor b) {
  auto c = a.clone();
  c += b; c -= 1; c *= 2; c = -c;
  auto d = 2 * a + b / 3 - 1.5;
  d = 1 - d; d = 3 / (d + 10);
  return {c, d, a * b, a - b, a.add(b, 2), torch::sub(a, b, 0.5).to(a.dtype()), a > b, a <= 0, a == b, a != 1, (a > 0) & (b > 3), (a > 0) | (b > 3), ~(a > 0), torch::pow(a, 2), a.pow(b), torch::where(a > 0, a, b),
          torch::maximum(a, b), torch::clamp(a, -1, 1), a.clamp_min(0), torch::exp(a.to(torch::kFloat)), torch::sqrt(b.abs().to(torch::kFloat)), a.remainder(2), torch::div(a, b, "floor"), a.square(), a.lt(0.5), torch::fmod(a, 2)};
}
//// cpu_loops
/// functions: loop_sum, loop_scale, loop_rows
/// call: loop_sum(rand(7, 9).cpu()) -> float(rand(7, 9).cpu().double().sum())
/// call: loop_sum(rand(7, 9).double().cpu()) -> float(rand(7, 9).cpu().double().sum())
/// call: loop_sum(ints(7, 9).cpu()) !! RuntimeError: expected a floating point tensor, got Long
/// call: loop_scale(rand(20).cpu(), 3.0) -> rand(20).cpu() * 3
/// call: loop_scale(ints(20).cpu(), 2.9) -> ints(20).cpu() * 2
/// call: loop_scale(rand(20).bfloat16().cpu(), 2.0) -> rand(20).bfloat16().cpu() * 2
/// call: loop_scale(rand(20).to(torch.complex64).cpu(), 2.0) !! NotImplementedError: "loop_scale" not implemented for 'ComplexFloat'
/// call: loop_rows(rand(4, 6).t().cpu()) -> rand(4, 6).t().cpu().sum(1)
/// call: loop_rows(rand(4).cpu()) !! RuntimeError: TensorAccessor expected 2 dims but tensor has 1
/// call: loop_rows(rand(4, 6).double().cpu()) !! RuntimeError: expected scalar type Float but found Double
#include <torch/extension.h>
double loop_sum(torch::Tensor x) {
  TORCH_CHECK(x.is_floating_point(), "expected a floating point tensor, got ", x.scalar_type());
  auto c = x.to(torch::kDouble).contiguous();
  const double* p = c.data_ptr<double>();
  double total = 0;
  for (int64_t i = 0; i < c.numel(); i++) total += p[i];
  return total;
}
torch::Tensor loop_scale(torch::Tensor x, double factor) {
  auto out = torch::zeros_like(x);
  AT_DISPATCH_ALL_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "loop_scale", [&] {
    auto in = x.data_ptr<scalar_t>();
    auto o = out.data_ptr<scalar_t>();
    const auto f = static_cast<scalar_t>(factor);
    at::parallel_for(0, x.numel(), 4, [&](int64_t begin, int64_t end) { for (auto i = begin; i < end; ++i) o[i] = in[i] * f; });
  });
  return out;
}
torch::Tensor loop_rows(const torch::Tensor& x) {
  const auto a = x.accessor<float, 2>();
  auto out = torch::empty({a.size(0)});
  auto o = out.accessor<float, 1>();
  for (int64_t i = 0; i < a.size(0); ++i) {
    float s = 0;
    auto row = a[i];
    for (int64_t j = 0; j < row.size(0); ++j) s += row[j];
    o[i] = s;
  }
  return out;
}
//// arguments_of_all_kinds
/// functions: describe, devices, scalars, nested, texts, dtype_of, maybe
/// call: describe(rand(2, 3))
/// call: describe(ints(2, 3).t())
/// call: describe(rand(1)[0].half())
/// call: devices(torch.device("cpu"), torch.float16) -> ("cpu", torch.float16, torch.device("cpu"))
/// call: devices(torch.device("cuda:1"), torch.bool) -> ("cuda:1", torch.bool, torch.device("cuda:1"))
/// call: devices(torch.device("meta"), torch.bool) -> ("meta", torch.bool, torch.device("meta"))
/// call: devices("cpu", torch.float16) !!
/// call: devices("nonsense", torch.float16) !!
/// call: devices(3, "float16") !! TypeError: devices(): incompatible function arguments.
/// call: nested([[1, 2], [3]], (1.5, True)) -> ([[1, 2], [3]], (1.5, True))
/// call: nested([[1, 2], 3], (1.5, True)) !! TypeError: nested(): incompatible function arguments.
/// call: nested([[1, 2]], (1.5, True, 3)) !! TypeError: nested(): incompatible function arguments.
/// call: texts("héllo", ["a", "b"]) -> ["héllo", "a", "b"]
/// call: texts("a\0b", []) -> ["a\0b"]
/// call: texts("\ud800", []) !!
/// call: dtype_of(rand(2), torch.int8) -> rand(2).to(torch.int8)
/// call: dtype_of(rand(2), None) !! TypeError: dtype_of(): incompatible function arguments.
/// call: maybe(None, None, None) -> (None, None, None, None)
/// call: maybe(rand(2), [1, 2], "s") -> (rand(2), [1, 2], "s", None)
/// call: maybe(rand(2), None, 3) !! TypeError: maybe(): incompatible function arguments.
/// call: scalars(1, 2.5, True)
/// call: scalars(True, 3, 0)
/// call: scalars(torch.tensor(4), torch.tensor(2.5), torch.tensor(1))
/// call: scalars(1.0, 2.5, True) !! TypeError: scalars(): incompatible function arguments.
/// call: scalars(1, "2.5", True) !! TypeError: scalars(): incompatible function arguments.
/// call: scalars(1, 2.5, "x")  !! TypeError: scalars(): incompatible function arguments.
/// call: scalars(2**63, 2.5, True) !! TypeError: scalars(): incompatible function arguments.
/// call: scalars(1, 10**400, True) !!
/// call: scalars(np.int32(4), np.float32(0.5), np.bool_(True))
#include <torch/extension.h>
#include <sstream>
std::string describe(torch::Tensor x) {
  std::ostringstream stream;
  stream << x.sizes() << " " << x.strides() << " " << x.dtype() << " " << x.scalar_type() << " " << x.device() << " " << x.numel() << " " << x.element_size() << " " << x.is_contiguous() << " "
         << x.requires_grad() << " " << x.storage_offset() << " " << x.dim() << " " << x.nbytes() << " " << x.options().dtype() << " " << x.layout() << " " << torch::toString(x.scalar_type()) << " " << x.is_leaf();
  return stream.str();
}
std::tuple<std::string, torch::ScalarType, torch::Device> devices(torch::Device d, torch::ScalarType t) { return {d.str(), t, d}; }
std::tuple<std::vector<std::vector<int64_t>>, std::pair<double, bool>> nested(std::vector<std::vector<int64_t>> a, std::pair<double, bool> b) { return {a, b}; }
std::vector<std::string> texts(const std::string& a, std::vector<std::string> rest) { rest.insert(rest.begin(), a); return rest; }
torch::Tensor dtype_of(torch::Tensor x, at::ScalarType t) { return x.to(t); }
std::tuple<std::optional<torch::Tensor>, std::optional<std::vector<int64_t>>, std::optional<std::string>, torch::Tensor> maybe(
    std::optional<torch::Tensor> a, std::optional<std::vector<int64_t>> b, std::optional<std::string> c) { return {a, b, c, torch::Tensor()}; }
std::tuple<int64_t, double, bool> scalars(int64_t a, double b, bool c) { return {a, b, c}; }
//// undefined_and_errors
/// functions: undefined
/// call: undefined(rand(3), 0)
/// call: undefined(rand(3), 1) !!
/// call: undefined(rand(3), 2) !! RuntimeError: Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'self'
/// call: undefined(rand(3), 3) !!
/// call: undefined(rand(3), 4) !! RuntimeError: expected scalar type Float but found UNKNOWN_SCALAR
/// call: undefined(rand(3), 5) !! RuntimeError: a Tensor with 3 elements cannot be converted to Scalar
/// call: undefined(rand(3), 6) !! IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 3)
/// call: undefined(rand(3), 7) !! IndexError: Dimension out of range (expected to be in range of [-1, 0], but got -2)
/// call: undefined(rand(3), 8) !! RuntimeError: tensor does not have a device
/// call: undefined(rand(3), 9) !! RuntimeError: expected scalar type Double but found Float
/// call: undefined(rand(3), 10) !!
/// call: undefined(rand(3), 11) !!
/// call: undefined(rand(3), 12) !!
/// call: undefined(rand(3), 13) !!
/// call: undefined(rand(3), 14) !!
/// call: undefined(rand(3), 15) !! RuntimeError: length
/// call: undefined(rand(3), 16) !!
/// call: undefined(rand(3), 17) !!
/// call: undefined(rand(3), 18)
/// call: undefined(rand(3), 19)
/// call: undefined(rand(3), 20) !!
/// call: undefined(rand(3), 21) !!
/// call: undefined(rand(3), 22) !!
/// call: undefined(rand(3), 23) !! RuntimeError: domain
/// call: undefined(rand(3), 24) !!
/// call: undefined(rand(3), 25) !! RuntimeError: how < 25 INTERNAL ASSERT FAILED at "
#include <torch/extension.h>
#include <stdexcept>
torch::Tensor undefined(torch::Tensor x, int how) {
  torch::Tensor u;
  switch (how) {
    case 0: return u;
    case 1: u.sizes(); return u.cpu();
    case 2: return u + x;
    case 3: return torch::relu(u);
    case 4: u.data_ptr<float>(); break;
    case 5: return torch::full({1}, x.item<float>());
    case 6: x.size(3); break;
    case 7: x.stride(-2); break;
    case 8: u.device(); break;
    case 9: x.data_ptr<double>(); break;
    case 10: return x.view({2, 2});
    case 11: return x.to(torch::Device("cuda:99"));
    case 12: return torch::zeros({-1});
    case 13: return torch::cat({x, torch::ones({2, 2})}, 1);
    case 14: throw std::bad_alloc();
    case 15: throw std::length_error("length");
    case 16: throw 42;
    case 17: std::vector<int>().at(3); break;
    case 18: return torch::full({}, static_cast<double>(u.defined()) + u.dim() + static_cast<double>(u.numel()));
    case 19: return u.defined() ? u : x;
    case 20: return x[7];
    case 21: return torch::empty({2}).index({5});
    case 22: return x.reshape({0});
    case 23: throw std::domain_error("domain");
    case 24: return torch::matmul(x, torch::ones({4}, x.options()));
    case 25: AT_ASSERTM(how < 25, "how is ", how); break;
  }
  return x;
}
//// options_queries
/// functions: options_text
/// call: options_text(rand(2, 3))
#include <torch/extension.h>
std::vector<std::string> options_text(torch::Tensor x) {
  auto o = torch::TensorOptions().dtype(torch::kFloat16).device(torch::kCPU);
  std::vector<std::string> lines;
  lines.push_back(c10::str(o.dtype(), " ", o.device(), " ", o.layout(), " ", o.requires_grad(), " ", o.pinned_memory(), " ", o.has_dtype()));
  lines.push_back(c10::str(x.options().dtype(torch::kInt).dtype() == torch::kInt, x.dtype() == torch::kFloat32, x.device() == torch::Device(torch::kCPU), x.device().type() == torch::kCPU));
  lines.push_back(c10::str(torch::elementSize(torch::kDouble), " ", torch::kFloat, " ", at::kBFloat16, " ", caffe2::TypeMeta::Make<float>(), " ", x.is_floating_point(), torch::isIntegralType(torch::kInt, false)));
  lines.push_back(c10::str(torch::promote_types(torch::kInt, torch::kHalf), " ", torch::result_type(x, 3), " ", torch::can_cast(torch::kFloat, torch::kInt)));
  return lines;
}
//// attention_aten
/// functions: mha
/// call: mha(rand(2, 5, 8), rand(24, 8), 2)
/// call: mha(rand(2, 5, 8), rand(24, 8), 3) !! RuntimeError: 8 is not a multiple of 3 heads
#include <torch/extension.h>
at::Tensor mha(const at::Tensor& x, const at::Tensor& w, int64_t heads) {
  const int64_t B = x.size(0), L = x.size(1), D = x.size(2);
  TORCH_CHECK(D % heads == 0, D, " is not a multiple of ", heads, " heads");
  auto qkv = at::linear(x, w).reshape({B, L, 3, heads, D / heads}).permute({2, 0, 3, 1, 4});
  auto parts = qkv.unbind(0);
  auto scores = at::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(D / heads));
  auto mask = at::ones({L, L}, x.options().dtype(at::kBool)).triu(1);
  scores = scores.masked_fill(mask, -std::numeric_limits<float>::infinity());
  return at::matmul(at::softmax(scores, -1), parts[2]).transpose(1, 2).contiguous().view({B, L, D});
}
//// gradients_in_cpp
/// functions: grad_of_square
/// call: grad_of_square(rand(5)) -> 2 * rand(5)
#include <torch/extension.h>
torch::Tensor grad_of_square(torch::Tensor x) {
  auto leaf = x.detach().clone().requires_grad_(true);
  auto y = (leaf * leaf).sum();
  { py::gil_scoped_release no_gil; y.backward(); }
  return leaf.grad().clone();
}
//// from_blob_vector
/// functions: from_values, to_values
/// call: from_values([1.0, 2.5, -3.0]) -> torch.tensor([1.0, 2.5, -3.0])
/// call: from_values([]) -> torch.tensor([])
/// call: to_values(rand(5)) -> rand(5).tolist()
/// call: to_values(ints(5)) !! RuntimeError: expected scalar type Float but found Long
#include <torch/extension.h>
#include <vector>
torch::Tensor from_values(std::vector<float> values) {
  return torch::from_blob(values.data(), {static_cast<int64_t>(values.size())}, torch::kFloat32).clone();
}
std::vector<float> to_values(torch::Tensor x) {
  auto c = x.cpu().contiguous();
  return std::vector<float>(c.data_ptr<float>(), c.data_ptr<float>() + c.numel());
}
//// lambdas_and_maps
/// call: counts([3, 1, 3, 2]) -> [1, 1, 2]
/// call: split(rand(6, 2), [1, 2, 3]) -> list(rand(6, 2).split([1, 2, 3]))
/// call: split(rand(6, 2), [1, 2]) !!
#include <torch/extension.h>
#include <map>
std::vector<int64_t> counts(const std::vector<int64_t>& values) {
  std::map<int64_t, int64_t> result;
  for (auto v : values) ++result[v];
  return {result[1], result[2], result[3]};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("counts", &counts);
  m.def("split", [](torch::Tensor x, std::vector<int64_t> sizes) { return torch::split_with_sizes(x, sizes); });
}
//// caught_errors
/// functions: caught, thrown
/// call: caught(rand(2, 3), 0) -> "checked: x has 2 dims, [2, 3] float Float 1.5 1e-09 1"
/// call: caught(rand(2, 3), 1) -> "operator: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"
/// call: caught(rand(2, 3), 2) -> "standard: other"
/// call: caught(rand(2, 3), 3) -> "checked: position 3"
/// call: caught(rand(2, 3), 4) -> "nothing"
/// call: thrown(rand(2, 3), 0) !! IndexError: thrown index
/// call: thrown(rand(2, 3), 1) !! ValueError: thrown value 1
/// call: thrown(rand(2, 3), 2) !! RuntimeError: invalid argument 3: too large
/// call: thrown(rand(2, 3), 3) !! TypeError: thrown type
/// call: thrown(rand(2, 3), 4) !! RuntimeError:
/// call: thrown(rand(2, 3), 5) !! RuntimeError: wrapped: shape '[4]' is invalid for input of size 6
/// call: thrown(rand(2, 3), 6) !! RuntimeError:
/// call: thrown(rand(2, 3), 7) !! RuntimeError:
/// call: thrown(rand(2, 3), 8) !! RuntimeError: error 8
/// call: thrown(rand(2, 3), 9) !! RuntimeError: thrown
/// call: thrown(rand(2, 3), 10) !! NotImplementedError: Strided
/// call: thrown(rand(2, 3), 11) !! TypeError: values: 1 x true
#include <torch/extension.h>
std::string caught(torch::Tensor x, int how) {
  try {
    if (how == 0) TORCH_CHECK(x.dim() == 3, "x has ", x.dim(), " dims, ", x.sizes(), " ", x.dtype(), " ", x.scalar_type(), " ", 1.5, " ", 1e-9, " ", true);
    if (how == 2) throw std::runtime_error("other");
    if (how == 3) TORCH_CHECK_INDEX(false, "position ", how);
  } catch (const c10::Error& error) {
    return std::string("checked: ") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("standard: ") + error.what();
  }
  try {
    if (how == 1) torch::mm(x, x);
  } catch (c10::Error& error) {
    return "operator: " + error.msg();
  }
  return "nothing";
}
void thrown(torch::Tensor x, int how) {
  if (how == 0) C10_THROW_ERROR(IndexError, "thrown index");
  TORCH_CHECK_WITH(ValueError, how != 1, "thrown value ", how);
  TORCH_CHECK(how != 2, "invalid argument 3: too large");
  TORCH_CHECK_WITH(TypeError, how != 3, "thrown type");
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(how != 4, "in builds without NDEBUG");
  AT_ASSERT(how != 6);
  TORCH_INTERNAL_ASSERT(how != 7, "internal ", x.sizes());
  if (how == 8) AT_ERROR("error ", how);
  if (how == 9) C10_THROW_ERROR(Error, "thrown");
  TORCH_CHECK_NOT_IMPLEMENTED(how != 10, x.layout());
  TORCH_CHECK_TYPE(how != 11, "values: ", 1, " ", 'x', " ", "true");
  if (how == 5) { try { x.view({4}); } catch (const c10::Error& error) { TORCH_CHECK(false, "wrapped: ", error.msg()); } }
}
//// exact_arguments
/// call: exact(1.5) -> 3.0
/// call: exact(x=1.5, times=3) -> 4.5
/// call: exact(1) !! TypeError: exact(): incompatible function arguments.
/// call: exact(1.5, times=3.0) !! TypeError: exact(): incompatible function arguments.
/// call: either(1) -> "int"
/// call: either(1.0) -> "float"
/// call: either("x") -> "text"
/// call: either(None) !! TypeError: either(): incompatible function arguments.
/// call: either(True)
/// call: either(np.float32(1))
/// call: either(rand(2)) -> "tensor"
/// call: no_default()
/// call: no_default(rand(2)) -> False
#include <torch/extension.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("exact", [](double x, int times) { return x * times; }, py::arg("x").noconvert(), py::arg("times") = 2);
  m.def("either", [](torch::Tensor) { return "tensor"; });
  m.def("either", [](int64_t) { return "int"; });
  m.def("either", [](double) { return "float"; });
  m.def("either", [](const std::string&) { return "text"; });
  m.def("no_default", [](c10::optional<torch::Tensor> x) { return !x.has_value(); }, py::arg("x") = py::none());
}
//// other_tensors
/// functions: facts, first, strides_of
/// call: facts(rand(2, 3))
/// call: facts(torch.empty(3, 2, device="meta"))
/// call: facts(torch.eye(3).to_sparse())
/// call: facts(torch.eye(3).to_sparse_csr()) !! RuntimeError: Sparse CSR tensors do not have is_contiguous
/// call: facts(torch.ones(2, 3, dtype=torch.complex64))
/// call: facts(torch.nn.Parameter(rand(2)))
/// call: facts(rand(2, 3)[:, 1:2])
/// call: facts(rand(1, 4).expand(3, 4))
/// call: facts(torch.ones(2, dtype=torch.float8_e4m3fn))
/// call: facts(torch.ones(2, dtype=torch.uint16))
/// call: first(rand(3).cpu()) -> float(rand(3)[0])
/// call: first(torch.eye(3).to_sparse()) !! RuntimeError: Cannot access data pointer of Tensor that doesn't have storage
/// call: first(rand(3).int()) !! RuntimeError: expected scalar type Float but found Int
/// call: first(torch.nn.Parameter(rand(3).cpu())) -> float(rand(3)[0])
/// call: strides_of(rand(2, 3)) -> [3, 1]
/// call: strides_of(torch.eye(3).to_sparse()) -> [0, 0]
/// call: strides_of(torch.eye(3).to_sparse_csr()) !! RuntimeError: Sparse CSR tensors do not have strides
/// call: strides_of(torch.empty(3, 2, device="meta")) -> [2, 1]
#include <torch/extension.h>
std::string facts(const torch::Tensor& x) {
  return c10::str(x.sizes(), " ", x.dim(), " ", x.numel(), " ", x.device(), " ", x.dtype(), " ", x.scalar_type(), " ", x.layout(), " ", x.is_sparse(), " ", x.is_meta(), " ",
                  x.is_cpu(), " ", x.is_contiguous(), " ", x.is_floating_point(), " ", x.is_complex(), " ", x.is_signed(), " ", x.requires_grad(), " ", x.element_size(), " ",
                  x.defined(), " ", x.is_leaf(), " ", x.is_quantized());
}
float first(torch::Tensor x) { return *x.data_ptr<float>(); }
std::vector<int64_t> strides_of(torch::Tensor x) { return x.strides().vec(); }
//// eight_bit_floats
/// functions: to_eight, from_eight
/// call: to_eight(torch.arange(-460, 460, 7).float().cpu()) -> [(torch.arange(-460, 460, 7).float().cpu()).to(torch.float8_e4m3fn).view(torch.uint8), (torch.arange(-460, 460, 7).float().cpu()).to(torch.float8_e5m2).view(torch.uint8)]
/// call: to_eight((rand(200) * 0.01).cpu()) -> [((rand(200) * 0.01).cpu()).to(torch.float8_e4m3fn).view(torch.uint8), ((rand(200) * 0.01).cpu()).to(torch.float8_e5m2).view(torch.uint8)]
/// call: to_eight(torch.tensor([float("nan"), 448.0, 463.0, 0.0, -0.0])) -> [(torch.tensor([float("nan"), 448.0, 463.0, 0.0, -0.0])).to(torch.float8_e4m3fn).view(torch.uint8), (torch.tensor([float("nan"), 448.0, 463.0, 0.0, -0.0])).to(torch.float8_e5m2).view(torch.uint8)]
/// call: from_eight(torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)) -> torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
/// call: from_eight(torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2)) -> torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float()
#include <torch/extension.h>
std::vector<torch::Tensor> to_eight(torch::Tensor x) {
  auto a = torch::empty(x.sizes(), x.options().dtype(torch::kFloat8_e4m3fn)), b = torch::empty(x.sizes(), x.options().dtype(at::kFloat8_e5m2));
  for (int64_t i = 0; i < x.numel(); ++i) {
    a.data_ptr<c10::Float8_e4m3fn>()[i] = static_cast<c10::Float8_e4m3fn>(x.data_ptr<float>()[i]);
    b.data_ptr<at::Float8_e5m2>()[i] = static_cast<at::Float8_e5m2>(x.data_ptr<float>()[i]);
  }
  return {a.view(torch::kByte), b.view(torch::kByte)};
}
torch::Tensor from_eight(torch::Tensor x) {
  auto y = torch::empty(x.sizes(), torch::kFloat);
  for (int64_t i = 0; i < x.numel(); ++i)
    y.data_ptr<float>()[i] = x.scalar_type() == at::kFloat8_e5m2 ? static_cast<float>(x.data_ptr<c10::Float8_e5m2>()[i]) : static_cast<float>(x.data_ptr<c10::Float8_e4m3fn>()[i]);
  return y;
}
//// no_names_of_torch
/// functions: hello_world, add_integers
/// call: hello_world() -> "Hello World!"
/// call: add_integers(2, 3) -> 5
/// call: add_integers(2**31 - 1, 3000000000) -> 5147483647
/// call: add_integers(2**31, 1) !! TypeError: add_integers(): incompatible function arguments.
std::string hello_world() { return "Hello World!"; }
int64_t add_integers(int a, const uint& b) { return static_cast<int64_t>(a) + b; }
//// random_numbers
/// functions: draw
/// call: draw(rand(3, 4).cpu())
#include <torch/extension.h>
std::vector<torch::Tensor> draw(torch::Tensor x) {
  torch::manual_seed(3);
  auto y = torch::empty_like(x);
  return {torch::rand({2, 3}), torch::randn({4}, x.options()), torch::randint(0, 10, {3}, torch::kLong), torch::randperm(5), torch::bernoulli(x.sigmoid()), y.normal_(0, 2).clone(),
          y.uniform_(-1, 1).clone(), y.random_(10).clone(), y.bernoulli_(0.25).clone(), torch::rand_like(x), torch::normal(0.0, 1.0, {3}), torch::multinomial(x.softmax(1), 2), torch::dropout(x, 0.5, true)};
}
//// sparse_and_accumulated
/// functions: sparse, accumulate
/// call: sparse(rand(3, 4).cpu())
/// call: accumulate(rand(4, 2), ints(6).clamp(0, 3), rand(6, 2))
#include <torch/extension.h>
std::vector<torch::Tensor> sparse(torch::Tensor x) {
  auto s = torch::sparse_coo_tensor(torch::tensor({{0, 1, 1}, {2, 0, 0}}), torch::tensor({3.0, 4.0, 5.0}), {2, 3}).coalesce();
  TORCH_CHECK(s._nnz() == 2 && s.is_sparse() && s.layout() == torch::kSparse);
  return {s.to_dense(), s._indices(), s._values(), x.to_sparse()._values(), std::get<0>(torch::_unique2(x > 0))};
}
torch::Tensor accumulate(torch::Tensor x, torch::Tensor rows, torch::Tensor values) {
  auto y = x.clone();
  y.index_put_({rows}, values, /*accumulate=*/true);
  return y;
}
//// module_errors
/// call: fail(rand(2), 0) !! RuntimeError: plain 0
/// call: fail(rand(2), 1) !!
/// call: fail(rand(2), 2) !!
/// call: fail(rand(2), 3) !!
/// call: fail(rand(2), 4) !!
/// call: fail(rand(2), 5) !! ValueError: invalid
/// call: fail(rand(2), 6) !! IndexError: out of range
/// call: fail(rand(2), 7) !! MemoryError: std::bad_alloc
/// call: fail(rand(2), 8) !!
/// call: fail(rand(2), 9) -> None
#include <torch/extension.h>
#include <new>
#include <stdexcept>
void fail(torch::Tensor x, int how) {
  TORCH_CHECK(how != 0, "plain ", how);
  TORCH_CHECK_VALUE(how != 1, "value");
  TORCH_CHECK_INDEX(how != 2, "index");
  TORCH_CHECK_TYPE(how != 3, "type");
  TORCH_CHECK_NOT_IMPLEMENTED(how != 4, "not implemented");
  if (how == 5) throw std::invalid_argument("invalid");
  if (how == 6) throw std::out_of_range("out of range");
  if (how == 7) throw std::bad_alloc();
  if (how == 8) throw 3;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fail", &fail); }
//// printed_tensors
/// functions: printed, refused
/// call: printed(rand(2, 3)) 
/// call: printed(ints(2, 2))
/// call: refused(rand(2, 2)) !! RuntimeError: not this one:
#include <torch/extension.h>
#include <sstream>
std::string printed(torch::Tensor x) {
  std::ostringstream stream;
  stream << "x = " << x << ", " << x.sizes() << std::endl;
  return stream.str();
}
void refused(torch::Tensor x) { TORCH_CHECK(false, "not this one: ", x); }
//// parts_of_torch
/// functions: parts
/// call: parts(rand(3, 3)) -> [torch.linalg.qr(rand(3, 3))[0], torch.special.expit(rand(3, 3)), torch.fft.fft(rand(3, 3)).abs()]
#include <torch/torch.h>
std::vector<torch::Tensor> parts(const torch::Tensor& x) {
  auto [q, r] = torch::linalg_qr(x);
  return {q, torch::special::expit(x), torch::fft::fft(x).abs()};
}
//// formats_of_options
/// functions: made, like, both
/// call: made(rand(2, 3, 4, 5)) -> rand(2, 3, 4, 5).mul(0).contiguous(memory_format=torch.channels_last)
/// call: like(rand(2, 3, 4, 5)) -> rand(2, 3, 4, 5).mul(0).contiguous(memory_format=torch.channels_last)
/// call: both(rand(2, 3, 4, 5)) !! RuntimeError: Cannot set memory_format both in TensorOptions and explicit argument
#include <torch/extension.h>
torch::Tensor made(torch::Tensor x) {
  return torch::empty(x.sizes(), x.options().memory_format(torch::MemoryFormat::ChannelsLast)).zero_();
}
torch::Tensor like(torch::Tensor x) {
  return torch::zeros_like(x, torch::TensorOptions().memory_format(at::MemoryFormat::ChannelsLast));
}
torch::Tensor both(torch::Tensor x) {
  return torch::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::ChannelsLast), at::MemoryFormat::Contiguous);
}
//// small_functions
/// functions: changed_in_place, copied_into, incremented, unpacked, names_of_dtypes, guarded, with_scalars
/// call: changed_in_place(rand(4, 6)) -> (((rand(4, 6) + 1.5) ** 2 + 1) ** 2 - 0.5) / 2
/// call: [copied_into(x := rand(2, 3), rand(3)), x] -> [None, rand(3).repeat(2, 1)]
/// call: incremented(rand(2, 3)) -> rand(2, 3) + 1
/// call: unpacked(rand(4, 6)) -> rand(4, 6).max(1)[0] + rand(4, 6).max(1)[1] + rand(4, 6).amax(0)[0] + rand(4, 6)[1][0] + rand(4, 6).max()
/// call: names_of_dtypes(ints(2)) -> "long intLong"
/// call: guarded(rand(4, 6)) -> rand(4, 6).clamp_min(0)
/// call: with_scalars(rand(4, 6)) -> rand(4, 6) * 0.5 + 3.5 + int(rand(4, 6).sum().item())
#include <torch/extension.h>
torch::Tensor changed_in_place(torch::Tensor x) { x.add_(1.5).mul_(x); x += 1; x *= x; x -= 0.5; x /= 2; return x; }
void copied_into(at::Tensor& x, const at::Tensor y) { x.copy_(y); }
at::Tensor& incremented(at::Tensor& x) { x.add_(1); return x; }
torch::Tensor unpacked(torch::Tensor x) {
  torch::Tensor values, indices;
  std::tie(values, indices) = x.max(1);
  auto [sorted, order] = x.sort(0, /*descending=*/true);
  return values + indices + sorted[0][0] + x.index({torch::tensor({0, 1})})[1][0] + x.masked_select(x > 0).max();
}
std::string names_of_dtypes(torch::Tensor x) {
  return std::string(x.dtype().name()) + c10::toString(torch::typeMetaToScalarType(x.dtype()));
}
torch::Tensor guarded(torch::Tensor x) { c10::DeviceGuard guard(x.device()); return at::clamp_min(x, 0); }
torch::Tensor with_scalars(torch::Tensor x) {
  at::Scalar half = 0.5;
  torch::Scalar three(3);
  return x * half + three.to<float>() + at::scalar_tensor(half, x.options()) + x.sum().item<int64_t>();
}
//// depthwise_conv_vectors
/// functions: depthwise
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), [1, 0]) -> torch.nn.functional.conv2d(rand(2, 4, 6, 7), rand(4, 1, 3, 3), padding=(1, 0), groups=4)
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), [1]) !! RuntimeError: padding needs two numbers, got 1
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), 1) !! TypeError: depthwise(): incompatible function arguments.
/// call: depthwise(rand(2, 4, 6, 7), rand(4, 1, 3, 3), torch.tensor([1, 0])) !! TypeError: depthwise(): incompatible function arguments.
#include <torch/extension.h>
torch::Tensor depthwise(torch::Tensor x, torch::Tensor w, std::vector<int64_t> padding) {
  TORCH_CHECK(padding.size() == 2, "padding needs two numbers, got ", padding.size());
  return torch::conv2d(x, w, {}, 1, torch::IntArrayRef(padding), 1, x.size(1));
}
