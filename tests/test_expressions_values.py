"""Launch expressions in the runtime's evaluator, against Python's own evaluation of the same text."""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.python_evaluation import (
    AXIS,
    DIVISION_BY_ZERO,
    INT64_MAX,
    INT64_MIN,
    INTEGER,
    NOT_A_TENSOR,
    OK,
    OVERFLOW,
    Arguments,
    Python,
    Tensor,
)

import jitload
from jitload.codegen.record import layout, ops_array
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import Op, ScopeEntry, compile_expression
from jitload.expressions.parse import MAX_LENGTH

WHERE = 7  # the number of values that a program stores before the expression

SCOPE = {
    "x": ScopeEntry(position=0, kind="tensor", type="const float*"),
    "y": ScopeEntry(position=1, kind="tensor", type="float*"),
    "n": ScopeEntry(position=2, kind="int", type="int"),
    "in_": ScopeEntry(position=3, kind="int", type="long long"),
    "k": ScopeEntry(position=-1, kind="int", type="int", computed=0),
    "scale": ScopeEntry(position=4, kind="other", type="float"),
}


def compiled(text: int | str) -> bytes:
    """Return the program that stores the value of an expression in the plan's shared memory."""
    before = (Op("CONSTANT"), Op("STORE", 0)) * WHERE
    program = (*before, *compile_expression(text, SCOPE, kernel="add", field="grid[0]"), Op("STORE", 9))
    form = layout("op")
    return b"".join(form.pack(dict(op.members)) for op in ops_array(program))  # type: ignore[arg-type]


# ---- the evaluator ---------------------------------------------------------------------------------------------


class Value(ctypes.Union):
    _fields_ = (("integer", ctypes.c_int64), ("pointer", ctypes.c_void_p))


class Argument(ctypes.Structure):  # TVMFFIAny
    _anonymous_ = ("value",)
    _fields_ = (("type_index", ctypes.c_int32), ("zero_padding", ctypes.c_uint32), ("value", Value))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class TensorObject(ctypes.Structure):
    _fields_ = (("header", ctypes.c_uint64 * 3), ("tensor", DLTensor))


class Eval(ctypes.Structure):  # jitload_eval
    _fields_ = (
        ("args", ctypes.POINTER(Argument)),
        ("error", ctypes.c_int32),
        ("error_expression", ctypes.c_int32),
        ("left", ctypes.c_int64),
        ("right", ctypes.c_int64),
        ("step", ctypes.c_void_p),
    )


def as_argument(tensor: Tensor, *, by_pointer: bool) -> tuple[Argument, object]:
    integers = ctypes.c_int64 * len(tensor.extents)
    strides = None if tensor.steps is None else integers(*tensor.steps)
    dl_tensor = DLTensor(ndim=len(tensor.extents), shape=integers(*tensor.extents), strides=strides)
    owner = dl_tensor if by_pointer else TensorObject(tensor=dl_tensor)
    value = Argument(type_index=7 if by_pointer else 70)
    value.pointer = ctypes.addressof(owner)
    return value, owner


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The function `jitload_evaluate`."""
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None and spec.origin is not None
    include_dirs = [Path(jitload.__file__).parent / "runtime", Path(spec.origin).parent / "include"]
    library = tmp_path_factory.mktemp("evaluator") / "evaluator.so"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", *(f"-I{path}" for path in include_dirs)]
    command = ["g++", "-std=c++17", *options, str(include_dirs[0] / "core" / "expression.cc"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library)).jitload_evaluate


def run(evaluate: Any, program: bytes, arguments: Arguments) -> tuple[int, Eval]:
    x, owner_x = as_argument(arguments.x, by_pointer=False)
    y, owner_y = as_argument(arguments.y, by_pointer=True)
    n, in_ = Argument(type_index=1), Argument(type_index=2 if arguments.in_ in (0, 1) else 1)
    n.integer, in_.integer = arguments.n, arguments.in_
    result = run_with(evaluate, program, [x, y, n, in_, Argument(type_index=3)], arguments.k)
    del owner_x, owner_y
    return result


def run_with(evaluate: Any, program: bytes, arguments: list[Argument], k: int) -> tuple[int, Eval]:
    state = Eval(args=(Argument * 5)(*arguments), error=-1)
    values = (ctypes.c_int64 * 1)(k)
    plan = (ctypes.c_char * 112)(*struct.pack("<10qQ4i", *(0,) * 10, ctypes.addressof(values), 1, 1, 1, 0))
    state.error = evaluate(program, ctypes.byref(state), plan)
    return struct.unpack_from("<q", plan, 72)[0], state


# ---- random expressions -------------------------------------------------------------------------------------------

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


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=EXPRESSIONS, arguments=ARGUMENTS)
def test_an_expression_has_the_value_that_python_computes(evaluate, text, arguments):
    python = Python(arguments)
    expected = python.evaluate(text)
    try:
        program = compiled(text)
    except LaunchSpecError:
        assert python.failures, "refused, but it has a value"
        return
    value, state = run(evaluate, program, arguments)
    if python.failures:
        assert (state.error, state.left, state.right) == python.failures[0]
        assert state.error_expression == WHERE
    else:
        assert (value, state.error) == (expected, OK)


# ---- failures and laziness, one by one ----------------------------------------------------------------------------

FAILING = [
    ("n // in_", (DIVISION_BY_ZERO, 1000, 0)),
    ("n % in_", (DIVISION_BY_ZERO, 1000, 0)),
    ("ceil_div(n, in_)", (DIVISION_BY_ZERO, 1000, 0)),
    ("n * 9223372036854775807", (OVERFLOW, 1000, INT64_MAX)),
    ("-(-9223372036854775808 + in_)", (OVERFLOW, 0, INT64_MIN)),
    ("(-9223372036854775808 + in_) // (in_ - 1)", (OVERFLOW, INT64_MIN, -1)),
    ("ceil_div(-9223372036854775808 + in_, in_ - 1)", (OVERFLOW, INT64_MIN, -1)),
    ("next_power_of_2(4611686018427387905 + in_)", (OVERFLOW, 2**62 + 1, 0)),
    ("x.shape[3]", (AXIS, 3, 3)),
    ("x.size(-4)", (AXIS, -4, 3)),
    ("y.stride(n)", (AXIS, 1000, 2)),
    # the first failure ends the evaluation
    ("x.shape[n] // in_", (AXIS, 1000, 3)),
    ("(n // in_) % (n // in_ * 0)", (DIVISION_BY_ZERO, 1000, 0)),
]
LAZY: list[tuple[int | str, int]] = [
    ("in_ and n // in_", 0),
    ("n or n // in_", 1000),
    ("5 if n else n // in_", 5),
    ("n // in_ if in_ else 6", 6),
    ("1 < in_ < n // in_", 0),
    ("n if in_ == 0 or n // in_ else 1 // 0", 1000),
    ("1 // 0 if 0 else n", 1000),
    ("0 and 1 // 0", 0),
]
VALUES: list[tuple[int | str, int]] = [
    ("-n // 300", -4),
    ("-n % 300", 200),
    ("n % -300", -200),
    ("(-9223372036854775808 + in_) % (in_ - 1)", 0),
    ("x.numel() + y.numel()", 30),
    ("x.stride(0) * 100 + x.stride(1) * 10 + x.stride(-1)", 331),
    ("next_power_of_2(n) + next_power_of_2(in_) + next_power_of_2(-k) + next_power_of_2(1)", 1025),
    ("x.ndim * y.dim()", 6),
    ("x.ndim", 3),
    ("x.numel()", 0),
    ("y.numel()", 30),
    ("in_", 0),
    (INT64_MIN, INT64_MIN),
    ("n < 2000 < 3000 != k", 1),
    ("k if n == 1 else 7", 7),
    ("2147483648 if n else -2147483649", 2147483648),
    ("-9223372036854775807 - 1", INT64_MIN),
    ("True + (3 < 4 < 5) - (not 0)", 1),
    ("0x_ff + 0b1_0 + 0o17 + 1_000", 1272),
    ("(n +\r\n\tk)", 1003),
    (" + ".join(["n"] * 50), 50000),
    (" and ".join(["n"] * 125), 1000),
    ("<".join(["0"] * 100 + ["n"] * 2), 0),
    ("max(" + ",".join(["n"] * 480) + ")", 1000),
]


@pytest.mark.parametrize(("text", "failure"), FAILING)
def test_a_failed_operation_is_reported_with_its_operands(evaluate, text, failure):
    _, state = run(evaluate, compiled(text), PLAIN)
    assert (state.error, state.left, state.right) == failure
    assert state.error_expression == WHERE


@pytest.mark.parametrize(("text", "value"), LAZY + VALUES)
def test_an_expression_evaluates_only_what_it_needs(evaluate, text, value):
    result, state = run(evaluate, compiled(text), PLAIN)
    assert (result, state.error) == (value, OK)


def test_empty_tensor_has_no_elements_however_large_it_is(evaluate):
    result, state = run(evaluate, compiled("x.numel()"), replace(PLAIN, x=Tensor((2**40, 2**40, 0), None)))
    assert (result, state.error) == (0, OK)


# None, float, a raw string, a string object, a BigInt
@pytest.mark.parametrize("type_index", [0, 3, 8, 65, 78])
@pytest.mark.parametrize(
    ("text", "failure"), [("in_", (INTEGER, 3)), ("x.ndim", (NOT_A_TENSOR, 0)), ("y.numel()", (NOT_A_TENSOR, 1))]
)
def test_argument_of_another_kind(evaluate, text, failure, type_index):
    _, state = run_with(evaluate, compiled(text), [Argument(type_index=type_index)] * 5, 0)
    assert (state.error, state.left) == failure
