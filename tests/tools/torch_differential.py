"""Compare one C++ text as jitload builds it with torch's own build of it, call by call: `python tests/tools/torch_differential.py`.

Each function of the text is one expression of `EXPRESSIONS`, which runs with every input of a list, plainly and inside
torch's modes. Values, dtypes, strides, changed arguments and errors must be equal. The exit status is 1 if a call differs.
Torch's build takes a minute or two, once.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

import torch
import torch.utils.cpp_extension
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import jitload.cpp_extension

T = torch.Tensor
# Expressions of one tensor, and of two. A text before a colon is a statement that runs first.
UNARY = """
-x | ~x | x + 1 | x + 1.5 | 1 - x | 2 / x | x * true | x % 2 | 3 % x | x > 0 | 1 <= x | x != 2 | x & 1 | x | 2 | x ^ 3
x + torch::Scalar(0.1f) | x * at::Scalar(int64_t(3)) | x - 2.5 | x / 4 | x += 1; x | x -= 0.5; x | x *= 2; x | x /= 3; x
x.abs() | x.sqrt() | x.exp() | x.sin() | x.sigmoid() | torch::relu(x) | torch::tanh(x) | torch::log1p(x) | x.round() | x.sign()
x.neg() | x.square() | x.isnan() | torch::isfinite(x) | x.logical_not() | torch::leaky_relu(x, 0.1) | torch::gelu(x, "tanh")
x.clamp(0, 1) | x.clamp(0.5) | torch::clamp_min(x, 0) | x.clamp_max(1.5) | x.pow(2) | x.pow(0.5) | torch::pow(2, x)
x.fmod(2) | x.remainder(1.5) | x.floor_divide(2) | x.div(2, "trunc") | x.add(x, 2) | x.sub(1, 3) | torch::rsub(x, 1)
x.addcmul(x, x, 0.5) | x.lerp(x, 0.3) | x.masked_fill(x > 0, 7) | torch::where(x > 0, x, torch::zeros_like(x))
torch::where(x > 0, 1.5, 2) | x.fill_(2.5) | x.zero_() | x.add_(x, 2) | x.mul_(x).sub_(1) | torch::full_like(x, 3)
x.sum() | x.sum(0) | x.sum({0}, true) | x.sum(-1, false, torch::kDouble) | x.mean() | x.mean(0) | x.prod() | x.prod(0)
x.var() | x.var(0) | x.var(-1) | x.var(false) | x.var({0}, true, true) | x.std(0) | x.std(true) | at::var(x, 0) | at::std(x, 0)
std::get<0>(at::var_mean(x, 0)) | std::get<1>(torch::std_mean(x, -1)) | x.var(torch::IntArrayRef{0}, 0) | x.norm() | x.norm(1)
x.norm(2, 0) | x.max() | std::get<0>(x.max(0)) | std::get<1>(x.min(-1, true)) | x.argmax() | x.argmin(0) | x.amax(0) | x.amin()
x.any() | x.all(0) | x.cumsum(0) | x.cumprod(-1) | std::get<0>(x.sort(0)) | std::get<1>(x.topk(1, 0)) | x.logsumexp(0)
torch::softmax(x, 0) | torch::log_softmax(x, -1, torch::kFloat) | torch::argsort(x) | x.count_nonzero() | x.nonzero()
x.view(-1) | x.view({1, -1}) | x.reshape({-1}) | x.t() | x.transpose(0, -1) | x.permute({0}) | x.flatten() | x.squeeze()
x.squeeze(0) | x.unsqueeze(0) | x.unsqueeze(-1) | x.expand({2, -1, -1}) | x.repeat({2, 1}) | x.select(0, 0) | x.select(0, 9)
x.narrow(0, 0, 1) | x.slice(0, 0, 1) | x[0] | x[-1] | x[9] | x.flip({0}) | x.roll(1) | x.diagonal() | x.tril() | x.chunk(2)[0]
x.split(1)[0] | torch::cat({x, x}) | torch::stack({x, x}, 1) | x.contiguous() | x.clone() | x.detach() | x.alias()
x.index({0}) | x.index({Slice(0, 1)}) | x.index({None, "..."}) | x.index({Ellipsis, 0}) | x.index({x > 0}) | x.index({Slice(), -1})
x.index_put_({0}, 5); x | x.index_put_({Slice()}, x * 2); x | x.index_put_({x > 0}, -1); x | x[0] = 3; x | x[0] = x[0] * 2; x
x.to(torch::kFloat) | x.to(torch::kHalf) | x.to(torch::kBFloat16) | x.to(torch::kLong) | x.to(torch::kBool) | x.toType(torch::kInt)
x.to(torch::kComplexFloat) | x.to(torch::kCPU, torch::kDouble) | x.to(x.options().dtype(torch::kShort)) | x.type_as(x.to(torch::kInt))
torch::zeros_like(x) | torch::empty_like(x).zero_() | torch::ones_like(x, torch::kFloat) | x.new_zeros({2}) | x.new_full({2}, 1.5)
torch::zeros({2, 3}) | torch::ones({2}, x.options()) | torch::full({2}, 7) | torch::full({2}, 1.5) | torch::arange(5)
torch::arange(0, 1, 0.25) | torch::linspace(0, 1, 5) | torch::eye(3) | torch::scalar_tensor(2.5) | torch::empty({0, 2}, torch::kInt)
torch::tensor(1.5) | torch::tensor({1, 2, 3}) | torch::tensor({{1.5f, 2.f}, {3.f, 4.f}}) | torch::tensor({true, false})
torch::tensor(std::vector<double>{1, 2}) | torch::tensor({1, 2}, torch::kHalf) | torch::tensor({1.5}, x.options())
torch::from_blob(new float[2]{1, 2}, {2}) | torch::ones({1}) * x.item() | torch::ones({1}) * x.sum().item()
torch::zeros({x.dim(), x.size(0)}) | torch::zeros({1}).fill_(x.stride(-1)) | torch::zeros({1}).fill_(x.numel() * x.element_size())
torch::zeros({1}).fill_(x.is_contiguous() + 2 * x.is_floating_point() + 4 * x.requires_grad() + 8 * x.is_signed())
torch::zeros({1}).fill_(static_cast<int>(x.scalar_type())) | torch::zeros({1}).fill_(x.storage_offset()) | x.size(7) + x | x.stride(-5) + x
torch::zeros({1}).fill_(x.data_ptr<float>() != nullptr) | torch::zeros({1}).fill_(x.data_ptr<int64_t>() != nullptr) | torch::zeros({1}).fill_(x.accessor<float, 2>().size(1))
torch::zeros({1}).fill_(int64_t(x.nbytes())) | torch::zeros({1}).fill_(x.is_alias_of(x))
torch::zeros({1}).fill_(x.data_ptr() != nullptr) | torch::zeros({1}).fill_(x.mutable_data_ptr<float>() != nullptr) | torch::zeros({1}).fill_(x.item<double>()) | torch::zeros({1}).fill_(x.item<int>()) | torch::zeros({1}).fill_(x.item<bool>())
x.unsqueeze_(0); x | x.resize_({1}).zero_(); x | x.t_(); x | x.transpose_(0, 1); x | x.requires_grad_(); x | x.set_requires_grad(true); x
torch::linalg_norm(x) | torch::fft::fft(x) | torch::special::expm1(x) | torch::einsum("...->...", {x}) | torch::nan_to_num(x, 0.5)
torch::dropout(x, 0.5, false) | torch::layer_norm(x, x.sizes()) | torch::one_hot(x.to(torch::kLong).clamp(0, 3), 4) | torch::bincount(x)
kept = x; kept | kept = x; x.unsqueeze_(0); kept | kept = x; x.resize_({3}).zero_(); kept | torch::Tensor(); torch::relu(torch::Tensor())
TORCH_CHECK(x.dim() > 5, "dim ", x.dim(), " of ", x.sizes()); x | TORCH_CHECK_INDEX(false, "index"); x | TORCH_CHECK_VALUE(false, x.dtype()); x
TORCH_CHECK_TYPE(false, x.scalar_type()); x | TORCH_CHECK_NOT_IMPLEMENTED(false, x.device()); x | TORCH_CHECK(false); x
torch::zeros({1}, torch::TensorOptions().device("cuda:99")) | x.to(torch::kCUDA) | torch::promote_types(x.scalar_type(), torch::kHalf) == torch::kHalf ? x : -x
torch::zeros({1}).fill_(double(std::numeric_limits<at::Half>::lowest())) | torch::zeros({1}).fill_(double(std::numeric_limits<at::BFloat16>::max()))
"""
BINARY = """
x + y | x - y | x * y | x / y | x % y | x > y | x <= y | x == y | x & y | x | y | x ^ y | x += y; x | x -= y; x | x *= y; x | x /= y; x
torch::maximum(x, y) | x.min(y) | torch::pow(x, y) | torch::atan2(x, y) | x.fmod(y) | x.remainder(y) | torch::div(x, y, "floor")
x.add(y, 2) | x.sub(y, 0.5) | torch::matmul(x, y) | x.mm(y) | x.mul_(y) | x.copy_(y) | torch::where(x > 0, x, y) | x.lerp(y, 0.5)
torch::cat({x, y}) | torch::stack({x, y}) | x.equal(y) ? x : y | torch::isclose(x, y) | torch::allclose(x, y) ? x : y | x.dot(y)
torch::addmm(x, y, y, 2, 0.5) | x.index_select(0, y) | x.gather(0, y) | x.masked_select(y) | x.index({y}) | x.scatter(0, y, 1)
x.expand_as(y) | x.view_as(y) | x.type_as(y) | torch::zeros({1}, torch::result_type(x, y)) | x.is_same_size(y) ? x : y | x = y; x
kept = x; kept += y; x | torch::bitwise_left_shift(x, y)
"""
# Expressions of a tensor and a number `n`, one of `NUMBERS`.
NUMBERED = """
x + n | n + x | x - n | n - x | x * n | n * x | x / n | n / x | x % n | x += n; x | x -= n; x | x *= n; x | x /= n; x
x < n | x <= n | x > n | x >= n | x == n | x != n | n < x | n >= x | x.gt(n) | x.add(n) | x.add(n, 2) | x.sub(n) | x.sub_(n)
x.sub(x, n) | x - x | x.sub(x, 1) | x.mul(n) | x.mul_(n) | x.div(n) | x.div_(n) | x.add_(n) | x.fill_(n) | x[0] = n; x
torch::full({2}, n, x.options()) | torch::full({2}, n) | torch::full_like(x, n)
torch::full({2}, n, torch::kByte) | torch::full({}, n, torch::kHalf) | x.new_full({2}, n) | torch::empty({2}, x.options()).fill_(n)
torch::zeros({2, 0, 3}, x.options()) | torch::zeros({-1}, x.options()) | torch::empty({2}, x.options().requires_grad(true)).zero_()
torch::zeros({1, 2, 3, 4}, x.options().memory_format(torch::MemoryFormat::ChannelsLast)) | torch::full({-2}, n, x.options())
"""
FLOATS = "0.1 1.5 -0.0 -2.5 1e300 3.5e38 1e-50 16777217.0 INFINITY NAN at::Half(0.1f) 0.1f"
INTEGERS = "0 3 -1 300 16777217 int64_t(9007199254740993) -int64_t(9007199254740993) (int64_t(1)<<62) true"
NUMBERS = (*FLOATS.split(), *INTEGERS.split())
TAKE_NUMBER = "const auto n = number(i); "
PRELUDE = (
    "#include <torch/extension.h>\n#include <cmath>\nusing namespace torch::indexing;\nstatic torch::Tensor kept;\n"
    f"torch::Scalar number(int64_t i) {{ const torch::Scalar all[] = {{{', '.join(NUMBERS)}}}; return all[i]; }}\n"
)


def expressions(text: str) -> list[str]:
    """Return the expressions of a table, in which ` | ` separates them; an operator `|` has a single operand after it."""
    lines = text.replace("x | 2 |", "x @ 2 |").replace("x | y |", "x @ y |").strip().splitlines()
    return [part.strip().replace("@", "|") for line in lines for part in line.split(" | ")]


FUNCTIONS = {
    **{f"u{i}": ("torch::Tensor x", body) for i, body in enumerate(expressions(UNARY))},
    **{f"b{i}": ("torch::Tensor x, torch::Tensor y", body) for i, body in enumerate(expressions(BINARY))},
    **{f"n{i}": ("int64_t i, torch::Tensor x", TAKE_NUMBER + body) for i, body in enumerate(expressions(NUMBERED))},
}


def source() -> str:
    """Return the text, with a function for each expression."""
    lines = []
    for name, (parameters, body) in FUNCTIONS.items():
        *statements, value = body.split("; ")
        lines.append(f"torch::Tensor {name}({parameters}) {{ {''.join(f'{s}; ' for s in statements)}return {value}; }}")
    return PRELUDE + "\n".join(lines)


def unary_inputs() -> Iterator[tuple[str, Callable[[], tuple[T, ...]]]]:
    """Yield a name and a function that makes the same tensors each time."""
    base = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 2.0]])
    yield "float", lambda: (base.clone(),)
    yield "half", lambda: (base.half(),)
    yield "int64", lambda: (base.long(),)
    yield "bool", lambda: (base.bool(),)
    yield "strided", lambda: (base.repeat(1, 2)[:, ::2],)
    yield "scalar", lambda: (base[0, 1].clone(),)
    yield "empty", lambda: (torch.empty(0, 3),)
    yield "nested", lambda: (torch.nested.nested_tensor([torch.ones(2), -torch.ones(3)]),)
    yield "sparse", lambda: (base.to_sparse(),)
    yield "mkldnn", lambda: (base.to_mkldnn(),)


def binary_inputs() -> Iterator[tuple[str, Callable[[], tuple[T, ...]]]]:
    """Yield pairs of tensors of several dtypes and shapes; `same` is one tensor as both."""
    x, y = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[2.0, 1.0], [-1.0, 0.5]])
    for pair in ("float32, float32", "int64, float32", "float16, float64", "int32, int64", "bool, uint8"):
        left, right = (getattr(torch, name) for name in pair.split(", "))
        yield pair, lambda a=left, b=right: (x.to(a, copy=True), y.to(b, copy=True))
    yield "row", lambda: (x.clone(), y[0].clone())
    yield "0-dim", lambda: (x.long(), torch.tensor(1.5, dtype=torch.float64))
    yield "mismatch", lambda: (x.clone(), torch.ones(3))
    yield "index", lambda: (x.clone(), torch.tensor([[1, 0], [0, 1]]))
    yield "same", lambda: (z := x.clone(), z)


DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "float8_e4m3fn"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


def numbered_inputs() -> Iterator[tuple[str, Callable[[], tuple[T, ...]]]]:
    """Yield a tensor of each dtype with one dimension, without dimensions, and without elements."""
    base = torch.tensor([1.0, -2.0, 0.3, 0.0, -0.0, 1e4, float("inf"), float("nan")])
    for name in DTYPES:
        dtype = getattr(torch, name)
        finite = base if dtype.is_floating_point or dtype.is_complex else base[:5]
        yield name, lambda x=finite, dtype=dtype: (x.to(dtype, copy=True),)
        yield f"{name} 0-dim", lambda x=finite, dtype=dtype: (x[2].to(dtype, copy=True),)
        yield f"{name} empty", lambda dtype=dtype: (torch.empty(0, 3, dtype=dtype),)
    yield "strided", lambda: (base.repeat(2, 1).t()[::2],)


class Subclass(T):
    """A tensor whose functions in Python do something else, which C++ must not see."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.ones(1)


def _in_fake_mode(function: Callable[..., T], arguments: tuple[T, ...]) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        value = function(*(mode.from_tensor(x) for x in arguments))
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


class Tenfold(TorchDispatchMode):
    """A mode that changes what each operator returns, so that one operator more or less changes the result."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = function(*args, **(kwargs or {}))
        return value * 10 if isinstance(value, T) and value.is_floating_point() else value


class Refusing(TorchFunctionMode):
    """A mode for functions of Python, which C++ must not call."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError(f"C++ called {function}")


def _with_default_dtype(function: Callable[..., T], arguments: tuple[T, ...]) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return function(*arguments)
    finally:
        torch.set_default_dtype(torch.float32)


def _inside(mode: Callable[[], Any]) -> Callable[[Callable[..., T], tuple[T, ...]], Any]:
    def run(function: Callable[..., T], arguments: tuple[T, ...]) -> Any:
        with mode():
            return function(*arguments)

    return run


def _tangent(function: Callable[..., T], arguments: tuple[T, ...]) -> Any:
    with forward_ad.dual_level():
        duals = (forward_ad.make_dual(x, torch.ones_like(x)) if x.is_floating_point() else x for x in arguments)
        return forward_ad.unpack_dual(function(*(x.requires_grad_(x.is_floating_point()) for x in duals)))[1]


def _gradient(function: Callable[..., T], arguments: tuple[T, ...]) -> Any:
    leaves = [x.requires_grad_() for x in arguments if x.is_floating_point()]
    value = function(*(x * 1 if x.requires_grad else x for x in arguments))
    return torch.autograd.grad(value.sum(), leaves, allow_unused=True)[0] if value.requires_grad else value


# How a call is made: a function of the compiled function and its arguments.
MODES: dict[str, Callable[[Callable[..., T], tuple[T, ...]], Any]] = {
    "requires_grad": lambda f, a: f(*(x.requires_grad_() if x.is_floating_point() else x for x in a)),
    "gradient": _gradient,
    "inference": lambda f, a: torch.inference_mode()(f)(*a),
    "no_grad": lambda f, a: torch.no_grad()(f)(*a),
    "autocast": lambda f, a: torch.autocast("cpu", dtype=torch.bfloat16)(f)(*a),
    "meta": lambda f, a: f(*(x.to("meta") for x in a)),
    "vmap": lambda f, a: torch.vmap(f)(*a),
    "fake": _in_fake_mode,
    "default device": _inside(lambda: torch.device("meta")),
    "dispatch mode": _inside(Tenfold),
    "function mode": _inside(Refusing),
    "tangent": _tangent,
    "default dtype": _with_default_dtype,
    "subclass": lambda f, a: f(*(x.as_subclass(Subclass) for x in a)),
    "conjugate": lambda f, a: f(
        *(torch.complex(x, x).conj() if x.is_floating_point() and x.dtype != torch.half else x for x in a)
    ),
}


# Calls that differ on purpose: some that torch refuses in a fake mode are accepted, torch::from_blob calls no operator,
# torch::tensor of a vector has another error in a fake mode, a size of a nested tensor is refused, and parts of sparse
# tensors cannot be assigned to; a list of numbers cannot be sparse, and torch drops the numbers. Messages name the nodes
# of autograd, which differ. Lists of torch::tensor are undefined if a mode does not return views.
KNOWN = {
    ("x.index_put_({0}, 5); x", "sparse"),
    ("x.index_put_({Slice()}, x * 2); x", "sparse"),
    ("x.index_put_({x > 0}, -1); x", "nested"),
    ("x.mul_(x).sub_(1)", "gradient"),
    *(("torch::tensor({1.5}, x.options())", kind) for kind in ("sparse", "mkldnn")),
    *((body, "nested") for body in ("torch::zeros({x.dim(), x.size(0)})", "x.size(7) + x")),
    *(
        (f"torch::tensor({body})", "dispatch mode")
        for body in ("{1, 2, 3}", "{{1.5f, 2.f}, {3.f, 4.f}}", "{true, false}")
    ),
    *((f"torch::tensor({body})", "dispatch mode") for body in ("{1, 2}, torch::kHalf", "{1.5}, x.options()")),
    ("torch::tensor(std::vector<double>{1, 2})", "fake"),
    *(("torch::from_blob(new float[2]{1, 2}, {2})", mode) for mode in ("fake", "dispatch mode")),
}


def outcome(function: Callable[..., T], make: Callable[[], tuple[T, ...]], mode: Any) -> tuple[Any, ...]:
    """Return what a call returned or raised, and its arguments afterwards, as data that can be compared."""
    arguments = make()
    try:
        value = mode(function, arguments) if mode else function(*arguments)
        result: Any = described(value)
        result += (next((i for i, x in enumerate(arguments) if x is value), None),)
    except Exception as error:  # noqa: BLE001  the outcome says it
        result = (type(error).__name__, str(error).splitlines()[0] if str(error) else "")
    return (result, *map(described, arguments))


def described(x: Any) -> tuple[Any, ...]:
    if not isinstance(x, T):
        return (repr(x),)
    with torch._C.DisableTorchFunction():
        facts = (type(x).__name__, x.dtype, x.device.type, x.layout, x.requires_grad, x.is_inference())
        if x.layout != torch.strided or x.is_nested:
            return (*facts, [*map(described, x.unbind())] if x.is_nested else repr(x))
        facts += (tuple(x.shape), x.stride())
        values = None if x.device.type == "meta" else repr(x.detach().resolve_conj().contiguous().view(-1).tolist())
    return (*facts, values)


def compare(ours: Any, theirs: Any) -> tuple[int, list[str]]:
    """Return the number of comparisons and a line for each difference."""
    count, differences = 0, []
    inputs = {"u": [*unary_inputs()], "b": [*binary_inputs()], "n": [*numbered_inputs()]}
    for name, (_, text) in FUNCTIONS.items():
        body = text.removeprefix(TAKE_NUMBER)
        numbers = [(i,) for i in range(len(NUMBERS))] if name[0] == "n" else [()]
        cases = [(label, make, None, number) for label, make in inputs[name[0]] for number in numbers]
        cases += [(mode, inputs[name[0]][0][1], run, number) for mode, run in MODES.items() for number in numbers]
        for kind, make, mode, number in cases:
            torch.manual_seed(0)
            mine = outcome(functools.partial(getattr(ours, name), *number), make, mode)
            torch.manual_seed(0)
            other = outcome(functools.partial(getattr(theirs, name), *number), make, mode)
            count += 1
            label = ", ".join((kind, *(NUMBERS[i] for i in number)))
            if mine != other and (body, label) not in KNOWN:
                differences.append(f"{body}  [{label}]\n    jitload {mine}\n    torch   {other}")
    return count, differences


def main() -> int:
    """Build the text twice and print what differs."""
    os.environ.setdefault("MAX_JOBS", "2")
    text, names = source(), [*FUNCTIONS]
    ours = jitload.cpp_extension.load_inline("torch_differential", text, functions=names)
    theirs = torch.utils.cpp_extension.load_inline("torch_differential", text, functions=names)
    count, differences = compare(ours, theirs)
    print(*differences, sep="\n")
    print(f"{count} comparisons with torch {torch.__version__}, {len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
