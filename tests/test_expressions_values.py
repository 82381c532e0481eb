"""The values of launch expressions, against Python's own evaluation of the same text."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.arrays import CudaArray
from support.driver import StubDriver
from support.python_evaluation import (
    AXIS,
    DIVISION_BY_ZERO,
    INT64_MAX,
    INT64_MIN,
    OVERFLOW,
    Arguments,
    EvaluationError,
    Tensor,
    evaluate,
)
from support.raw import RawCallError, call_raw

import jitload
from jitload.errors import LaunchSpecError

SOURCE = """
extern "C" __global__ void f(const float* x, float* y, long long n, long long in, long long given, long long k,
                             long long value) {}
"""
MAX_LENGTH = 1000
MESSAGES = {
    DIVISION_BY_ZERO: "division of {} by zero",
    OVERFLOW: "the result of {} and {} does not fit 64 bits",
    AXIS: "axis {} is out of range for a tensor of {} dimension",
}


@pytest.fixture(scope="module")
def build() -> Callable[[Sequence[int | str]], jitload.Module]:
    """A function that builds a module in which `f0` launches the value of the first expression, and so on."""
    cubin = jitload.compile_cubin(SOURCE, arch="sm_90a")

    def build(expressions: Sequence[int | str]) -> jitload.Module:
        functions = {
            f"f{number}": jitload.Launch(
                kernel="f", grid=1, block=1, strided=("x", "y"), args={"k": "given", "value": expression}
            )
            for number, expression in enumerate(expressions)
        }
        return jitload.load_inline("values", embed_cubin={"f": cubin}, functions=functions, keep_module_alive=False)

    return build


def claim(tensor: Tensor) -> CudaArray:
    return CudaArray(np.zeros(1, np.float32), shape=tensor.extents, strides=tensor.steps or "null")


def value_of(function: object, arguments: Arguments, driver: StubDriver) -> int | str:
    """Return the value that a call launches, or the error of the call."""
    driver.clear()
    is_bool = arguments.in_ in (0, 1)
    numbers = (arguments.n, bool(arguments.in_) if is_bool else arguments.in_, arguments.k)
    try:
        call_raw(function, claim(arguments.x), claim(arguments.y), *numbers)
    except RawCallError as error:
        return error.message
    (launch,) = driver.launches()
    return int.from_bytes(launch.arguments[-1], "little", signed=True)


def assert_failed(result: int | str, failure: tuple[int, ...]) -> None:
    kind, *operands = failure
    assert isinstance(result, str)
    assert "(): value = " in result
    assert MESSAGES[kind].format(*operands) in result


NUMBERS = st.one_of(
    st.integers(-4, 4),
    st.integers(-300, 5000),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX, 2**31, -(2**31), 2**32, 2**62, 2**62 + 1, -(2**62)]),
    st.integers(INT64_MIN, INT64_MAX),
)
LITERALS = st.one_of(NUMBERS.map(lambda n: f"({n})"), st.sampled_from(["True", "False", "0", "1", "0x7f_ff", "0b11"]))
NAMES = st.sampled_from(["n", "n", "in_", "k", "x.ndim", "y.dim()", "x.numel()", "y.numel()"])
BINARY = st.sampled_from(["+", "-", "*", "//", "%"])
COMPARISON = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, inner)
    lists = st.lists(inner, min_size=2, max_size=4)
    links = st.lists(st.tuples(COMPARISON, inner), min_size=1, max_size=3)
    return st.one_of(
        st.tuples(inner, BINARY, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, links).map(lambda t: f"({t[0]} {' '.join(f'{op} {right}' for op, right in t[1])})"),
        st.tuples(st.sampled_from([" and ", " or "]), lists).map(lambda t: f"({t[0].join(t[1])})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(st.sampled_from(["-", "+", "not "]), inner).map(lambda t: f"({t[0]}{t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), lists).map(lambda t: f"{t[0]}({', '.join(t[1])})"),
        pairs.map(lambda t: f"ceil_div({t[0]}, {t[1]})"),
        inner.map(lambda t: f"next_power_of_2({t})"),
        st.tuples(st.sampled_from(["x.shape[{}]", "x.size({})", "y.stride({})", "x.stride({})"]), inner).map(
            lambda t: t[0].format(t[1])
        ),
        st.tuples(st.sampled_from(["x.shape[{}]", "y.stride({})"]), st.integers(-4, 3)).map(
            lambda t: t[0].format(t[1])
        ),
    )


def unparse(text: str) -> str:
    """Leave out the parentheses that Python does not need."""
    return ast.unparse(ast.parse(text, mode="eval"))


EXPRESSIONS = (
    st.recursive(st.one_of(NAMES, LITERALS), grow, max_leaves=10).map(unparse).filter(lambda t: len(t) <= MAX_LENGTH)
)
EXTENTS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**40)), max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    extents = draw(EXTENTS)
    steps = draw(st.none() | st.lists(NUMBERS, min_size=len(extents), max_size=len(extents)).map(tuple))
    return Tensor(tuple(extents), steps)


ARGUMENTS = st.builds(Arguments, x=tensors(), y=tensors(), n=NUMBERS, in_=NUMBERS, k=NUMBERS)
PLAIN = Arguments(x=Tensor((4, 0, 3), None), y=Tensor((6, 5), (5, 1)), n=1000, in_=0, k=3)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(EXPRESSIONS, min_size=20, max_size=20), arguments=ARGUMENTS)
def test_an_expression_has_the_value_that_python_computes(build, loaded_stub, texts, arguments):
    while True:
        try:
            module = build(texts)
        except LaunchSpecError as error:
            with pytest.raises(EvaluationError):
                evaluate(error.expression, arguments)
            texts.remove(error.expression)
        else:
            break
    for number, text in enumerate(texts):
        result = value_of(module[f"f{number}"], arguments, loaded_stub)
        try:
            assert result == evaluate(text, arguments)
        except EvaluationError as failure:
            assert_failed(result, failure.args)


FAILING = [
    ("n // in_", (DIVISION_BY_ZERO, 1000, 0)),
    ("ceil_div(n, in_)", (DIVISION_BY_ZERO, 1000, 0)),
    ("n * 9223372036854775807", (OVERFLOW, 1000, INT64_MAX)),
    ("-(-9223372036854775808 + in_)", (OVERFLOW, 0, INT64_MIN)),
    ("(-9223372036854775808 + in_) // (in_ - 1)", (OVERFLOW, INT64_MIN, -1)),
    ("next_power_of_2(4611686018427387905 + in_)", (OVERFLOW, 2**62 + 1, 0)),
    ("x.shape[3]", (AXIS, 3, 3)),
    ("y.stride(n)", (AXIS, 1000, 2)),
    # the first failure ends the evaluation
    ("x.shape[n] // in_", (AXIS, 1000, 3)),
    ("(n // in_) % (n // in_ * 0)", (DIVISION_BY_ZERO, 1000, 0)),
]
LAZY: list[tuple[int | str, int]] = [
    ("in_ and n // in_", 0),
    ("n or n // in_", 1000),
    ("5 if n else n // in_", 5),
    ("1 < in_ < n // in_", 0),
    ("1 // 0 if 0 else n", 1000),
]
VALUES: list[tuple[int | str, int]] = [
    ("-n // 300", -4),
    ("(-9223372036854775808 + in_) % (in_ - 1)", 0),
    ("x.numel() + y.numel()", 30),
    ("x.stride(0) * 100 + x.stride(1) * 10 + x.stride(-1)", 331),
    ("next_power_of_2(n) + next_power_of_2(in_) + next_power_of_2(-k) + next_power_of_2(1)", 1025),
    (INT64_MIN, INT64_MIN),
    ("2147483648 if n else -2147483649", 2147483648),
    ("0x_ff + 0b1_0 + 0o17 + 1_000", 1272),
    ("(n +\r\n\tk)", 1003),
    (" and ".join(["n"] * 125), 1000),
    ("<".join(["0"] * 100 + ["n"] * 2), 0),
    ("max(" + ",".join(["n"] * 480) + ")", 1000),
]


def test_a_failed_operation_is_reported_with_its_operands(build, stub_driver):
    module = build([text for text, _ in FAILING])
    for number, (_, failure) in enumerate(FAILING):
        assert_failed(value_of(module[f"f{number}"], PLAIN, stub_driver), failure)


def test_an_expression_evaluates_only_what_it_needs(build, stub_driver):
    rows = LAZY + VALUES
    module = build([text for text, _ in rows])
    for number, (text, value) in enumerate(rows):
        assert value_of(module[f"f{number}"], PLAIN, stub_driver) == value, text


def test_empty_tensor_has_no_elements_however_large_it_is(build, stub_driver):
    arguments = replace(PLAIN, x=Tensor((2**40, 2**40, 0), None))
    assert value_of(build(["x.numel()"]).f0, arguments, stub_driver) == 0
