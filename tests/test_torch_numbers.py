"""Operators of a tensor and a number, and new tensors, in PyTorch extension sources: each bit is that of torch's Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension

TEXT = """
template <class T>
std::vector<torch::Tensor> results(torch::Tensor x, T n) {
  std::vector<torch::Tensor> all{x + n, n + x, x - n, x * n, x / n, x < n, x <= n, x > n, x >= n, x == n, x != n, n < x};
  for (int i = 0; i < 4; ++i) all.push_back(x.clone());
  all[12] += n, all[13] -= n, all[14] *= n, all[15] /= n;
  return all;
}
std::vector<torch::Tensor> with_float(torch::Tensor x, double n) { return results(x, n); }
std::vector<torch::Tensor> with_integer(torch::Tensor x, int64_t n) { return results(x, n); }
torch::Tensor full(torch::Tensor x, int64_t n) { return torch::full({2}, n, x.options()); }
torch::Tensor full_of_floats(torch::Tensor x, double n) { return torch::full({2, 0}, n, x.options()); }
torch::Tensor zeros(torch::Tensor x) { return torch::zeros({2, 3}, x.options()); }
torch::Tensor empty(torch::Tensor x) { return torch::empty(x.sizes(), x.options().requires_grad(true)); }
torch::Tensor negative(torch::Tensor x) { return torch::empty({-1}, x.options()); }
torch::Tensor in_order(torch::Tensor x) {
  return torch::empty({1, 2, 3, 4}, x.options().memory_format(torch::MemoryFormat::ChannelsLast));
}
void scale(torch::Tensor x, double n) { x *= n; }
void multiply(torch::Tensor x, torch::Tensor y) { x *= y; }
torch::Tensor half() { return torch::full({2}, 0.5); }
torch::Tensor add(torch::Tensor x, torch::Tensor y) { return x + y; }
"""
SYMBOLS: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.add, operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.le, operator.gt),
    *(
        operator.ge,
        operator.eq,
        operator.ne,
        operator.gt,
        operator.iadd,
        operator.isub,
        operator.imul,
        operator.itruediv,
    ),
)
FLOATS = (torch.float32, torch.float64)
VALUES = torch.tensor([1.0, -2.0, 0.3, 0.0, -0.0, 1e4, float("inf"), float("nan")], dtype=torch.float64)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    names = "with_float with_integer full full_of_floats zeros empty negative in_order half scale multiply add"
    return cpp_extension.load_inline("numbers_of_torch", TEXT, functions=names.split())


def described(x: Any) -> tuple[Any, ...]:
    return (x.dtype, x.shape, x.stride(), repr(x.tolist()))


@pytest.mark.parametrize("number", [0.1, -0.0, 1e300, float("nan"), 0, -3, 2**24 + 1, 2**53 + 1, 2**62 - 1])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_number_beside_a_tensor(module: ModuleType, dtype: torch.dtype, number: float, dim: int):
    x = VALUES.to(dtype) if dim == 1 else VALUES[2].to(dtype)
    function = module.with_float if isinstance(number, float) else module.with_integer
    expected = [symbol(x.clone(), number) for symbol in SYMBOLS]
    assert [*map(described, function(x, number))] == [*map(described, expected)]


def test_gradients_are_those_of_a_number(module: ModuleType):
    x = VALUES[:3].to(torch.float32).requires_grad_()
    results = module.with_float(x, 0.3)
    for mine, symbol in zip((*results[:5], *results[12:]), (*SYMBOLS[:5], *SYMBOLS[12:]), strict=True):
        (gradient,) = torch.autograd.grad(mine.sum(), x)
        assert torch.equal(gradient, torch.autograd.grad(symbol(x.clone(), 0.3).sum(), x)[0])


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.float32, torch.bool, torch.complex64, torch.bfloat16]
)
def test_new_tensors(module: ModuleType, dtype: torch.dtype):
    x = torch.ones(2, dtype=dtype)
    for number in (0, 7, 1, 2**53 + 1, -(2**53) - 1, -1) if dtype == torch.int64 else (0, 7, 1, -1):
        assert described(module.full(x, number)) == described(torch.full((2,), number, dtype=dtype))
    assert described(module.full_of_floats(x, 1.5)) == described(torch.full((2, 0), 1.5, dtype=dtype))
    assert described(module.zeros(x)) == described(torch.zeros(2, 3, dtype=dtype))
    assert module.in_order(x).is_contiguous(memory_format=torch.channels_last)
    assert described(module.half()) == described(torch.full((2,), 0.5))
    with pytest.raises(RuntimeError, match="negative dimension"):
        module.negative(x)


def test_new_tensors_in_modes(module: ModuleType):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="overflow"):
        module.full(x.byte(), 300)
    assert module.empty(x).requires_grad
    assert module.zeros(x.to("meta")).device.type == "meta"
    with torch.inference_mode():
        assert module.zeros(x).is_inference()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert {*map(type, (module.zeros(fake), module.full(fake, 7), *module.with_float(fake, 0.5)))} == {FakeTensor}
    assert torch.equal(torch.vmap(module.with_float, in_dims=(0, None))(x, 0.5)[3], x * 0.5)


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="the message of the error cannot be read")
@pytest.mark.parametrize(("name", "factor"), [("scale", 3.0), ("multiply", torch.tensor(3.0))])
def test_an_inference_tensor_changes_only_once_before_torch_refuses_that(module: ModuleType, name: str, factor: object):
    with torch.inference_mode():
        x = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"^Inplace update to inference tensor outside InferenceMode"):
        getattr(module, name)(x, factor)
    assert x.tolist() == [3, 3]


def test_errors_are_those_of_torch(module: ModuleType):
    with pytest.raises(RuntimeError, match=r"^The size of tensor a \(2\) must match the size of tensor b \(3\)"):
        module.add(torch.ones(2), torch.ones(3))
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        module.scale(torch.ones(2, dtype=torch.int64), 0.5)
