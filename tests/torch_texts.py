"""PyTorch extension sources in the styles of people, each with what torch computes in Python.

Each case has the text of one function, its name, the arguments of a call, and the same computation in Python.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class Case(NamedTuple):
    """A function in C++ and its reference in Python."""

    text: str
    call: Callable[[], tuple[Any, ...]]
    reference: Callable[..., Any]

    @property
    def name(self) -> str:
        """The name of the function, the word before the first parenthesis."""
        return self.text.split("(")[0].split()[-1]


def _values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator)
    return values.to(dtype) if dtype.is_floating_point else (values * 4).to(dtype)


def _changed(x: Tensor) -> Tensor:
    x.add_(1.5).mul_(x)
    x += 1
    x *= x
    x -= 0.5
    x /= 2
    return x


CASES = (
    Case("torch::Tensor in_place(torch::Tensor x) { x.add_(1.5).mul_(x); x += 1; x *= x; x -= 0.5; x /= 2; return x; }",
         lambda: (_values(4, 6),), _changed),
    Case("""torch::Tensor slices(torch::Tensor a) {
              using namespace torch::indexing;
              return a.index({Slice(1, None), Slice(None, None, 2)}) + a[0][1] + a.index({0, "...", None}).sum();
            }""", lambda: (_values(4, 6),), lambda a: a[1:, ::2] + a[0][1] + a[0, ..., None].sum()),
    Case("""bool facts(torch::Tensor x) {
              return x.is_contiguous() && !x.t().is_contiguous() && x.is_floating_point() && x.defined() && !x.requires_grad()
                  && x.element_size() == 4 && x.nbytes() == 96 && x.dim() == 2 && x.ndimension() == 2 && x.numel() == 24
                  && x.stride(0) == 6 && x.strides()[1] == 1 && x.size(-1) == 6 && x.dtype() == torch::kFloat32
                  && x.device() == torch::kCPU && x.is_cpu() && !x.is_cuda() && x.get_device() == -1
                  && x.sizes() == torch::IntArrayRef({4, 6}) && x.layout() == torch::kStrided;
            }""", lambda: (_values(4, 6),), lambda _: True),
    Case("torch::Tensor maybe(bool is_defined) { torch::Tensor r; if (is_defined) r = torch::ones(2); return r; }",
         lambda: (False,), lambda _: None),
    Case("torch::Tensor adopt(std::vector<float> v) { return torch::from_blob(v.data(), {(int64_t)v.size()}, torch::kFloat).clone(); }",
         lambda: ([1.0, 2.0, 3.5],), torch.tensor),
    Case("torch::Tensor same(torch::Tensor x) { return x; }", lambda: (_values(4, 6),), lambda x: x),
    Case("""std::vector<std::vector<int64_t>> nested(std::vector<std::vector<int64_t>> v, std::tuple<int, std::string> t) {
              v.push_back({std::get<0>(t), (int64_t)std::get<1>(t).size()});
              return v;
            }""", lambda: ([[1], []], (7, "abc")), lambda v, t: [*v, [t[0], len(t[1])]]),
    Case("std::pair<at::ScalarType, c10::Device> kinds(at::ScalarType t, c10::Device d) { return {t, d}; }",
         lambda: (torch.bfloat16, torch.device("cuda:1")), lambda t, d: (t, d)),
    Case("""torch::Tensor dispatched(torch::Tensor x) {
              auto y = torch::empty_like(x);
              AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dispatched", ([&] {
                const scalar_t* p = x.data_ptr<scalar_t>();
                scalar_t* q = y.mutable_data_ptr<scalar_t>();
                for (int64_t i = 0; i < x.numel(); ++i) q[i] = p[i] * p[i] + scalar_t(1);
              }));
              return y;
            }""", lambda: (_values(4, 6, dtype=torch.float16),), lambda x: x * x + 1),
    Case("void copy_into(at::Tensor& x, const at::Tensor y) { x.copy_(y); }",
         lambda: (_values(2, 3), _values(3)), lambda *_: None),
    Case("at::Tensor& increment(at::Tensor& x) { x.add_(1); return x; }", lambda: (_values(2, 3),), lambda x: x + 1),
    Case("""torch::Tensor conversions(torch::Tensor x, torch::Tensor y) {
              return x.to(torch::kCPU, torch::kDouble) + x.to(y.options()) + x.to(y) + x.type_as(y) + y.expand_as(x);
            }""", lambda: (_values(2, 3), torch.ones(3, dtype=torch.float64)), lambda x, y: 4 * x.double() + y),
    Case("""torch::Tensor unpacked(torch::Tensor x) {
              torch::Tensor values, indices;
              std::tie(values, indices) = x.max(1);
              auto [sorted, order] = x.sort(0, /*descending=*/true);
              return values + indices + sorted[0][0] + x.index({torch::tensor({0, 1})})[1][0] + x.masked_select(x > 0).max();
            }""", lambda: (_values(4, 6),),
         lambda x: x.max(1)[0] + x.max(1)[1] + x.sort(0, True)[0][0][0] + x[1][0] + x.max()),
    Case("""torch::Tensor old_dispatch(torch::Tensor x) {
              auto out = torch::empty_like(x);
              AT_DISPATCH_FLOATING_TYPES(x.type(), "old_dispatch", ([&] { out.fill_(static_cast<scalar_t>(2.5)); }));
              return out;
            }""", lambda: (_values(4, 6),), lambda x: torch.full_like(x, 2.5)),
    Case("""std::string dtypes(torch::Tensor x) {
              return std::string(x.dtype().name()) + c10::toString(torch::typeMetaToScalarType(x.dtype()));
            }""", lambda: (_values(1, dtype=torch.int64),), lambda _: "long intLong"),
    Case("torch::Tensor guarded(torch::Tensor x) { c10::DeviceGuard guard(x.device()); return at::clamp_min(x, 0); }",
         lambda: (_values(4, 6),), lambda x: x.clamp_min(0)),
    Case("""torch::Tensor scalars(torch::Tensor x) {
              at::Scalar half = 0.5;
              torch::Scalar three(3);
              return x * half + three.to<float>() + at::scalar_tensor(half, x.options()) + x.sum().item<int64_t>();
            }""", lambda: (_values(4, 6),), lambda x: x * 0.5 + 3.0 + torch.tensor(0.5) + int(x.sum().item())),
)  # fmt: skip
