"""Finds the accesses of a kernel to the memory of its pointers, and the range of addresses of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jitload.bounds.execution import SHARED, Address, Execution
from jitload.bounds.paths import Path
from jitload.bounds.ptx import Entry, Instruction, PtxError, read_entry
from jitload.bounds.regions import Range, Region, UnknownRangeError
from jitload.bounds.terms import POINTER, ZERO, Polynomial, is_never_negative
from jitload.model import Parameter

_SIZE = re.compile(r"[a-z]+(\d+)(?:x(\d))?")
_ACCESSES = ("ld", "st", "atom", "red", "ldu")
_SPACES = {"global", "shared", "local", "const", "param"}
_MOST_INSTRUCTIONS = 10_000  # more would take seconds


class Access(NamedTuple):
    """An instruction that accesses memory behind a pointer, in bytes from the pointer on.

    Attributes:
        pointer: The parameter's name, or `shared:` and the name of an array in shared memory.
        instruction: The instruction.
        size: The number of bytes of one access.
        offset: The first byte.
        range: The smallest and the largest offset. None if they are not known.
        reason: Why the range is not known.
        certain: What must not be negative for `range` to hold.
        active: What must not be negative for any thread to make the access.
        exact: What must not be negative for a thread to access both ends of the range. None if this is not known.
    """

    pointer: str
    instruction: Instruction
    size: int = 0
    offset: Polynomial = ZERO
    range: Range | None = None
    reason: str = ""
    certain: tuple[Polynomial, ...] = ()
    active: tuple[Polynomial, ...] = ()
    exact: tuple[Polynomial, ...] | None = None


def find_accesses(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[list[Access], Entry]:
    """Return the accesses of a kernel to shared memory and to the memory of its pointers, and the kernel.

    If the PTX cannot be read, nothing is known of the pointers, and the kernel has no instructions.
    """
    try:
        entry = _read_checked(ptx, symbol, len(parameters))
        execution = Execution(entry, parameters)
    except PtxError as error:
        reason, none = f"the PTX cannot be read ({error})", Instruction("no instruction", ())
        pointers = [parameter.name for parameter in parameters if parameter.kind == "pointer"]
        return [Access(pointer, none, reason=reason) for pointer in pointers], Entry((), (), {}, {})
    accesses = []
    regions: dict[Path, Region] = {(): Region(execution)}
    for address in execution.addresses:
        for end in range(1, len(address.path) + 1):
            path = address.path[:end]
            regions[path] = regions.get(path) or regions[path[:-1]].after(path[-1])
        if pointers := execution.pointers_in(address.value):
            try:
                accesses.append(_access_at(address, pointers[0], regions[address.path], execution))
            except UnknownRangeError as error:
                accesses += [Access(pointer, address.instruction, reason=str(error)) for pointer in pointers]
    if any(i.root == "call" and "vprintf" not in i.operands for i in entry.instructions):  # which may end the kernel
        accesses = [access._replace(exact=None) for access in accesses]
    reason = "the pointer is stored, chosen or passed on"
    escapes = {pointer: i for value, i in execution.escapes for pointer in execution.pointers_in(value)}
    return [*accesses, *(Access(*escape, reason=reason) for escape in escapes.items())], entry


def _read_checked(ptx: str, symbol: str, count: int) -> Entry:
    entry = read_entry(ptx, symbol)
    if len(entry.parameters) != count:
        raise PtxError(f"{symbol}: the PTX has {len(entry.parameters)} parameters, not {count}")
    if len(entry.instructions) > _MOST_INSTRUCTIONS:
        raise PtxError(f"it has more than {_MOST_INSTRUCTIONS} instructions")
    return entry


def _access_at(address: Address, pointer: str, region: Region, execution: Execution) -> Access:
    """Return an access of threads in a region. Raise UnknownRangeError if its range is not known."""
    size = _size_of(address.instruction, "shared" if pointer.startswith(SHARED) else "global")
    if size == 0:
        raise UnknownRangeError("jitload does not know the instruction")
    value = execution.resolved(address.value)
    offset = value.term - Polynomial.of(f"{POINTER}{pointer}")
    range_ = region.range_of(value._replace(term=offset))
    certain = region.certain | range_.certain
    if pointer.startswith(SHARED):
        certain |= range_.within(-(1 << 31), (1 << 31) - 1)
    exact = region.terms_for_ends(range_) if not address.instruction.guard else None
    exact_terms = None if exact is None else _not_certain(exact)
    active = _not_certain(region.active)
    return Access(pointer, address.instruction, size, offset, range_, "", _not_certain(certain), active, exact_terms)


def _size_of(instruction: Instruction, space: str) -> int:
    """Return the number of bytes in a space of memory that an instruction accesses, or 0 if this is not known."""
    modifiers = instruction.modifiers
    match = _SIZE.fullmatch(modifiers[-1]) if modifiers else None
    spaces = _SPACES & {modifier.partition("::")[0] for modifier in modifiers}
    if instruction.root not in _ACCESSES or match is None or spaces - {space}:
        return 0
    count = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v\d", m)), 1)
    return count * int(match[1]) * int(match[2] or 1) // 8


def _not_certain(terms: Iterable[Polynomial]) -> tuple[Polynomial, ...]:
    """Return terms in a fixed order, without those that are never negative."""
    return tuple(sorted((term for term in terms if not is_never_negative(term)), key=str))
