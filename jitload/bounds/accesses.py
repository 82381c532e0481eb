"""Finds the accesses of a kernel to the memory of its pointers, and the range of addresses of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jitload.bounds.execution import SHARED, Address, Execution
from jitload.bounds.graph import Graph
from jitload.bounds.ptx import Entry, Instruction, PtxError, read_entry
from jitload.bounds.regions import Range, Region, regions_of, within
from jitload.bounds.terms import Polynomial, is_never_negative
from jitload.bounds.values import Node
from jitload.model import Parameter

_SIZE = re.compile(r"[a-z]+(\d+)(?:x(\d))?")
_ACCESSES = ("ld", "st", "atom", "red", "ldu")
_SPACES = {"global", "shared", "local", "const", "param"}
_MOST_INSTRUCTIONS, _MOST_SITES = 20_000, 300  # more would take seconds


class Access(NamedTuple):
    """An instruction that accesses memory behind a pointer, in bytes from the pointer on.

    Attributes:
        pointer: The parameter's name, or `shared:` and the name of an array in shared memory.
        instruction: The instruction.
        size: The number of bytes of one access.
        node: The address of the first byte.
        range: The addresses of the first bytes. None if they are not known.
        reason: Why the range is not known.
        certain: What must not be negative for `range` to hold.
        active: What must not be negative for any thread to make the access.
        exact: What must not be negative for a thread to access both ends of the range. None if this is not known.
    """

    pointer: str
    instruction: Instruction
    size: int = 0
    node: Node | None = None
    range: Range | None = None
    reason: str = ""
    certain: tuple[Polynomial, ...] = ()
    active: tuple[Polynomial, ...] = ()
    exact: tuple[Polynomial, ...] | None = None


def find_accesses(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[list[Access], Entry]:
    """Return the accesses of a kernel to shared memory and to the memory of its pointers, and the kernel."""
    entry = read_entry(ptx, symbol)
    if len(entry.parameters) != len(parameters):
        raise PtxError(f"{symbol}: the PTX has {len(entry.parameters)} parameters, not {len(parameters)}")
    if len(entry.instructions) > _MOST_INSTRUCTIONS:
        raise PtxError(f"it has more than {_MOST_INSTRUCTIONS} instructions")
    graph = Graph(entry)
    execution = Execution(entry, graph, parameters)
    addresses = [(address, _pointers_in(address.node)) for address in execution.addresses]
    blocks = {address.block for address, pointers in addresses if pointers}
    if len(blocks) > _MOST_SITES:
        raise PtxError(f"more than {_MOST_SITES} blocks of instructions access tensors")
    regions = regions_of(graph, execution, blocks)
    accesses = [
        access
        for address, pointers in addresses
        if pointers
        for access in _accesses_at(address, pointers, regions[address.block], has_calls=execution.has_calls)
    ]
    reason = "the pointer is stored, chosen or passed on"
    escapes: dict[str, Instruction] = {}
    visited: set[Node] = set()
    for node, instruction in execution.escapes:
        escapes |= dict.fromkeys(_pointers_in(node, visited), instruction)
    return [*accesses, *(Access(*escape, reason=reason) for escape in escapes.items())], entry


def _pointers_in(node: Node, visited: set[Node] | None = None) -> list[str]:
    return sorted(part.value for part in node.all_inputs(visited) if part.kind == "pointer")


def _accesses_at(address: Address, pointers: Sequence[str], region: Region, *, has_calls: bool) -> Iterator[Access]:
    instruction, range_ = address.instruction, region.range_of(address.node)
    is_shared = pointers[0].startswith(SHARED)
    size = _size_of(instruction, address.operand, "shared" if is_shared else "global")
    reason = ""
    if size == 0:
        reason = "jitload does not know the instruction"
    elif range_ is None or not range_.pointer or len(pointers) > 1:
        reason = "its index does not follow from threads, blocks, loops and parameters"
    elif not range_.is_bounded:
        reason = "no comparison limits its index"
    elif is_shared:
        range_ = within(range_._replace(pointer=""), -(1 << 31), (1 << 31) - 1)
        reason = "" if range_ else "its index may be too large for its type"
    if reason or range_ is None:
        yield from (Access(pointer, instruction, reason=reason) for pointer in pointers)
        return
    exact = region.conditions_for(range_) if not instruction.guard and not has_calls else None
    certain, active = _not_certain(region.certain | range_.certain), _not_certain(region.active)
    exact_terms = None if exact is None else _not_certain(exact)
    yield Access(pointers[0], instruction, size, address.node, range_, "", certain, active, exact_terms)


def _size_of(instruction: Instruction, operand: int, space: str) -> int:
    """Return the number of bytes in a space of memory that an instruction accesses at an operand, or 0 if not known."""
    modifiers = instruction.modifiers
    if instruction.root == "cp" and modifiers[:1] == ["async"] and "bulk" not in modifiers and operand < 2:
        sizes = instruction.operands[2:]
        return int(sizes[0]) if len(sizes) == 1 and sizes[0].isdigit() else 0
    match = _SIZE.fullmatch(modifiers[-1]) if modifiers else None
    spaces = _SPACES & {modifier.partition("::")[0] for modifier in modifiers}
    if instruction.root not in _ACCESSES or match is None or spaces - {space}:
        return 0
    count = next((int(m[1:]) for m in modifiers if re.fullmatch(r"v\d", m)), 1)
    return count * int(match[1]) * int(match[2] or 1) // 8


def _not_certain(terms: Iterable[Polynomial]) -> tuple[Polynomial, ...]:
    """Return terms in a fixed order, without those that are never negative."""
    return tuple(sorted((term for term in terms if not is_never_negative(term)), key=str))
