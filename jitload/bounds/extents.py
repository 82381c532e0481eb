"""What a launch of a kernel touches: the elements of each tensor, for people."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jitload.bounds.accesses import Access, find_accesses
from jitload.bounds.execution import SHARED
from jitload.bounds.terms import EXTENTS, ZERO, Polynomial, is_never_negative, largest
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import Op, ScopeEntry, compile_expression
from jitload.model import BoundCheck, Parameter

_BITS = re.compile(r"\D*(\d+)")
_PLANNED = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z")  # as in the plan of a launch
_VARIABLE = re.compile(r"^_ZZ.*?E\d+(?=[a-zA-Z_]\w*$)|(?<=\w)(_\d+)+$")  # what is not the name of a local variable


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
        extents[parameter.name] = _touched(by_pointer.pop(parameter.name), int(bits[1]) // 8 if bits else 0)
        if parameter.is_tensor_map:
            reason, instruction = "it is a tensor map", "the copies of the TMA are not followed"
            extents[parameter.name] = Extent(reason=reason, instruction=instruction)
    for pointer, accesses in by_pointer.items():
        size, name = entry.shared[pointer.removeprefix(SHARED)], _VARIABLE.sub("", pointer.removeprefix(SHARED))
        unit = f"of {size} bytes of shared memory" if size else "bytes of dynamic shared memory"
        extents[name if name not in extents else pointer] = _touched(accesses, 0)._replace(unit=unit)
    return extents


def _touched(accesses: Sequence[Access], size: int) -> Extent:
    """Return what accesses touch, in elements of a size, or in bytes if it is 0 or does not fit."""
    for _, instruction, reason, *_ in accesses:
        if reason:
            return Extent(reason=reason, instruction=str(instruction), line=instruction.location)
    if not accesses:
        return Extent("0", "0", is_exact=True)
    starts, ends = _ends_of(accesses)
    if any(factor % (size or 1) for end in starts + ends for _, factor in end.terms):
        return _touched(accesses, 0)
    first, *others = (str(start // (size or 1)) for start in starts)
    last, *more = (str(end // (size or 1)) for end in ends)
    return Extent(
        f"max({', '.join((last, *more))})" if more else last,
        f"min({', '.join((first, *others))})" if others else first,
        is_exact=all(access.is_exact for access in accesses),
        unit="elements" if size else "bytes",
    )


def _ends_of(accesses: Sequence[Access]) -> tuple[list[Polynomial], list[Polynomial]]:
    """Return what may be the first byte of accesses whose range is known, and what may be the end of the last one."""
    starts = largest(-access.low for access in accesses)
    return [-start for start in starts], largest(access.high + access.size for access in accesses)


def bound_checks(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[BoundCheck, ...]:
    """Return the checks of the accesses of a kernel that are certain to be made. Other accesses are not checked.

    In most calls, the end of accesses shows that they are inside. Only if it does not, a check finds out whether the
    numbers fit their registers, whether a thread makes the accesses, and where exactly they are.
    """
    accesses, entry = find_accesses(ptx, symbol, parameters)
    names = [parameter.name for parameter in parameters]
    checks = []
    for group in _made_together(each for a in accesses for each in ((a,) if a.is_exact else a.unlimited)):
        pointer = group[0].pointer
        size = entry.shared.get(pointer.removeprefix(SHARED), 0)
        parameter = -1 if pointer.startswith(SHARED) else names.index(pointer)
        unlimited = _made_together(rare for access in group for rare in access.unlimited)
        with contextlib.suppress(LaunchSpecError):  # a number that does not fit 64 bits
            steps = [op for part in (group, *unlimited) for op in _check(part, names, parameter, size)]
            starts, (end, *others) = _ends_of(group)
            if parameter >= 0 and all(map(is_never_negative, starts)):
                ends = [*_steps(end, names), *(op for o in others for op in (*_steps(o, names), Op("MAX")))]
                steps = [*ends, Op("SKIP_IF_INSIDE", parameter, len(steps)), *steps]
            checks.append(BoundCheck(parameter, (*steps,)))
    return tuple(dict.fromkeys(check for check in checks if check.steps))


def _made_together(accesses: Iterable[Access]) -> list[list[Access]]:
    """Return the accesses that are certain to be made, in groups with the same pointer and conditions."""
    groups: dict[tuple[str, tuple[Polynomial, ...]], list[Access]] = {}
    for access in accesses:
        if access.is_exact:
            groups.setdefault((access.pointer, access.conditions), []).append(access)
    return [*groups.values()]


def _check(group: Sequence[Access], names: Sequence[str], parameter: int, size: int) -> list[Op]:
    """Return the steps that fail if the conditions of accesses hold, and one of their ends is outside.

    `size` is that of an array in shared memory, in bytes, or 0.
    """
    steps: list[Op] = []
    for start, end in itertools.product(*_ends_of(group)):
        if not (size and is_never_negative(start) and is_never_negative(-end + size)):
            steps += [*_steps(start, names), *_steps(end, names), Op("OUTSIDE", parameter, size)]
    for condition in group[0].conditions if steps else ():
        steps = [*_steps(condition, names), Op("GE", 1, 0), Op("SKIP_IF_NOT", len(steps)), *steps]
    return steps


def _steps(term: Polynomial, names: Sequence[str]) -> tuple[Op, ...]:
    """Return the steps that compute a term. `names` are those of the kernel's parameters."""
    entries = {name: ScopeEntry(0, "int", computed=number) for number, name in enumerate(names)}
    entries |= {symbol: ScopeEntry(0, "int", planned=number) for number, symbol in enumerate(_PLANNED)}
    text = re.sub(r"[^\W\d]\w*(\.[xyz])?", lambda symbol: f"_{[*entries].index(symbol[0])}", str(term))
    scope = {f"_{number}": entry for number, entry in enumerate(entries.values())}
    return compile_expression(text, scope, kernel="", field="bounds")


def separation_steps(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[Op, ...]:
    """Return steps that fail unless the threads of a launch on tensors that do not overlap are separate.

    No thread of such a launch accesses what another one writes, and all accesses are inside of tensors. Return no
    steps if the threads of no launch are known to be separate.
    """
    accesses, entry = find_accesses(ptx, symbol, parameters)
    accesses = [access for access in accesses if not access.reason]
    names = [parameter.name for parameter in parameters]
    known = {id(a.instruction) for a in accesses if a.instruction.root in ("ld", "st") and a.pointer in names}
    others = [i for i in entry.instructions if id(i) not in known and "param" not in i.modifiers]
    if any(i.root == "call" or "[" in str(i) for i in others):
        return ()
    conditions = {condition for access in accesses for condition in access.conditions}
    steps: list[Op] = []
    with contextlib.suppress(LaunchSpecError):  # a number that does not fit 64 bits
        for pointer in dict.fromkeys(access.pointer for access in accesses):
            own = [access for access in accesses if access.pointer == pointer]
            if any(access.instruction.root == "st" for access in own):
                conditions |= {*_separate(own)}
            for start, end in itertools.product(*_ends_of(own)):
                steps += [*_steps(start, names), *_steps(end, names), Op("OUTSIDE", names.index(pointer))]
        conditions = {condition for condition in conditions if not is_never_negative(condition)}
        for condition in sorted(conditions, key=str):
            steps += [*_steps(condition, names), Op("GE", 1, 0), Op("REQUIRE")]
        if all(condition.constant is None for condition in conditions):
            return tuple(steps)
    return ()


def _separate(accesses: Sequence[Access]) -> Iterator[Polynomial]:
    """Yield what must not be negative so that no two threads access the same bytes by one pointer.

    The coordinates of a thread are digits of its address, and each is worth more than the lesser ones reach.
    """
    factors = accesses[0].offset.factors()
    starts = [(access.offset - accesses[0].offset).constant for access in accesses]
    if None in starts or not factors.keys() <= {"", *EXTENTS}:
        yield Polynomial.of(-1)
        return
    ends = [(start or 0, (start or 0) + access.size) for start, access in zip(starts, accesses, strict=True)]
    reach = Polynomial.of(max(end for _, end in ends) - min(start for start, _ in ends))
    for coordinate, extent in EXTENTS.items():
        worth, count = factors.get(coordinate, ZERO), Polynomial.of(extent)
        yield worth - reach if worth.terms else -count + 1
        reach += worth * (count - 1)
