"""The part of PyTorch extension sources that calls torch: references, threads, modes, and tensors of unusual kinds.

Most tests run twice: torch's C++ functions are called directly, or, as with a release that is not known, its Python.
"""

import functools
import gc
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension

TEXT = r"""
#include <thread>
torch::Tensor add(torch::Tensor a, torch::Tensor b) { return a + b; }
torch::Tensor same(torch::Tensor a) { return a; }
torch::Tensor parts(torch::Tensor a) { return torch::stack(a.unbind(0)).sum(); }
std::vector<torch::Tensor> many(std::vector<torch::Tensor> xs, std::optional<torch::Tensor> o) {
  if (o) xs.push_back(*o);
  return xs;
}
void fail(torch::Tensor a) { TORCH_CHECK(false, "no ", a.sizes()); }
void fail_in_operator(torch::Tensor a) { torch::matmul(a, torch::ones({7, 7})); }
bool catch_operator(torch::Tensor a) {
  try {
    torch::matmul(a, torch::ones({7, 7}));
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}
torch::Tensor on_thread(torch::Tensor a) {
  torch::Tensor result;
  py::gil_scoped_release release;
  std::thread thread([&] { result = a * 2; });
  thread.join();
  return result;
}
torch::Tensor blob(int64_t n) {
  return torch::from_blob(new float[n], {n}, [](void* memory) { delete[] static_cast<float*>(memory); });
}
float first(torch::Tensor x) { return x.data_ptr<float>()[0]; }
std::string facts(torch::Tensor x) { return c10::str(x.sizes(), " ", x.device(), " ", x.dtype()); }
std::vector<torch::Tensor> changed(torch::Tensor x, torch::Tensor n) {
  x += x, x -= x * 2, x *= x, x /= x + 1, x += 1, x -= 3, x *= 2, x /= 4;
  n &= n + 1, n |= n, n ^= 5, n |= 8, n &= 14;
  x[0] = 7;
  x[1] = x[0];
  return {x, n};
}
std::vector<bool> gradients(torch::Tensor x) {
  const auto integers = torch::randint_like(x, 10), zeros = torch::zeros_like(x), random = torch::rand_like(x);
  TORCH_CHECK(!integers.requires_grad() && !zeros.requires_grad() && !random.requires_grad());
  torch::NoGradGuard guard;
  return {x.requires_grad(), (x * 2).requires_grad(), torch::zeros({2}, x.options().requires_grad(true)).requires_grad()};
}
std::vector<torch::Tensor> undefined(torch::Tensor x) {
  torch::Tensor none;
  return {torch::layer_norm(x, {3}, none, none), none.defined() ? x : x + 1};
}
std::vector<int> formats(torch::Tensor x) {
  using torch::MemoryFormat;
  return {x.is_contiguous(), x.is_contiguous(MemoryFormat::ChannelsLast), x.is_contiguous(MemoryFormat::ChannelsLast3d),
          static_cast<int>(x.suggest_memory_format())};
}
int layout(torch::Tensor x) { return static_cast<int>(x.layout()); }
std::string number(torch::Tensor x, std::string type) {
  const torch::Scalar value = x.item();
  if (type == "uint8_t") return c10::str(static_cast<int>(value.to<uint8_t>()));
  if (type == "int16_t") return c10::str(x.item<int16_t>());
  if (type == "int") return c10::str(value.toInt());
  if (type == "int64_t") return c10::str(value.toLong());
  if (type == "at::Half") return c10::str(value.to<at::Half>());
  if (type == "float") return c10::str(value.toFloat());
  if (type == "double") return c10::str(value.toDouble());
  if (type == "bool") return c10::str(value.toBool());
  return type == "-" ? c10::str(-value) : c10::str(value);
}
bool overflows(torch::Tensor x) {
  try {
    return x.item().toInt() != x.item().toLong();
  } catch (const std::runtime_error&) { // torch raises no c10::Error here
    return true;
  }
}
torch::Tensor fail_undefined_with_number(int64_t number) {
  torch::Tensor x;
  return number == 0 ? x + 1 : number == 1 ? 2 - x : number == 2 ? x *= 2 : number == 3 ? x.clamp(0) : at::full_like(x, 1);
}
"""
SYMBOLS = (
    "x + x | x + 1.5 | 1.5 + x | x - x | x - 1.5 | 1.5 - x | x * x | x * 2 | 2 * x | x / x | x / 2 | 2 / x | n % n | n % 2",
    "2 % n | x < x | x < 1 | 1 < x | x <= 1 | x > 1 | x >= x | x == 1 | 1 != x | n & n | n & 1 | n ^ 3 | -x | ~n",
)
# Each kind of argument and of result, in C++ and in Python.
OPERATORS = {
    **{symbol: symbol for line in SYMBOLS for symbol in line.split(" | ")},
    "1 | n": "1 | n",
    "std::get<1>(x.max(1))": "x.max(1)[1]",
    "x.split(2, 1)[1]": "x[:, 2:]",
    "torch::layer_norm(x, {3}, w)": "torch.nn.functional.layer_norm(x, [3], w)",
    "torch::clamp(x, 0.25, std::nullopt)": "x.clamp(min=0.25)",
    "torch::clamp(x, std::nullopt, 0.5)": "x.clamp(max=0.5)",
    "x.slice(0, 1, std::nullopt, 1)": "x[1:]",
    "torch::full({2}, 3, torch::kInt)": "torch.full((2,), 3, dtype=torch.int32)",
    "torch::full({2}, true)": "torch.full((2,), True)",
    "torch::zeros({2, 0}, torch::TensorOptions().dtype(torch::kFloat16))": "torch.zeros(2, 0, dtype=torch.float16)",
    "x.sum({0}, true, torch::kFloat64)": "x.sum(0, keepdim=True, dtype=torch.float64)",
    "x.sum(torch::IntArrayRef{})": "x.sum()",
    "torch::upsample_nearest2d(x.view({1, 1, 2, 3}), torch::IntArrayRef({4, 6}), std::nullopt)": "x[None, None].repeat_interleave(2, 2).repeat_interleave(2, 3)",
    "torch::cat({x, x}, 1)": "torch.cat([x, x], 1)",
    'torch::einsum("ij,ij->i", {x, x})': "torch.einsum('ij,ij->i', x, x)",
    'torch::div(x, w * 0.3, "floor")': "torch.div(x, w * 0.3, rounding_mode='floor')",
    "x.to(torch::kCPU, torch::kFloat64)": "x.double()",
    "torch::empty_like(x).normal_(2, 0)": "torch.full_like(x, 2)",
    "x.t().contiguous()": "x.t().contiguous()",
    "x.view({1, 3, 1, 2}).contiguous(torch::MemoryFormat::ChannelsLast)": "x.view(1, 3, 1, 2).contiguous(memory_format=torch.channels_last)",
    "torch::addmm(w, x, torch::ones({3, 3}), 2, 0.5)": "torch.addmm(w, x, torch.ones(3, 3), beta=2, alpha=0.5)",
    "torch::argmax(x)": "x.argmax()",
    "torch::argmax(x, 1)": "x.argmax(1)",
    "torch::nan_to_num(x / 0.0, 0.5, 1.5)": "torch.full_like(x, 1.5)",
    "torch::arange(5, -1, -2)": "torch.tensor([5, 3, 1])",
    "torch::randint(-7, -6, {2})": "torch.tensor([-7, -7])",
    "torch::tensor({x.equal(x), torch::is_nonzero(x.sum()), x.is_same_size(w)})": "torch.tensor([True, True, False])",
    "torch::zeros({1}, torch::promote_types(torch::kInt, torch::kHalf))": "torch.zeros(1, dtype=torch.float16)",
    "torch::ones({1}) * x[1][2].item()": "torch.ones(1) * x[1, 2].item()",
    "x.toType(torch::kInt)": "x.int()",
}  # fmt: skip
PARAMETERS = "torch::Tensor x, torch::Tensor n, torch::Tensor w"
TEXT += f"std::vector<torch::Tensor> operators({PARAMETERS}) {{ return {{{', '.join(OPERATORS)}}}; }}"
RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
FUNCTIONS = re.findall(r"^(?:[\w:<>, ]+>|\w[\w:]*) (\w+)\(", TEXT, re.MULTILINE)


@pytest.fixture(scope="module", params=["shortcuts", "conversions"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module that passes tensors by the shortcuts, or by torch's own conversions, as where the shortcuts are missing.

    A library finds out in its first call which torch it has, so the second module is a copy of the first one's library.
    """
    if request.param == "conversions" and RELEASE >= (2, 14):
        pytest.skip("this torch has C functions for both, which need no check")
    load = functools.partial(cpp_extension.load_inline, "calls_of_torch", TEXT, functions=FUNCTIONS)
    module = load()
    convert = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor
    conversions = itertools.chain([lambda tensor: convert(tensor.clone())], itertools.repeat(convert))
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "conversions":  # the first one, of the check, returns another tensor
            patch.setattr(torch._C._aoti, "unsafe_alloc_void_ptr_from_tensor", lambda tensor: next(conversions)(tensor))  # noqa: PLW0108
            cache = tmp_path_factory.mktemp("copy")
            (entry,) = Path(os.environ["JITLOAD_CACHE_DIR"]).glob("calls_of_torch-*")
            shutil.copytree(entry, cache / entry.name)
            patch.setenv("JITLOAD_CACHE_DIR", str(cache))
            patch.setattr("jitload.pipeline._modules", {})
            module = load()
        module.add(torch.ones(1), torch.ones(1))
        assert next(conversions) is convert or request.param == "shortcuts"  # the library has checked them
    yield module


def ignore_errors(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except (RuntimeError, TypeError):
        return
    pytest.fail("no error")


CALLS: dict[str, Callable[[ModuleType, Any], Any]] = {
    "results": lambda m, x: m.add(x, x),
    "same": lambda m, x: m.same(x),
    "items": lambda m, x: m.parts(x),
    "lists": lambda m, x: m.many([x, x], x),
    "checks": lambda m, x: ignore_errors(m.fail, x),
    "errors of operators": lambda m, x: ignore_errors(m.fail_in_operator, x),
    "caught errors": lambda m, x: m.catch_operator(x),
    "arguments that do not fit": lambda m, x: ignore_errors(m.many, [x, None], x),
    "memory of the text": lambda m, _: m.blob(1 << 16) if RELEASE >= (2, 11) else ignore_errors(m.blob, 1 << 16),
}
SLOW = {"errors of operators", "caught errors", "arguments that do not fit"}  # torch writes a stack trace for each


def test_calls_keep_no_references_and_no_memory(module: ModuleType):
    x = torch.ones(3, 3)

    def call_each(names: Iterable[str], count: int) -> int:
        """Call each function so many times, and return the number of objects that are then there."""
        for name in names:
            references = sys.getrefcount(x)
            for _ in range(count):
                CALLS[name](module, x)
            assert sys.getrefcount(x) == references, name
        gc.collect()
        return len(gc.get_objects())

    objects = call_each(SLOW, 5)
    assert call_each(SLOW, 40) < objects + 35
    objects, before = call_each(CALLS.keys() - SLOW, 50), resident_kilobytes()
    assert call_each(CALLS.keys() - SLOW, 300) < objects + 100
    assert resident_kilobytes() < before + 8000  # 300 tensors of `blob` have 79 MB


def resident_kilobytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def test_operators_run_on_other_threads_and_without_the_gil(module: ModuleType):
    assert torch.equal(module.on_thread(torch.ones(3)), torch.full((3,), 2.0))

    def work(_: int) -> None:
        for _ in range(300):
            assert torch.equal(module.on_thread(torch.ones(2)), torch.full((2,), 2.0))
            with pytest.raises(RuntimeError, match=r"^no \[2\]$"):
                module.fail(torch.ones(2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_subclasses_and_parameters(module: ModuleType):
    class Special(torch.Tensor):
        pass

    x = torch.ones(2).as_subclass(Special)
    assert type(module.add(x, x)) is torch.Tensor  # as in torch's own build: C++ knows no subclasses of Python
    assert module.same(x) is x
    weights = torch.nn.Parameter(torch.ones(2))
    assert module.add(weights, weights).requires_grad
    assert module.first(weights) == 1


def test_modes_and_transforms(module: ModuleType):
    x = torch.ones(2, 3)
    with torch.no_grad():
        assert not module.add(x.requires_grad_(), x).requires_grad
    with torch.inference_mode():
        assert module.add(x, x).is_inference()
    x = torch.ones(2, 3)
    assert torch.equal(torch.vmap(lambda row: module.add(row, row))(x), x + x)
    assert torch.equal(torch.func.grad(lambda y: module.parts(module.add(y, y)))(x), torch.full((2, 3), 2.0))
    with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor that doesn't have storage"):
        torch.func.grad(lambda y: module.parts(y) * module.first(y))(x)


def test_tensors_without_memory_have_sizes(module: ModuleType):
    assert module.facts(torch.empty(3, 2, device="meta", dtype=torch.float64)) == "[3, 2] meta double"
    assert module.add(torch.empty(3, device="meta"), torch.empty(3, device="meta")).device.type == "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(4, 2)
    assert module.facts(fake) == "[4, 2] cpu float"


def test_operators_are_those_of_torch(module: ModuleType):
    names = {"torch": torch, "x": torch.tensor([[0.5, 0.25, 2.0], [1.0, 0.125, 4.0]]), "w": torch.ones(3)}
    names["n"] = torch.tensor([[1, 6, 2], [3, 9, 4]])
    results = module.operators(*(names[name] for name in "xnw"))
    for (text, expression), result in zip(OPERATORS.items(), results, strict=True):
        value = eval(expression, names)
        assert (result.dtype, result.shape, result.stride()) == (value.dtype, value.shape, value.stride()), text
        assert torch.equal(result, value), text


def test_assignments_change_a_tensor(module: ModuleType):
    x, n = torch.tensor([[0.5, 2.0], [1.0, 4.0], [3.0, 0.5]]), torch.tensor([[1, 6], [3, 9]])
    changed = ((x + x - (x + x) * 2) ** 2 / ((x + x - (x + x) * 2) ** 2 + 1) + 1 - 3) * 2 / 4
    changed[:2] = 7
    bits = ((n & (n + 1)) ^ 5 | 8) & 14
    results = module.changed(x, n)
    assert torch.equal(results[0], changed)
    assert torch.equal(results[1], bits)
    assert results[0] is x


@pytest.mark.skipif(RELEASE < (2, 11), reason="suggest_memory_format of torch 2.10's Python differs from its C++")
def test_memory_formats_are_those_of_torch(module: ModuleType):
    from torch._prims_common import suggest_memory_format

    suggested = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
    fours = [(2, 3, 4, 5), (2, 1, 4, 5), (3, 1, 1, 1), (1, 3, 1, 4), (2, 0, 4, 5)]
    tensors = [torch.zeros(shape) for shape in ((4, 3), *fours, (2, 3, 4, 5, 6), (1, 1, 2, 1, 3))]
    images = [x for x in tensors if x.ndim == 4]
    tensors += [x.to(memory_format=torch.channels_last) for x in images]
    tensors += [x.to(memory_format=torch.channels_last_3d) for x in tensors if x.ndim == 5]
    tensors += [y for x in tensors for y in (x[..., ::2], x.transpose(1, -1), x[:1].expand_as(x))]
    tensors += [x[:, :1].expand_as(x) for x in images if x.shape[1]]
    for x in tensors:
        *formats, index = module.formats(x)
        expected = [x.is_contiguous(memory_format=suggested[number]) for number in (0, 2, 3)]
        assert (formats, suggested[index]) == (expected, suggest_memory_format(x)), (x.shape, x.stride())


@pytest.mark.parametrize(
    ("value", "results"),
    [
        (3, {"": "3", "-": "-3", "uint8_t": "3", "int": "3", "at::Half": "3", "double": "3", "bool": "1"}),
        (-3, {"uint8_t": "253", "int16_t": "-3", "int64_t": "-3"}),
        (-300, {"uint8_t": "", "int16_t": "-300"}),
        (2**40, {"int": "", "int64_t": "1099511627776", "at::Half": "", "int16_t": "", "bool": "1"}),
        (2.75, {"": "2.75", "-": "-2.75", "int": "2", "uint8_t": "2", "float": "2.75", "bool": "1"}),
        (-0.5, {"uint8_t": "", "int": "0"}),
        (1e300, {"int64_t": "", "float": "", "at::Half": "", "double": "1e+300"}),
        (float("inf"), {"int": "", "float": "inf", "at::Half": "inf"}),
        (float("nan"), {"int64_t": "", "double": "nan", "bool": "1"}),
        (True, {"": "true", "int": "1", "at::Half": "1", "double": "1"}),
        (2 + 0j, {"": "(2,0)", "-": "(-2,-0)", "int": "2", "double": "2", "bool": "1"}),
        (1 - 2j, {"": "(1,-2)", "-": "(-1,2)", "int": "", "float": "", "bool": "1"}),
        (2j, {"bool": "1"}),
    ],
)
def test_numbers_are_converted_as_torch_converts_them(module: ModuleType, value: complex, results: dict[str, str]):
    tensor = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    for kind, text in results.items():
        if text:
            assert module.number(tensor, kind) == text, kind
        else:
            name = kind.replace("at::", "c10::")
            with pytest.raises(RuntimeError, match=f"^value cannot be converted to type {name} without overflow$"):
                module.number(tensor, kind)


def test_a_number_that_overflows_is_an_error_of_the_standard_library(module: ModuleType):
    assert module.overflows(torch.tensor(2**31))
    assert not module.overflows(torch.tensor(2**31 - 1))


def test_numbers_that_have_no_result_are_errors(module: ModuleType):
    with pytest.raises(RuntimeError, match="torch boolean negative"):
        module.number(torch.tensor(True), "-")
    with pytest.raises(RuntimeError, match=r"do not support integers of 2\*\*63"):
        module.number(torch.tensor(2**63, dtype=torch.uint64), "")


@pytest.mark.filterwarnings("ignore:Sparse")
def test_layouts_are_those_of_torch(module: ModuleType):
    x = torch.ones(2, 2)
    assert [module.layout(y) for y in (x, x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc())] == [0, 1, 2, 4]


def test_gradients_and_undefined_tensors(module: ModuleType):
    assert module.gradients(torch.ones(2, requires_grad=True)) == [True, False, True]
    assert module.gradients(torch.ones(2)) == [False, False, True]
    x = torch.rand(2, 3)
    assert torch.equal(module.undefined(x)[0], torch.nn.functional.layer_norm(x, [3]))
    for number in range(5):
        with pytest.raises(RuntimeError, match="undefined Tensor"):
            module.fail_undefined_with_number(number)
