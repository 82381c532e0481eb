"""What a launch of a kernel touches: the elements of each tensor, for people and for checks of calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jitload.bounds.accesses import Access, find_accesses
from jitload.bounds.execution import SHARED
from jitload.bounds.ptx import PtxError
from jitload.bounds.terms import extreme, is_never_negative, without_minima
from jitload.expressions.compiler import INT64, Op
from jitload.model import BoundCheck, Parameter

_BITS = re.compile(r"\D*(\d+)")
_ZERO = Op("GE", 1, 0)
_GRID, _BLOCK, _SHARED_BYTES = 0, 3, 9  # where the plan of a launch has them, the last one for dynamic memory


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


# ---- for people ---------------------------------------------------------------------------------------------------


def read_extents(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> Extents:
    """Return what a launch touches of the tensor behind each pointer of a kernel, and of its shared memory."""
    pointers = [parameter for parameter in parameters if parameter.kind == "pointer"]
    try:
        accesses, entry = find_accesses(ptx, symbol, parameters)
    except (PtxError, RecursionError) as error:
        reason = f"the PTX cannot be read ({error})"
        return Extents({p.name: Extent(reason=reason, instruction="no instruction") for p in pointers})
    by_pointer: dict[str, list[Access]] = {}
    for access in accesses:
        by_pointer.setdefault(access.pointer, []).append(access)
    extents = Extents({p.name: _extent(p, by_pointer.get(p.name, []), entry.files) for p in pointers})
    for array, size in entry.shared.items():
        if found := by_pointer.get(SHARED + array):
            name = _variable_name(array)
            unit = f"of {size} bytes of shared memory" if size else "bytes of dynamic shared memory"
            key = name if name not in extents else f"{SHARED}{array}"
            extents[key] = _touched(found, entry.files, 1)._replace(unit=unit)
    return extents


def _variable_name(symbol: str) -> str:
    """Return the name of a `__shared__` variable, which is at the end of the mangled symbol of a local one."""
    for match in re.finditer(r"E(\d+)(?=([a-zA-Z_]\w*)$)", symbol if symbol.startswith("_ZZ") else ""):
        name, rest = match[2][: int(match[1])], match[2][int(match[1]) :]
        if len(name) == int(match[1]) and re.fullmatch(r"(_\d+)*", rest):
            return name
    return symbol


def _extent(parameter: Parameter, accesses: Sequence[Access], files: Mapping[int, str]) -> Extent:
    if parameter.is_tensor_map:
        return Extent(reason="it is a tensor map", instruction="the copies of the TMA are not followed")
    if not accesses:
        return Extent("0", "0", is_exact=True)
    touched = _touched(accesses, files, _element_bytes(parameter))
    return touched._replace(unit="elements") if parameter.dtype in ("int8", "uint8", "bool") else touched


def _touched(accesses: Sequence[Access], files: Mapping[int, str], unit: int) -> Extent:
    """Return what accesses touch, in elements of `unit` bytes, or in bytes if it is 1 or does not fit."""
    for access in accesses:
        if access.range is None:
            return Extent(
                reason=access.reason,
                instruction=str(access.instruction),
                line=_line(access.instruction.location, files),
            )
    low = extreme("MIN", [access.range.low for access in accesses if access.range])
    end = extreme("MAX", [access.range.high + access.size for access in accesses if access.range])
    if any(factor % unit for term in (low, end) for factor in term.terms.values()):
        return _touched(accesses, files, 1)
    return Extent(
        str(end // unit),
        str(low // unit),
        is_exact=all(access.exact == () for access in accesses),
        unit="bytes" if unit == 1 else "elements",
    )


def _line(location: tuple[int, int] | None, files: Mapping[int, str]) -> str:
    return f"{Path(files.get(location[0], '')).name}:{location[1]}" if location else ""


def _element_bytes(parameter: Parameter) -> int:
    """Return the size of an element, or 1 if it is not known."""
    bits = _BITS.match(parameter.dtype or "")
    return max(int(bits[1]) // 8, 1) if bits else 1


# ---- for calls ----------------------------------------------------------------------------------------------------


def bound_checks(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[BoundCheck, ...]:
    """Return the checks of the accesses of a kernel that are certain to be made. Other accesses are not checked."""
    try:
        accesses, entry = find_accesses(ptx, symbol, parameters)
    except (PtxError, RecursionError):
        return ()
    names = [parameter.name for parameter in parameters]
    certain = [access for access in accesses if access.range is not None and access.exact is not None]
    checks = [_check(access, names, entry.shared) for access in _furthest(certain)]
    return tuple(
        check for check in dict.fromkeys(checks) if check.steps and all(op.value in INT64 for op in check.steps)
    )


def reader(names: Sequence[str]) -> Callable[[str], Op]:
    """Return a function that returns the step for a symbol. `names` are those of the kernel's parameters."""

    def read(symbol: str) -> Op:
        kind, _, axis = symbol.partition(".")
        slots = {"grid": _GRID, "block": _BLOCK}
        return Op("PLANNED", slots[kind] + "xyz".index(axis)) if axis else Op("COMPUTED", names.index(symbol))

    return read


def _furthest(accesses: Sequence[Access]) -> list[Access]:
    """Return accesses without those that are inside whenever another one that is made with them is."""
    kept: list[Access] = []
    for access in accesses:
        if not any(_is_beyond(other, access) for other in kept):
            kept = [*(other for other in kept if not _is_beyond(access, other)), access]
    return kept


def _is_beyond(access: Access, other: Access) -> bool:
    """Return whether an access is made with another one and ends after it. Neither is before the first byte."""
    are_together = (access.pointer, access.active, access.exact) == (other.pointer, other.active, other.exact)
    if not are_together or not access.range or not other.range:
        return False
    difference = access.range.high + access.size - (other.range.high + other.size)
    return all(map(is_never_negative, (access.range.low, other.range.low, difference)))


def _check(access: Access, names: Sequence[str], shared: Mapping[str, int]) -> BoundCheck:
    """Return the check of an access, which has no steps if it is never outside.

    In most calls, a simple bound shows that the access is inside. Only if it does not, the check finds out whether the
    numbers fit their registers, whether a thread makes the access, and where exactly it is.
    """
    assert access.range is not None
    assert access.exact is not None
    array = access.pointer.removeprefix(SHARED) if access.pointer.startswith(SHARED) else None
    parameter, limit = (names.index(access.pointer), 0) if array is None else (-1, shared[array])
    low, end = access.range.low, access.range.high + access.size

    read = reader(names)
    final = (*low.steps(read), *end.steps(read), Op("OUTSIDE", parameter, limit))
    for condition in sorted({*access.certain, *access.active, *access.exact}, key=str):
        final = (*condition.steps(read), _ZERO, Op("SKIP_IF_NOT", len(final)), *final)
    if not is_never_negative(low):
        return BoundCheck(parameter, final)
    bound = tuple(without_minima(end).steps(read))
    if array is None:
        return BoundCheck(parameter, (*bound, Op("SKIP_IF_INSIDE", parameter, len(final)), *final))
    if limit and is_never_negative(-end + limit):
        return BoundCheck(parameter, ())
    exceeds = [Op("GT", 1, limit)] if limit else [Op("PLANNED", _SHARED_BYTES), Op("GT")]
    return BoundCheck(parameter, (*bound, *exceeds, Op("SKIP_IF_NOT", len(final)), *final))
