"""Evaluates what `jitload.bounds` found out about a kernel, for given arguments of a launch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from types import CodeType

from jitload.bounds.extents import Access, find_accesses
from jitload.bounds.terms import Polynomial
from jitload.model import Parameter

Extents = tuple[int, int, int]


class Touched:
    """What a launch touches of the tensor behind a pointer, in bytes.

    Attributes:
        first: The first byte.
        end: The end of the last byte.
        is_exact: Whether the launch touches both. Otherwise, it touches nothing outside of them.
    """

    def __init__(self) -> None:
        self.first, self.end, self.is_exact = 0, 0, True


def evaluate(polynomial: Polynomial, values: Mapping[str, int]) -> int:
    """Return the value of a polynomial."""
    return int(eval(_code(str(polynomial)), {}, {symbol.replace(".", "__"): value for symbol, value in values.items()}))


@functools.cache
def _code(text: str) -> CodeType:
    return compile(re.sub(r"\b(grid|block)\.", r"\1__", text), "bounds", "eval")


def touched_by(
    kernel: tuple[str, str, Sequence[Parameter]], numbers: Mapping[str, int], grid: Extents, block: Extents
) -> dict[str, Touched | None]:
    """Return what a launch touches behind each pointer and of shared memory, or None where this is not known.

    `kernel` is the PTX, the symbol and the parameters.
    """
    ptx, symbol, parameters = kernel
    values = {**numbers}
    values |= {f"grid.{axis}": extent for axis, extent in zip("xyz", grid, strict=True)}
    values |= {f"block.{axis}": extent for axis, extent in zip("xyz", block, strict=True)}
    result: dict[str, Touched | None] = {p.name: Touched() for p in parameters if p.kind == "pointer"}
    for pointer, accesses in _accesses(ptx, symbol, tuple(parameters)).items():
        for access in accesses:
            result[pointer] = _with_access(result.get(pointer, Touched()), access, values)
    return result


@functools.cache
def _accesses(ptx: str, symbol: str, parameters: tuple[Parameter, ...]) -> dict[str, list[Access]]:
    return find_accesses(ptx, symbol, parameters)[0]


def _with_access(touched: Touched | None, access: Access, values: Mapping[str, int]) -> Touched | None:
    if touched is None or access.reason or any(evaluate(term, values) < 0 for term in access.conditions):
        return None
    first, end = evaluate(access.low, values), evaluate(access.high, values) + access.size
    is_new = touched.end == 0
    touched.first = first if is_new else min(first, touched.first)
    touched.is_exact = touched.is_exact and access.is_exact
    touched.end = max(end, touched.end)
    return touched
