"""What a launch of a kernel touches: the elements of each tensor, for people and for checks of calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from jitload.bounds.accesses import Access, find_accesses
from jitload.bounds.execution import SHARED
from jitload.bounds.terms import Polynomial, extreme, is_never_negative
from jitload.expressions.compiler import INT64, Op
from jitload.model import BoundCheck, Parameter

_BITS = re.compile(r"\D*(\d+)")
_VARIABLE = re.compile(r"^_ZZ.*?E\d+(?=[a-zA-Z_]\w*$)|(?<=\w)(_\d+)+$")  # what is not the name of a local variable
_GRID, _BLOCK = 0, 3  # where the plan of a launch has them


class Extent(NamedTuple):
    """What a launch touches of a tensor.

    Attributes:
        elements: How many elements the launch needs, as an expression of the parameters, `grid.x`, `block.x` and so on.
            None if this is not known.
        first: The first element that the launch touches, as such an expression.
        is_exact: Whether the launch touches the last of these elements, and the first one. Otherwise, it may touch
            fewer, for example if a value in memory decides.
        reason: Why `elements` is None.
        instruction: The PTX instruction whose address is not known.
        line: The file and the line of the instruction, `vec.cu:4`.
        unit: What is counted: `elements`, or `bytes` if the type of the elements is not known. For shared memory, also
            the size of an array: `of 1024 bytes of shared memory`.
    """

    elements: str | None = None
    first: str | None = None
    is_exact: bool = False
    reason: str = ""
    instruction: str = ""
    line: str = ""
    unit: str = "elements"

    def __str__(self) -> str:
        if self.elements is None:
            place = f", at {self.line}" if self.line else ""
            return f"unknown, because {self.reason}{place}: {self.instruction}"
        start = "" if self.first == "0" else f", from number {self.first} on"
        return f"{'' if self.is_exact else 'at most '}{self.elements} {self.unit}{start}"


class Extents(dict[str, Extent]):
    """What a launch touches of each tensor and array in shared memory, by the names of parameters and variables."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {extent}" for name, extent in self.items())


def read_extents(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> Extents:
    """Return what a launch touches of the tensor behind each pointer of a kernel, and of its shared memory."""
    pointers = [parameter for parameter in parameters if parameter.kind == "pointer"]
    accesses, entry = find_accesses(ptx, symbol, parameters)
    by_pointer: dict[str, list[Access]] = {parameter.name: [] for parameter in pointers}
    for access in accesses:
        by_pointer.setdefault(access.pointer, []).append(access)
    extents = Extents()
    for parameter in pointers:
        bits = _BITS.match(parameter.dtype or "")
        touched = _touched(by_pointer.pop(parameter.name), max(int(bits[1]) // 8, 1) if bits else 1)
        if parameter.is_tensor_map:
            touched = Extent(reason="it is a tensor map", instruction="the copies of the TMA are not followed")
        is_byte = parameter.dtype in ("int8", "uint8", "bool")
        extents[parameter.name] = touched._replace(unit="elements") if is_byte else touched
    for pointer, accesses in by_pointer.items():
        size, name = entry.shared[pointer.removeprefix(SHARED)], _VARIABLE.sub("", pointer.removeprefix(SHARED))
        unit = f"of {size} bytes of shared memory" if size else "bytes of dynamic shared memory"
        extents[name if name not in extents else pointer] = _touched(accesses, 1)._replace(unit=unit)
    return extents


def _touched(accesses: Sequence[Access], unit: int) -> Extent:
    """Return what accesses touch, in elements of `unit` bytes, or in bytes if it is 1 or does not fit."""
    for access in accesses:
        if access.range is None:
            instruction = access.instruction
            return Extent(reason=access.reason, instruction=str(instruction), line=instruction.location)
    if not accesses:
        return Extent("0", "0", is_exact=True)
    low, end = ends_of(accesses)
    if any(factor % unit for term in (low, end) for factor in term.terms.values()):
        return _touched(accesses, 1)
    is_exact = all(access.exact == () for access in accesses)
    return Extent(str(end // unit), str(low // unit), is_exact, unit="bytes" if unit == 1 else "elements")


def ends_of(accesses: Iterable[Access]) -> tuple[Polynomial, Polynomial]:
    """Return the first byte of accesses whose range is known, and the end of the last one."""
    ranges = [(access.range, access.size) for access in accesses if access.range]
    return extreme("MIN", [r.low for r, _ in ranges]), extreme("MAX", [r.high + size for r, size in ranges])


def bound_checks(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[BoundCheck, ...]:
    """Return the checks of the accesses of a kernel that are certain to be made. Other accesses are not checked."""
    accesses, entry = find_accesses(ptx, symbol, parameters)
    groups: dict[tuple[object, ...], list[Access]] = {}  # accesses that are made together
    for access in accesses:
        if access.range and access.exact is not None:
            groups.setdefault((access.pointer, access.active, access.exact), []).append(access)
    names = [parameter.name for parameter in parameters]
    checks = dict.fromkeys(_check(group, names, entry.shared) for group in groups.values())
    return tuple(check for check in checks if check.steps and all(op.value in INT64 for op in check.steps))


def reader(names: Sequence[str]) -> Callable[[str], Op]:
    """Return a function that returns the step for a symbol. `names` are those of the kernel's parameters."""

    def read(symbol: str) -> Op:
        kind, _, axis = symbol.partition(".")
        slots = {"grid": _GRID, "block": _BLOCK}
        return Op("PLANNED", slots[kind] + "xyz".index(axis)) if axis else Op("COMPUTED", names.index(symbol))

    return read


def _check(accesses: Sequence[Access], names: Sequence[str], shared: Mapping[str, int]) -> BoundCheck:
    """Return the check of accesses that are made together, which has no steps if they are never outside.

    In most calls, their end shows that they are inside. Only if it does not, the check finds out whether the numbers
    fit their registers, whether a thread makes the accesses, and where exactly they are.
    """
    pointer, array = accesses[0].pointer, accesses[0].pointer.removeprefix(SHARED)
    parameter, limit = (names.index(pointer), 0) if array == pointer else (-1, shared[array])
    low, end = ends_of(accesses)
    is_first_inside = is_never_negative(low)
    if limit and is_first_inside and is_never_negative(-end + limit):
        return BoundCheck(parameter, ())
    read = reader(names)
    steps = (*low.steps(read), *end.steps(read), Op("OUTSIDE", parameter, limit))
    conditions = {term for access in accesses for term in (*access.certain, *access.active, *(access.exact or ()))}
    for condition in sorted(conditions, key=str):
        steps = (*condition.steps(read), Op("GE", 1, 0), Op("SKIP_IF_NOT", len(steps)), *steps)
    if parameter >= 0 and is_first_inside:
        steps = (*end.steps(read), Op("SKIP_IF_INSIDE", parameter, len(steps)), *steps)
    return BoundCheck(parameter, steps)
