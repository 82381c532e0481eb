"""Proves that no thread of a launch accesses what another one writes, and that all accesses are inside of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitload.bounds.accesses import Access, find_accesses
from jitload.bounds.execution import SHARED
from jitload.bounds.extents import ends_of, reader
from jitload.bounds.regions import extent_of
from jitload.bounds.terms import ZERO, Polynomial, is_never_negative
from jitload.expressions.compiler import INT64, Op
from jitload.model import Parameter

_COORDINATES = ("tid.x", "ctaid.x", "tid.y", "ctaid.y", "tid.z", "ctaid.z")


def separation_steps(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[Op, ...]:
    """Return steps that fail unless the threads of a launch on tensors that do not overlap are separate.

    Return no steps if the threads of no launch are known to be separate.
    """
    accesses, entry = find_accesses(ptx, symbol, parameters)
    is_known = {id(a.instruction): a.range is not None and SHARED not in a.pointer for a in accesses}
    for instruction in entry.instructions:
        has_address = any("[" in operand for operand in instruction.operands) and "param" not in instruction.modifiers
        is_plain = instruction.root in ("ld", "st") and is_known.get(id(instruction), False)
        if instruction.root == "call" or (has_address and not is_plain):
            return ()
    names = [parameter.name for parameter in parameters]
    read = reader(names)
    conditions = [term for access in accesses for term in access.certain]
    accesses = [access for access in accesses if access.range]  # without pointers that are only compared
    steps: list[Op] = []
    for pointer in dict.fromkeys(access.pointer for access in accesses):
        own = [access for access in accesses if access.pointer == pointer]
        if any(access.instruction.root == "st" for access in own):
            conditions += _separate(own)
        low, end = ends_of(own)
        steps += [*low.steps(read), *end.steps(read), Op("OUTSIDE", names.index(pointer))]
    for condition in dict.fromkeys(conditions):
        if not is_never_negative(condition):
            steps += [*condition.steps(read), Op("GE", 1, 0), Op("REQUIRE")]
    is_possible = all(condition.constant is None or condition.constant >= 0 for condition in conditions)
    return tuple(steps) if is_possible and all(op.value in INT64 for op in steps) else ()


def _separate(accesses: Sequence[Access]) -> Iterator[Polynomial]:
    """Yield what must not be negative so that no two threads access the same bytes by one pointer.

    The coordinates of a thread are digits of its address, and each is worth more than the lesser ones reach.
    """
    addresses = [(access.offset.factors() or {}, access.size) for access in accesses]
    first = addresses[0][0]
    ends = []
    for factors, size in addresses:
        start = (factors.get("", ZERO) - first.get("", ZERO)).constant
        if start is None or {**factors, "": ZERO} != {**first, "": ZERO} or first.keys() - {"", *_COORDINATES}:
            yield Polynomial.of(-1)
            return
        ends += [start, start + size]
    reach = Polynomial.of(max(ends) - min(ends))
    for coordinate in _COORDINATES:
        worth, count = first.get(coordinate, ZERO), extent_of(coordinate)
        yield worth - reach if worth.terms else -count + 1
        reach += worth * (count - 1)
