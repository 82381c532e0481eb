"""Finds the accesses of a kernel to the memory of its pointers, and the range of addresses of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jitload.bounds.domain import Domain, Range
from jitload.bounds.execution import SHARED, Address, Execution
from jitload.bounds.graph import Graph, Loop
from jitload.bounds.ptx import Entry, Instruction, PtxError, read_entry
from jitload.bounds.terms import Operation, Polynomial, is_never_negative
from jitload.bounds.values import Assumption, Condition
from jitload.model import Parameter

_SIZE = re.compile(r"[a-z]+(\d+)(?:x(\d))?")
_ACCESSES = ("ld", "st", "atom", "red", "ldu")
_SPACES = {"global", "shared", "local", "const", "param"}
_MOST_INSTRUCTIONS, _MOST_SITES = 20_000, 300  # more would take seconds
_THREADS, _BLOCKS = 1024, (1 << 31) - 1  # the most in an extent
_MOST = 1 << 62  # larger numbers are not trusted, because terms are computed with 64 bits


class Access(NamedTuple):
    """An instruction that accesses memory behind a pointer, in bytes from the pointer on.

    Attributes:
        pointer: The parameter's name, or `shared:` and the name of an array in shared memory.
        instruction: The instruction.
        size: The number of bytes of one access.
        offset: The address of the first byte.
        range: The addresses of the first bytes. None if they are not known.
        reason: Why the range is not known.
        certain: What must not be negative for `range` to hold.
        active: What must not be negative for any thread to make the access.
        exact: What must not be negative for a thread to access both ends of the range. None if this is not known.
    """

    pointer: str
    instruction: Instruction
    size: int = 0
    offset: Polynomial = Polynomial()
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
    execution = Execution(entry, Graph(entry), parameters)
    sites: dict[int, _Site] = {}
    accesses = [access for address in execution.addresses for access in _accesses_at(address, execution, sites)]
    reason = "the pointer is stored, chosen or passed on"
    escapes = [Access(pointer, instruction, reason=reason) for pointer, instruction in execution.escaped.items()]
    return accesses + escapes, entry


def _accesses_at(address: Address, execution: Execution, sites: dict[int, _Site]) -> Iterator[Access]:
    value, instruction = execution.resolve(address.value), address.instruction
    pointers = sorted(symbol[1:] for symbol in value.polynomial.symbols if symbol.startswith("@"))
    space = "shared" if pointers and pointers[0].startswith(SHARED) else "global"
    size = _size_of(instruction, address.operand, space)
    if size == 0 or len(pointers) > 1:
        reason = "its address is not that of one pointer" if size else "jitload does not know the instruction"
        yield from (Access(pointer, instruction, reason=reason) for pointer in pointers)
    elif pointers:
        site = sites.get(address.block) or sites.setdefault(address.block, _Site(execution, address.block))
        if len(sites) > _MOST_SITES:
            raise PtxError(f"more than {_MOST_SITES} blocks of instructions access tensors")
        offset = value.polynomial - Polynomial.of(f"@{pointers[0]}")
        yield site.access(Access(pointers[0], instruction, size, offset), value.assumptions)


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


class _Site:
    """A block of instructions with accesses, and the comparisons under which it is reached."""

    def __init__(self, execution: Execution, block: int) -> None:
        self.execution, self.graph = execution, execution.graph
        self.parameters = {parameter.name: parameter for parameter in execution.parameters.values()}
        path, *others = sorted(self.graph.paths[block])
        self.steps = [step for step in path if all(step in other for other in others)]
        self.loops = [self.graph.loops[step.block] for step in self.steps if step.kind == "loop"]
        self.is_exact = not others and not execution.has_calls and {s.kind for s in path} <= {"branch", "loop"}
        self.kept: list[Polynomial] = []  # the comparisons that can be used
        self.certain: list[Polynomial] = []  # what must not be negative for registers to hold the numbers
        self.are_all_kept = True
        self.known: list[Polynomial] = []  # all comparisons
        for step in self.steps:
            if step.kind == "loop":
                self._use_loop(self.graph.loops[step.block])
            elif step.kind == "branch":
                edge = self.graph.outgoing[step.block][step.edge]
                self._use(self._usable(execution.condition(edge)))
        self.domain = Domain(self.kept)
        self.active = tuple(_not_certain(self.domain.active))
        self.exact = tuple(_not_certain(self.domain.exact))

    def access(self, access: Access, assumptions: frozenset[Assumption]) -> Access:
        """Return an access in this block with its range. Under a predicate, fewer threads may make it."""
        offset = access.offset
        if any(name.startswith("@") for name in offset.symbols):
            return access._replace(reason="its address is not a sum of the pointer and an offset")
        if not self.graph.is_reducible:
            return access._replace(reason="the kernel has a loop with several entries")
        if not self._is_in_scope(offset):
            return access._replace(reason="its index does not follow from threads, blocks, loops and parameters")
        range_ = self.domain.range_of(offset)
        if access.pointer.startswith(SHARED):
            assumptions |= {Assumption(offset, -(1 << 31), (1 << 31) - 1)}
        fitting = self._fitting(self.domain, assumptions)
        if range_ is None or fitting is None:
            reason = "its index may be too large for its type" if range_ else "no comparison limits its index"
            return access._replace(reason=reason)
        is_exact = self.is_exact and self.domain.is_exact and range_.is_exact and not access.instruction.guard
        return access._replace(
            range=range_,
            certain=tuple(_not_certain((*self.certain, *fitting, *range_.signs))),
            active=self.active,
            exact=self.exact if is_exact else None,
        )

    def _is_in_scope(self, polynomial: Polynomial) -> bool:
        """Return whether a polynomial is linear, and has only iterations of loops around the access."""
        headers = {f"#{loop.header}" for loop in self.loops}
        loops = {name for name in polynomial.symbols if name.startswith("#")}
        return polynomial.split() is not None and loops <= headers

    # ---- comparisons ----

    def _usable(self, condition: Condition, loop: Loop | None = None) -> Condition:
        """Return what can be used of a condition, in the form of limits."""
        limits = [*condition.limits, *filter(None, (_as_limit(number, loop) for number in condition.unequal))]
        usable = tuple(limit for limit in limits if self._is_in_scope(limit))
        is_whole = condition.is_whole and len(usable) == len(condition.limits) + len(condition.unequal)
        return Condition(usable, (), condition.assumptions if usable else frozenset(), is_whole)

    def _use(self, condition: Condition, first: Sequence[Polynomial] | None = None) -> None:
        """Use a condition for what follows. That of a loop replaces `first`, what holds in its first iteration."""
        kept = [limit for limit in self.kept if limit not in (first or ())]
        domain = kept if first is None else [*kept, *condition.limits]
        terms = self._fitting(domain, condition.assumptions)
        # Whether a loop's comparisons hold in its first iteration follows from earlier ones.
        if terms is not None and (self.are_all_kept or first is None):
            self.kept = [*kept, *condition.limits]
            self.certain += terms
        else:
            self.are_all_kept = False
        self.known += condition.limits
        self.is_exact &= self.are_all_kept and condition.is_whole

    def _use_loop(self, loop: Loop) -> None:
        """Use what holds in each iteration: in the first one, and before each other one."""
        is_conditional = len(loop.back) == 1 and loop.back[0].taken is not None
        whole = Condition(is_whole=True)
        condition = self._usable(self.execution.condition(loop.back[0]), loop) if is_conditional else whole
        # The loop ends only where it could also go on: at its end, or before the access.
        ends = {loop.back[0].source} if is_conditional else {s.block for s in self.steps if s.kind == "branch"}
        self.is_exact &= condition.is_whole and [edge.source in ends for edge in loop.exits] == [True]
        iteration = f"#{loop.header}"
        first, earlier = (
            tuple(limit.substitute({iteration: value}) for limit in condition.limits)
            for value in (Polynomial.of(-1), Polynomial.of(iteration) - 1)
        )
        if all(_follows(limit, self.known) for limit in first):
            self._use(condition._replace(limits=earlier), first)
        else:
            self.is_exact = False

    # ---- registers ----

    def _fitting(
        self, domain: Domain | Sequence[Polynomial], assumptions: Iterable[Assumption]
    ) -> list[Polynomial] | None:
        """Return what must not be negative for assumptions to hold in a domain, or None if they hold for no launch."""
        terms: list[Polynomial] = []
        for assumption in assumptions:
            if not _always_fits(assumption, self.parameters):
                domain = domain if isinstance(domain, Domain) else Domain(domain)
                range_ = domain.range_of(assumption.value)
                if range_ is None:
                    return None
                low, high = max(assumption.low, -_MOST), min(assumption.high, _MOST)
                terms += [*range_.signs, range_.low - low, -range_.high + high]
        is_possible = all(term.constant is None or term.constant >= 0 for term in terms)
        return _not_certain(terms) if is_possible else None


def _follows(constraint: Polynomial, known: Sequence[Polynomial]) -> bool:
    """Return whether `constraint >= 0` follows from others."""
    return any(is_never_negative(constraint - other) for other in (Polynomial(), *known))


def _as_limit(number: Polynomial, loop: Loop | None) -> Polynomial | None:
    """Return what is not negative if a number is not zero, which is counted down to zero or is never negative."""
    step = number.coefficient(f"#{loop.header}").constant if loop else None
    if step in (1, -1):
        return number * -step - 1
    has_sign = any(isinstance(symbol, Operation) or symbol.isidentifier() for symbol in number.symbols)
    return None if has_sign or min(number.terms.values(), default=0) < 0 else number - 1


def _not_certain(terms: Iterable[Polynomial]) -> list[Polynomial]:
    """Return terms without repetitions, and without those that are never negative."""
    return [term for term in dict.fromkeys(terms) if not is_never_negative(term)]


def _always_fits(assumption: Assumption, parameters: Mapping[str, Parameter]) -> bool:
    """Return whether a number is a special register, or a parameter of a type that fits."""
    name = next(iter(assumption.value.symbols), "")
    if assumption.value != Polynomial.of(name):
        return False
    parameter = parameters.get(name)
    if parameter is None:
        most = _THREADS if name.startswith(("tid", "block")) else _BLOCKS
        is_special = name.partition(".")[0] in ("tid", "ctaid", "block", "grid")
        return is_special and assumption.low <= 0 and most <= assumption.high
    bits = 8 * parameter.size
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if parameter.kind == "int" else (0, (1 << bits) - 1)
    return high < 1 << 63 and assumption.low <= low and high <= assumption.high  # the runtime's integers have a sign
