"""Proves that no thread of a launch accesses what another one writes, and that all accesses are inside of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitload.bounds.accesses import Access, find_accesses
from jitload.bounds.domain import extent_of
from jitload.bounds.execution import SHARED
from jitload.bounds.extents import reader
from jitload.bounds.ptx import PtxError
from jitload.bounds.terms import Polynomial, extreme, is_never_negative
from jitload.expressions.compiler import INT64, Op
from jitload.model import Parameter

_COORDINATES = ("tid.x", "ctaid.x", "tid.y", "ctaid.y", "tid.z", "ctaid.z")


def separation_steps(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[Op, ...]:
    """Return steps that fail unless the threads of a launch on tensors that do not overlap are separate.

    Return no steps if this is known of no launch.
    """
    try:
        accesses, entry = find_accesses(ptx, symbol, parameters)
    except (PtxError, RecursionError):
        return ()
    is_known = {id(a.instruction): a.range is not None and SHARED not in a.pointer for a in accesses}
    for instruction in entry.instructions:
        has_address = any("[" in operand for operand in instruction.operands) and "param" not in instruction.modifiers
        is_plain = instruction.root in ("ld", "st") and is_known.get(id(instruction), False)
        if instruction.root == "call" or (has_address and not is_plain):
            return ()
    names = [parameter.name for parameter in parameters]
    read = reader(names)
    conditions = [term for access in accesses for term in access.certain]
    steps: list[Op] = []
    for pointer in dict.fromkeys(access.pointer for access in accesses):
        own = [access for access in accesses if access.pointer == pointer]
        if any(access.instruction.root == "st" for access in own):
            conditions += _separate(own)
        low = extreme("MIN", [access.range.low for access in own if access.range])
        end = extreme("MAX", [access.range.high + access.size for access in own if access.range])
        steps += [*low.steps(read), *end.steps(read), Op("OUTSIDE", names.index(pointer))]
    for condition in dict.fromkeys(conditions):
        if not is_never_negative(condition):
            steps += [*condition.steps(read), Op("GE", 1, 0), Op("REQUIRE")]
    is_possible = all(condition.constant is None or condition.constant >= 0 for condition in conditions)
    return tuple(steps) if is_possible and all(op.value in INT64 for op in steps) else ()


def _separate(accesses: Sequence[Access]) -> Iterator[Polynomial]:
    """Yield what must not be negative for the accesses of different threads by one pointer to be apart.

    The coordinates of a thread are digits of its address, and each is worth more than the lesser ones reach.
    """
    first = accesses[0].offset
    distances = [(access.offset - first).constant for access in accesses]
    starts = [distance for distance in distances if distance is not None]
    if len(starts) < len(accesses) or first.coordinates - {*_COORDINATES}:
        yield Polynomial.of(-1)
        return
    ends = [start + access.size for start, access in zip(starts, accesses, strict=True)]
    reach = Polynomial.of(max(ends) - min(starts))
    for coordinate in _COORDINATES:
        worth, count = first.coefficient(coordinate), extent_of(coordinate)
        yield worth - reach if worth.terms else -count + 1
        reach += worth * (count - 1)
