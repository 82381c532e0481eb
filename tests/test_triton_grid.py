"""Grids as Triton takes them, translated to launch expressions."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl

from jitload.errors import LaunchSpecError
from jitload.triton.grid import GridScope, read_grid

SCOPE = GridScope(kernel="k", arguments=("x", "n", "M", "N"), constexprs=("BLOCK", "BLOCK_M", "BLOCK_N"), examples={})
PROGRAMS = 132
WIDE = tl.constexpr(7)


def read(grid: Any, **examples: Any) -> Any:
    return read_grid(grid, SCOPE._replace(examples=examples))


def test_expressions_stay_as_they_are():
    for grid in ("ceil_div(n, BLOCK)", 4, ("a", 2), None):
        assert read(grid) is grid


def test_lambdas_as_tutorials_have_them():
    n, M, N = 1000, 5, 6
    x = object()
    assert read(lambda META: (triton.cdiv(n, META["BLOCK"]),)) == ("ceil_div(n, BLOCK)",)
    assert read(lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)) == ("ceil_div(n, BLOCK)",)
    assert read(lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]), 1)) == (
        "ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)", "1",
    )  # fmt: skip
    assert read(lambda META: (min(PROGRAMS, triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"])),)) == (
        "min(132, ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N))",
    )
    assert read(lambda _: (x.numel() // 4, x.shape[0], x.size(1) + x.ndim)) == (
        "x.numel() // 4", "x.shape[0]", "x.size(1) + x.ndim",
    )  # fmt: skip
    assert read(lambda m: [(n + m["BLOCK"] - 1) // m["BLOCK"], -(-n // 4)]) == (
        "(n + BLOCK - 1) // BLOCK", "-(-n // 4)",
    )  # fmt: skip
    assert read(lambda m: n) == ("n",)
    assert read(lambda m: (m["x"].numel() // m["BLOCK"], m["x"].shape[-1], m["x"].stride(0) + m["x"].ndim)) == (
        "x.numel() // BLOCK", "x.shape[-1]", "x.stride(0) + x.ndim",
    )  # fmt: skip


def test_functions_of_python_and_of_triton():
    n = 1000
    assert read(lambda m: (math.ceil(n / m["BLOCK"]),)) == ("ceil_div(n, BLOCK)",)
    assert read(lambda m: (triton.next_power_of_2(n), int(max(n, 1)), WIDE)) == ("next_power_of_2(n)", "max(n, 1)", "7")
    assert read(lambda m: (n if n > 4 and not m["N"] else 1,)) == ("n if n > 4 and (not N) else 1",)


def test_integers_from_outside_are_values():
    heads, n = 12, 100
    assert read(lambda m: (n * heads, True)) == ("n * 12", "True")


def test_named_functions():
    n = 1000

    def grid(meta: Any) -> Any:
        """Return the grid."""
        return (triton.cdiv(n, meta["BLOCK"]),)

    assert read(grid) == ("ceil_div(n, BLOCK)",)


def test_functions_with_local_variables():
    def grid(meta: Any) -> Any:
        """Return the grid."""
        count, block = meta["n"], meta["BLOCK"]
        blocks: int = triton.cdiv(count, block)
        count = min(blocks, 8)
        extents = (count, blocks)
        return extents  # noqa: RET504

    assert read(grid) == ("min(ceil_div(n, BLOCK), 8)", "ceil_div(n, BLOCK)")

    def branches(meta: Any) -> Any:
        if meta["n"] > 3:
            return (1,)
        return (2,)

    def stores(meta: Any) -> Any:
        meta["n"] = 3
        return (meta["n"],)

    def grows(meta: Any) -> Any:
        n = meta["n"]
        n = n + n + n + n + n + n + n + n
        n = n + n + n + n + n + n + n + n
        n = n + n + n + n + n + n + n + n
        return (n + n,)

    def nothing(meta: Any) -> Any:
        count = meta["n"]  # noqa: F841

    assert "may only set local variables and return the grid" in refusal(branches)
    assert "may only set local variables by name" in refusal(stores)
    assert "is too long, if its local variables are replaced" in refusal(grows)
    assert "must return the grid" in refusal(nothing)


def test_several_on_one_line():
    pair = (lambda m: (m["n"],), lambda m: (m["M"],))
    if hasattr(pair[0].__code__, "co_positions"):
        assert [read(grid) for grid in pair] == [("n",), ("M",)]


def refusal(grid: Any, **examples: Any) -> str:
    with pytest.raises(LaunchSpecError) as caught:
        read(grid, **examples)
    assert 'grid="ceil_div(n, BLOCK)"' in str(caught.value)
    return str(caught.value).replace("\n", " ")


def test_functions_that_cannot_be_translated():
    rows, data, n = None, [1, 2], 1000
    assert "uses 'rows', which is neither a run-time parameter nor an integer; the parameters are x, n, M" in refusal(
        lambda m: (rows,)
    )
    assert "uses m['BLOK']; the parameters of the kernel are x, n, M, N, BLOCK" in refusal(lambda m: (m["BLOK"],))
    assert "calls len(), which launch expressions do not support" in refusal(lambda m: (len(data),))
    assert "has a part that launch expressions do not support     n / 2" in refusal(lambda m: (n / 2,))
    assert "calls int(), which launch expressions do not support" in refusal(lambda m: (int("ff", 16),))
    assert "calls math.ceil(), which launch expressions do not support" in refusal(lambda m: (math.ceil(),))
    assert "passes an argument by name" in refusal(lambda m: (triton.cdiv(n, div=4),))
    assert "must take one argument, Triton's mapping of the parameters" in refusal(lambda: (1,))
    assert "got type" in refusal(int)
    evaluated = eval("lambda m: (m['n'],)")
    assert "cannot be " in refusal(evaluated)


def test_a_name_that_means_two_things():
    n = 64
    assert read(lambda m: (n,), n=64) == ("n",)
    assert (
        "uses 'n', which is both a variable with the value 64 and a parameter of the kernel (here 65); write m['n']"
        in refusal(lambda m: (n,), n=65)
    )
