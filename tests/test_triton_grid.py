"""Grids as Triton takes them, translated to launch expressions."""

import math
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl

from jitload.errors import LaunchSpecError
from jitload.triton.grid import GridScope, read_grid

SCOPE = GridScope(kernel="k", arguments=("x", "n", "M", "N"), constexprs=("BLOCK", "BLOCK_M", "BLOCK_N"), examples={})
MODE = "split"
PROGRAMS = 132
WIDE = tl.constexpr(7)
n, M, N = 1000, 5, 6
x = object()
rows, data = None, [1, 2]


class Array:
    """A tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def data_ptr(self) -> int:
        return id(self)

    def numel(self) -> int:
        return self.shape[0]


source, target = Array(8), Array(9)


def named(meta: Any) -> Any:
    """Return the grid."""
    return (triton.cdiv(n, meta["BLOCK"]),)


def with_local_variables(meta: Any) -> Any:
    """Return the grid."""
    count, block = meta["n"], meta["BLOCK"]
    blocks: int = triton.cdiv(count, block)
    count = min(blocks, 8)
    extents = (count, blocks)
    return extents  # noqa: RET504


GRIDS = [
    (("a", 2), ("a", 2)),
    (lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),), ("ceil_div(n, BLOCK)",)),
    (lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]), 1),
     ("ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)", "1")),
    (lambda META: (min(PROGRAMS, triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"])),),
     ("min(132, ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N))",)),
    (lambda _: (x.numel() // 4, x.shape[0], x.size(1) + x.ndim),
     ("x.numel() // 4", "x.shape[0]", "x.size(1) + x.ndim")),
    (lambda m: [(n + m["BLOCK"] - 1) // m["BLOCK"], -(-n // 4)], ("(n + BLOCK - 1) // BLOCK", "-(-n // 4)")),
    (lambda m: (m["x"].numel() // m["BLOCK"], m["x"].shape[-1], m["x"].stride(0) + m["x"].ndim),
     ("x.numel() // BLOCK", "x.shape[-1]", "x.stride(0) + x.ndim")),
    (lambda m: (math.ceil(n / m["BLOCK"]),), ("ceil_div(n, BLOCK)",)),
    (lambda m: (triton.next_power_of_2(n), int(max(n, 1)), WIDE), ("next_power_of_2(n)", "max(n, 1)", "7")),
    (named, ("ceil_div(n, BLOCK)",)),
    (with_local_variables, ("min(ceil_div(n, BLOCK), 8)", "ceil_div(n, BLOCK)")),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "expected"), GRIDS)
def test_a_grid_becomes_launch_expressions(grid, expected):
    assert read_grid(grid, SCOPE) == expected


def branches(meta: Any) -> Any:
    if meta["n"] > 3:
        return (1,)
    return (2,)


def handles(meta: Any) -> Any:
    try:
        return (len(meta["x"]),)
    except:  # noqa: E722
        return (1,)


def stores(meta: Any) -> Any:
    meta["n"] = 3
    return (meta["n"],)


def grows(meta: Any) -> Any:
    n = meta["n"]
    n = n + n + n + n + n + n + n + n
    n = n + n + n + n + n + n + n + n
    n = n + n + n + n + n + n + n + n
    return (n + n,)


REFUSED = [
    (branches, "the function has a condition or a loop"),
    (lambda m: (n if n > 4 else 1,), "the function has a condition or a loop"),
    (lambda m: (1 + (m["x"] is None),), "the function has a condition or a loop"),
    (lambda m: (1 + (MODE in ("split", "all")),), "the function has a condition or a loop"),
    (handles, "the function has a condition or a loop"),
    (lambda m: ({"split": 2}.get(MODE, 1),), "unhashable"),
    (lambda m: (1 + ("split",).count(MODE),), "its result would depend on a value that is not known"),
    (lambda m: ({"by split": 2}.get(f"by {MODE}", 1),), "its result would depend on a value that is not known"),
    (lambda m: ((lambda n: n * PROGRAMS)(m["n"]),), "the function has a function inside"),  # noqa: PLC3002
    (stores, "does not support item assignment"),
    (grows, "an expression is too long"),
    (lambda m: (rows,), "rows is neither a run-time parameter nor an integer"),
    (lambda m: (m["BLOK"],), "there is no parameter 'BLOK'; the parameters are x, n, M, N, BLOCK"),
    (lambda m: (len(data),), "launch expressions have no len()"),
    (lambda m: (math.ceil(n),), "launch expressions have math.ceil() only of a division"),
    (lambda m: (triton.cdiv(n, div=4),), "unexpected keyword argument 'div'"),
    (lambda m: (no_such_name,), "name 'no_such_name' is not defined"),  # noqa: F821
    (lambda m: [*x.shape], "object is not iterable"),
]


@pytest.mark.parametrize(("grid", "expected"), REFUSED)
def test_functions_that_cannot_be_translated(grid, expected):
    assert expected in refusal(grid)


def refusal(grid: Any, **examples: Any) -> str:
    with pytest.raises(LaunchSpecError) as caught:
        read_grid(grid, SCOPE._replace(examples=examples))
    assert 'grid="ceil_div(n, BLOCK)"' in str(caught.value)
    return str(caught.value).replace("\n", " ")


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ({"x": target, "y": source}, "y.numel()"),
        ({"y": source, "source": target}, "y.numel()"),  # not the parameter of the same name
        ({"x": source, "source": source}, "source.numel()"),
        ({}, "source.numel()"),
    ],
)
def test_a_tensor_of_another_name_is_the_parameter_for_which_it_was_passed(examples, expected):
    assert read_grid(lambda _: (source.numel(),), scope_of(examples)) == (expected,)


def scope_of(examples: dict[str, Any]) -> GridScope:
    return SCOPE._replace(arguments=("x", "y", "source"), examples=examples)


def test_a_tensor_that_is_no_parameter():
    expected = "the tensor 'source' is not the argument of exactly one parameter; write m['…'] with"
    assert expected in refusal(lambda m: (triton.cdiv(source.numel(), m["BLOCK"]),))
    assert expected in refusal(lambda m: (source.shape[0],))
    with pytest.raises(LaunchSpecError, match="the tensor 'source' is not the argument of exactly one"):
        read_grid(lambda _: (source.numel(),), scope_of({"source": Array(7)}))


def test_local_integers_of_the_caller_are_constants_with_a_warning(caplog: pytest.LogCaptureFixture):
    tokens = 77
    grid = read_grid(lambda m: (triton.cdiv(tokens, m["BLOCK"]) * PROGRAMS, 1), SCOPE)
    assert grid == ("ceil_div(77, BLOCK) * 132", "1")
    (message,) = caplog.messages
    expected = "kernel 'k': the grid is (ceil_div(77, BLOCK) * 132, 1) for all calls, with the constants tokens=77. If"
    assert message.startswith(expected)
    caplog.clear()
    assert read_grid(lambda m: (triton.cdiv(n, m["BLOCK"]),), SCOPE) == ("ceil_div(n, BLOCK)",)
    assert not caplog.messages


def test_a_name_that_means_two_things():
    assert read_grid(lambda m: (n,), SCOPE._replace(examples={"n": 1000})) == ("n",)
    expected = "'n' is both a variable with the value 1000 and a parameter of the kernel (here 65); write m['n']"
    assert expected in refusal(lambda m: (n,), n=65)
