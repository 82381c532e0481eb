"""Operators of a tensor and a number, and new tensors, in PyTorch extension sources: each bit is that of torch's Python."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from builds import run_python
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

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
torch::Tensor subtracted(torch::Tensor x, double n) { return n - x; }
torch::Tensor scaled(torch::Tensor x, double n) { return x * n; }
torch::Tensor is_more(torch::Tensor x, double n) { return x > n; }
torch::Tensor assigned(torch::Tensor x, at::Scalar n) { x[0] = n; return x; }
torch::Tensor filled(torch::Tensor x, at::Scalar n) { return x.fill_(n); }
torch::Tensor put(torch::Tensor x, double n) { return x.index_put_({x > 0}, n); }
torch::Tensor list() { return torch::tensor({1.5, 2.5}, torch::kInt); }
torch::Tensor halves() { return torch::tensor({3.4e38, 2.0}, torch::kBFloat16); }
torch::Tensor chosen(torch::Tensor x, double n) { return torch::where(x > 0, x, n); }
torch::Tensor counted(torch::Tensor x) { return torch::arange_out(x, 5); }
int64_t first(torch::Tensor x) { return *x.data_ptr<int8_t>(); }
torch::Tensor added(torch::Tensor x) { return torch::zeros(x.sizes(), x.options()).add_(x); }
TORCH_LIBRARY(jitload_numbers, m) { m.def("added(Tensor x) -> Tensor", &added); }
torch::Tensor sliced(torch::Tensor x, int64_t i) { return x.index({torch::indexing::Slice(i)}); }
torch::Tensor single() { return torch::tensor(1.5); }
void scatter_add(torch::Tensor x, torch::Tensor index, torch::Tensor y) { x.scatter_add_(0, index, y); }
void accumulate(torch::Tensor x, torch::Tensor index, torch::Tensor y) { x.put_(index, y, true); }
void multiply_lists(std::vector<torch::Tensor> x, std::vector<torch::Tensor> y) { torch::_foreach_mul_(x, y); }
torch::Tensor normal(torch::Tensor x) { return x.normal_(0, 1); }
torch::Tensor dropped(torch::Tensor x) { return torch::dropout(x, 0.5, true); }
"""
NAMES = (  # noqa: SIM905  a list of words
    "with_float with_integer full full_of_floats zeros empty negative in_order half scale multiply add subtracted scaled "
    "is_more put list single scatter_add accumulate assigned filled multiply_lists normal dropped halves "
    "chosen sliced counted first added"
).split()
SYMBOLS: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.add, operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.le, operator.gt),
    *(operator.ge, operator.eq, operator.ne, operator.gt),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
)
FLOATS = (torch.float32, torch.float64)
GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
VALUES = torch.tensor([1.0, -2.0, 0.3, 0.0, -0.0, 1e4, float("inf"), float("nan")], dtype=torch.float64)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return cpp_extension.load_inline("numbers_of_torch", TEXT, functions=NAMES)


def described(x: Any) -> tuple[Any, ...]:
    return (x.dtype, x.shape, x.stride(), repr(x.tolist()))


@pytest.mark.parametrize("number", [0.1, -0.0, 1e300, float("nan"), 0, -3, 2**24 + 1, 2**53 + 1, 2**62 - 1])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_number_beside_a_tensor(module: ModuleType, dtype: torch.dtype, number: float, dim: int, device: str):
    x = (VALUES if dim == 1 else VALUES[2]).to(device, dtype)
    function = module.with_float if isinstance(number, float) else module.with_integer
    expected = [symbol(x.clone(), number) for symbol in SYMBOLS]
    assert [*map(described, function(x, number))] == [*map(described, expected)]


def test_gradients_are_those_of_a_number(module: ModuleType):
    x = VALUES[:3].to(torch.float32).requires_grad_()
    results = module.with_float(x, 0.3)
    for mine, symbol in zip((*results[:5], *results[12:]), (*SYMBOLS[:5], *SYMBOLS[12:]), strict=True):
        (gradient,) = torch.autograd.grad(mine.sum(), x)
        assert torch.equal(gradient, torch.autograd.grad(symbol(x.clone(), 0.3).sum(), x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_graph_keeps_no_tensor_for_a_number(module: ModuleType, dtype: torch.dtype):
    x = VALUES[:3].to(dtype).requires_grad_()
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        results = module.with_float(x, 0.3)
    assert kept == []
    for result in (*results[:5], *results[12:]):
        gradients = [torch.autograd.grad(result.sum(), x)[0] for _ in range(2)]  # without retain_graph=True
        assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.bool, torch.complex64, torch.half])
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


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]
)
def test_a_tensor_is_filled_with_a_number(module: ModuleType, dtype: torch.dtype):
    for number in (0.1, -0.0, float("nan"), 1e300, 2.9, 1, -1, 300, 65519, 2**24 + 1, 2**53 + 1, True, 1 + 2j):
        outcomes = []
        for function in (module.filled, module.assigned, torch.Tensor.fill_):
            try:
                outcomes.append(described(function(torch.zeros(1, dtype=dtype), number)))
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes == [outcomes[2]] * 3


def test_a_mode_sees_the_number_that_fills_a_tensor_and_refuses_it_once(module: ModuleType):
    numbers: list[str] = []

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            numbers.append(f"{function} {args[1]!r}")
            raise ValueError("refused")

    x = torch.zeros(1)
    for number in (1, 2.5):
        with pytest.raises(ValueError, match="refused"), Refusing():
            module.filled(x, number)
    assert numbers == ["aten.fill_.Scalar 1", "aten.fill_.Scalar 2.5"]
    assert x.tolist() == [0]


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


SCATTERED = (torch.zeros(4), torch.tensor([0, 1, 1, 9]), torch.ones(4))
LISTS = ([torch.ones(2), torch.ones(3)], [torch.full((2,), 3.0), torch.ones(2)])


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="the message of the error cannot be read")
@pytest.mark.parametrize(
    ("name", "expected", "arguments", "message"),
    [
        ("scatter_add", lambda x, index, y: x.scatter_add_(0, index, y), SCATTERED, "index 9 is out of bounds"),
        ("accumulate", lambda x, index, y: x.put_(index, y, accumulate=True), SCATTERED, "out of range"),
        ("multiply_lists", torch._foreach_mul_, LISTS, "size of tensor a"),
    ],
)
def test_an_operator_that_fails_midway_changes_its_tensors_once(
    module: ModuleType, name: str, expected: Any, arguments: Any, message: str
):
    changed = []
    for call in (getattr(module, name), expected):
        x, *others = copy.deepcopy(arguments)
        with pytest.raises((RuntimeError, IndexError), match=message):
            call(x, *others)
        changed.append(x)
    assert repr(changed[0]) == repr(changed[1])


@pytest.mark.parametrize(
    ("name", "expected", "x"),
    [
        ("normal", torch.Tensor.normal_, torch.ones(3, requires_grad=True)),
        ("normal", torch.Tensor.normal_, torch.ones(1).expand(3)),
        ("dropped", torch.nn.functional.dropout, torch.arange(4)),
    ],
    ids=["leaf", "expanded", "integers"],
)
def test_an_operator_that_fails_draws_as_many_numbers_as_in_torch(module: ModuleType, name: str, expected: Any, x: Any):
    states = []
    for call in (getattr(module, name), expected):
        torch.manual_seed(0)
        with pytest.raises(RuntimeError):
            call(x)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_errors_are_those_of_torch(module: ModuleType):
    with pytest.raises(RuntimeError, match=r"^The size of tensor a \(2\) must match the size of tensor b \(3\)"):
        module.add(torch.ones(2), torch.ones(3))
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        module.scale(torch.ones(2, dtype=torch.int64), 0.5)


class Tenfold(TorchDispatchMode):
    """Changes what each operator returns, so that an operator more changes the result. `names` are the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        value = function(*args, **(kwargs or {}))
        return value * 10 if value.is_floating_point() else value


def test_a_mode_sees_the_operators_that_torch_calls_for_a_number(module: ModuleType):
    for name, result, operators in (
        ("scaled", 25, ["aten.mul.Scalar"]),
        ("subtracted", 1.5, ["aten.empty_like.default", "aten.fill_.Scalar", "aten.sub_.Tensor"]),
        ("put", 2.5, ["aten.gt.Scalar", "aten.index_put_.default"]),
        ("single", 15, ["aten.scalar_tensor.default"]),
    ):
        arguments = () if name == "single" else (torch.ones(2), 2.5)
        with Tenfold() as mode:
            y = getattr(module, name)(*arguments)
        assert mode.names == operators
        assert y.flatten()[0] == result


def test_lists_of_numbers_are_fake_in_a_fake_mode(module: ModuleType):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        y = module.list()
    assert isinstance(y, FakeTensor)
    assert (y.dtype, y.shape) == (torch.int32, (2,))
    assert module.list().tolist() == [1, 2]
    assert module.halves().tolist() == [float("inf"), 2]


@pytest.mark.filterwarnings("error", "ignore:.*quantized tensor creation functions")
def test_numbers_at_the_limits(module: ModuleType):
    x = torch.tensor(-0.1, dtype=torch.float64)
    assert described(module.chosen(x, 0.3)) == described(torch.where(x > 0, x, 0.3))
    assert module.sliced(torch.ones(3), -(2**63)).tolist() == [1, 1, 1]
    assert module.counted(torch.tensor(7.0)).tolist() == [0, 1, 2, 3, 4]
    with torch.no_grad():
        assert module.counted(torch.ones(5, requires_grad=True)).requires_grad
    assert module.first(torch._make_per_tensor_quantized_tensor(torch.tensor([18], dtype=torch.int8), 0.1, 3)) == 18
    for function in (module.added, torch.ops.jitload_numbers.added):
        assert torch.func.functionalize(function)(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # torch 2.14 calls it
def test_a_tangent_of_a_product_with_a_number_requires_no_gradient(module: ModuleType):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2)).requires_grad_()
        assert not forward_ad.unpack_dual(module.scaled(dual, 2.5)).tangent.requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_and_sparse_tensors_beside_a_number(module: ModuleType):
    x = torch.nested.nested_tensor([torch.ones(2), -torch.ones(3)])
    assert [part.tolist() for part in module.is_more(x, 0).unbind()] == [[True] * 2, [False] * 3]
    with pytest.raises(RuntimeError, match="memory format option is only supported by strided tensors"):
        module.subtracted(torch.ones(2).to_sparse(), 2.5)


def test_short_floats_round_as_in_cpp_in_transforms(module: ModuleType):
    x = torch.linspace(0, 1, 256).half()
    assert torch.equal(torch.vmap(module.scaled, in_dims=(0, None))(x, 0.9), torch.ops.aten.mul.Scalar(x, 0.9))


def test_the_first_call_of_a_process_calls_no_function_that_a_mode_sees():
    program = f"""
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from jitload import cpp_extension
class Refusing(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):
        raise ValueError(str(function))
class Printing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        print(function)
        return function(*arguments, **(keywords or {{}}))
module = cpp_extension.load_inline("numbers_of_torch", {TEXT!r}, functions={NAMES!r})
x = torch.ones(2)
with Refusing(), Printing():
    y = module.scaled(x, 2.5)
assert y.tolist() == [2.5, 2.5]
"""
    result = run_python(program)
    assert (result.stdout, result.stderr) == ("aten.mul.Scalar\n", "")
