"""Finds the accesses of a kernel to the memory of its pointers, and the range of addresses of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jitload.bounds.domain import Domain, Range
from jitload.bounds.graph import Edge, Graph, Loop
from jitload.bounds.polynomial import Polynomial
from jitload.bounds.ptx import Entry, Instruction, PtxError, read_entry
from jitload.bounds.terms import Term, add, negate
from jitload.bounds.values import SHARED, Assumption, Comparison, Condition, Value, Values
from jitload.model import Parameter

_SIZE = re.compile(r"[a-z]+(\d+)(?:x(\d))?")
_ACCESSES = ("ld", "st", "atom", "red", "ldu")
_SPACES = {"global", "shared", "local", "const", "param"}
_HARMLESS = ("prefetch", "prefetchu", "bar", "setp", "isspacep", "cvta")
_MOST_INSTRUCTIONS, _MOST_SITES = 20_000, 300  # more would take seconds
_ONE = Polynomial.of(1)
_BITS = 64
_MOST = 1 << 62  # larger numbers are not trusted, because terms are computed with 64 bits


class Access(NamedTuple):
    """An instruction that accesses memory behind a pointer, in bytes from the pointer on.

    Attributes:
        pointer: The parameter's name, or `shared:` and the name of an array in shared memory.
        instruction: The instruction.
        size: The number of bytes of one access.
        range: The addresses of the first bytes. None if they are not known.
        reason: Why the range is not known.
        certain: What must not be negative for `range` to hold.
        active: What must not be negative for any thread to make the access.
        exact: What must not be negative for a thread to access both ends of the range. None if this is not known.
    """

    pointer: str
    instruction: Instruction
    size: int = 0
    range: Range | None = None
    reason: str = ""
    certain: tuple[Term, ...] = ()
    active: tuple[Term, ...] = ()
    exact: tuple[Term, ...] | None = None


class _Batch(NamedTuple):
    """Comparisons that hold from some place on. Those of a loop hold already where they are evaluated.

    Attributes:
        is_whole: Whether these are all comparisons that decide what comes next.
    """

    constraints: tuple[Polynomial, ...]
    assumptions: frozenset[Assumption]
    is_whole: bool
    is_of_loop: bool = False


def find_accesses(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[list[Access], Entry]:
    """Return the accesses of a kernel to shared memory and to the memory of its pointers, and the kernel."""
    entry = read_entry(ptx, symbol)
    if len(entry.parameters) != len(parameters):
        raise PtxError(f"{symbol}: the PTX has {len(entry.parameters)} parameters, not {len(parameters)}")
    if len(entry.instructions) > _MOST_INSTRUCTIONS:
        raise PtxError(f"it has more than {_MOST_INSTRUCTIONS} instructions")
    values = Values(entry, Graph(entry), parameters)
    sites: dict[int, _Site] = {}
    numbers = range(len(entry.instructions))
    accesses = [access for number in numbers for access in _accesses_of(number, values, sites)]
    return [*accesses, *_escapes(values)], entry


def _escapes(values: Values) -> Iterator[Access]:
    """Yield an access that is not known for each pointer that was used in another way than for addresses."""
    for pointer, number in values.escaped.items():
        reason = "the pointer is stored, chosen or passed on"
        yield Access(pointer, values.entry.instructions[number], reason=reason)


def _accesses_of(number: int, values: Values, sites: dict[int, _Site]) -> Iterator[Access]:
    instruction = values.entry.instructions[number]
    if instruction.root not in _HARMLESS:
        values.evaluate(number)
    for place, operand in enumerate(instruction.operands):
        address = values.address(number, operand)
        if operand.startswith("[") and address is None:
            values.use(number, operand)
        if address is None or instruction.root.startswith("prefetch"):
            continue
        pointers = sorted(name[1:] for name in address.polynomial.symbols if name.startswith("@"))
        space = "shared" if pointers and pointers[0].startswith(SHARED) else "global"
        size = _size_of(instruction, place, space)
        if size == 0 or len(pointers) > 1:
            reason = "its address is not that of one pointer" if size else "jitload does not know the instruction"
            yield from (Access(pointer, instruction, reason=reason) for pointer in pointers)
        elif pointers:
            block = values.graph.block_of[number]
            site = sites.get(block) or sites.setdefault(block, _Site(values, block))
            if len(sites) > _MOST_SITES:
                raise PtxError(f"more than {_MOST_SITES} blocks of instructions access tensors")
            yield site.access(Access(pointers[0], instruction, size), address)


def _size_of(instruction: Instruction, place: int, space: str) -> int:
    """Return the number of bytes in a space of memory that an instruction accesses at an operand, or 0 if not known."""
    modifiers = instruction.modifiers
    if instruction.root == "cp" and modifiers[:1] == ["async"] and "bulk" not in modifiers and place < 2:
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

    def __init__(self, values: Values, block: int) -> None:
        self.values, self.graph, self.block = values, values.graph, block
        self.types = {parameter.name: parameter for parameter in values.parameters.values()}
        self.loops = self.graph.loops_around(block)
        self.is_exact, self.are_all_kept = not values.has_calls, True
        self.whole: set[Edge] = set()  # the branches whose conditions are known completely
        kept, self.certain = self._usable([*self._batches()]) if self.graph.is_reducible else ([], ())
        self.domain = Domain(kept)
        self.active = tuple(_not_certain(self.domain.active))
        self.exact = tuple(_not_certain(self.domain.exact)) if self._is_reached() else None

    def access(self, unknown: Access, address: Value) -> Access:
        """Return an access in this block with its range. Under a predicate, fewer threads may make it."""
        offset = address.polynomial - Polynomial.of(f"@{unknown.pointer}")
        if any(name.startswith("@") for name in offset.symbols):
            return unknown._replace(reason="its address is not a sum of the pointer and an offset")
        if not self.graph.is_reducible:
            return unknown._replace(reason="the kernel has a loop with several entries")
        if not self._is_in_scope(offset):
            return unknown._replace(reason="its index does not follow from threads, blocks, loops and parameters")
        range_ = self.domain.range_of(offset)
        assumptions = address.assumptions
        if unknown.pointer.startswith(SHARED):
            assumptions |= {Assumption(offset, -(1 << 31), (1 << 31) - 1)}
        fitting = [_fitting(self.domain, assumption, self.types) for assumption in assumptions]
        if range_ is None or None in fitting:
            reason = "its index may be too large for its type" if range_ else "no comparison limits its index"
            return unknown._replace(reason=reason)
        terms = [term for terms in fitting for term in terms or ()]
        certain = tuple(_not_certain((*self.certain, *terms, *range_.signs)))
        exact = self.exact if range_.is_exact and not unknown.instruction.guard else None
        return unknown._replace(range=range_, certain=certain, active=self.active, exact=exact)

    def _is_in_scope(self, polynomial: Polynomial) -> bool:
        """Return whether a polynomial is linear, and has only iterations of loops around the access."""
        headers = {f"#{loop.header}" for loop in self.loops}
        loops = {name for name in polynomial.coordinates if name.startswith("#")}
        return polynomial.split() is not None and loops <= headers

    def _is_reached(self) -> bool:
        """Return whether all that decides whether the access is made is known."""
        deciding = self.graph.deciding(self.block)
        return self.is_exact and deciding is not None and all(edge in self.whole for edge in deciding)

    def _usable(self, batches: Sequence[_Batch]) -> tuple[list[Polynomial], tuple[Term, ...]]:
        """Return the comparisons that can be used, and what must not be negative for registers to hold the numbers."""
        kept: list[Polynomial] = []
        certain: list[Term] = []
        for batch in batches:
            assumptions = [a for a in batch.assumptions if not _always_fits(a, self.types)]
            domain = Domain([*kept, *batch.constraints] if batch.is_of_loop else kept) if assumptions else None
            terms = [_fitting(domain, assumption, self.types) for assumption in assumptions if domain]
            # Whether a loop's comparisons hold in its first iteration follows from earlier ones.
            if None not in terms and (self.are_all_kept or not batch.is_of_loop):
                kept += batch.constraints
                certain += [t for term in terms for t in term or ()]
            else:
                self.is_exact = self.are_all_kept = False
        return kept, tuple(dict.fromkeys(certain))

    def _batches(self) -> Iterator[_Batch]:
        """Yield the comparisons that hold at the access, the outermost first."""
        places: list[Edge | Loop] = [*self.graph.certain_edges(self.block), *self.loops]
        known: list[Polynomial] = []
        for place in sorted(places, key=self._depth):  # the edge that enters a loop comes before it
            batch = self._batch(self._condition(place)) if isinstance(place, Edge) else self._loop_batch(place, known)
            if isinstance(place, Edge) and batch.is_whole:
                self.whole.add(place)
            known += batch.constraints
            yield batch

    def _depth(self, place: Edge | Loop) -> int:
        block = place.target if isinstance(place, Edge) else place.header
        return self.graph.dominators[block].bit_count()

    def _condition(self, edge: Edge) -> Condition:
        last = self.graph.blocks[edge.source].stop - 1
        assert edge.taken is not None
        return self.values.condition(last, self.values.entry.instructions[last].guard, is_true=edge.taken)

    def _batch(self, condition: Condition, loop: Loop | None = None) -> _Batch:
        """Return the comparisons of a condition that can be used."""
        constraints: list[Polynomial] = []
        assumptions: frozenset[Assumption] = frozenset()
        is_whole = condition.is_whole
        for given in condition.comparisons:
            comparison = _without_zero(_counted(given, loop) if loop else given)
            if comparison.kind == "ne" or not self._is_in_scope(comparison.polynomial):
                is_whole = False
                continue
            constraints.append(comparison.polynomial)
            constraints += [-comparison.polynomial] if comparison.kind == "eq" else []
            assumptions |= comparison.assumptions
        return _Batch(tuple(constraints), assumptions, is_whole)

    def _loop_batch(self, loop: Loop, known: Sequence[Polynomial]) -> _Batch:
        """Return the comparisons that hold in each iteration: in the first one, and before each other one."""
        exits = self.graph.exits(loop)
        condition = self._condition(loop.back[0]) if len(loop.back) == 1 and loop.back[0].taken is not None else None
        batch = self._batch(condition or Condition((), is_whole=True), loop)
        iteration = f"#{loop.header}"
        minus = Polynomial.of(-1)
        first = [constraint.substitute(iteration, minus) for constraint in batch.constraints]
        if not all(_follows(constraint, known) for constraint in first):
            batch = _Batch((), frozenset(), is_whole=False)
        if condition is not None:  # the loop ends only where it could also go on
            ends_as_known = all(edge.source == loop.back[0].source for edge in exits)
        else:
            ends_as_known = all(self.graph.dominates(edge.source, self.block) for edge in exits)
        self.is_exact &= batch.is_whole and len(exits) == 1 and ends_as_known
        earlier = Polynomial.of(iteration) - _ONE
        constraints = tuple(constraint.substitute(iteration, earlier) for constraint in batch.constraints)
        return batch._replace(constraints=constraints, is_of_loop=True)


def _follows(constraint: Polynomial, known: Sequence[Polynomial]) -> bool:
    """Return whether `constraint >= 0` follows from others."""
    differences = (constraint - other for other in (Polynomial(), *known))
    return any(difference.constant is not None and difference.constant >= 0 for difference in differences)


def _without_zero(comparison: Comparison) -> Comparison:
    """Return a comparison `!= 0` of a number that is never negative as `> 0`."""
    terms = comparison.polynomial.terms
    is_natural = all(factor > 0 and not any("$" in name for name in m) for m, factor in terms.items())
    if comparison.kind != "ne" or not is_natural:
        return comparison
    return comparison._replace(kind="ge", polynomial=comparison.polynomial - _ONE)


def _counted(comparison: Comparison, loop: Loop) -> Comparison:
    """Return a comparison `!=` of a number that is counted up or down by 1 as `<` or `>`."""
    step = comparison.polynomial.coefficient(f"#{loop.header}").constant
    if comparison.kind != "ne" or step not in (1, -1):
        return comparison
    return comparison._replace(kind="ge", polynomial=comparison.polynomial * Polynomial.of(-step) - _ONE)


def _fitting(domain: Domain, assumption: Assumption, types: Mapping[str, Parameter]) -> list[Term] | None:
    """Return what must not be negative for an assumption to hold in a domain, or None if it holds for no launch."""
    if _always_fits(assumption, types):
        return []
    range_ = domain.range_of(assumption.value)
    if range_ is None:
        return None
    low, high = max(assumption.low, -_MOST), min(assumption.high, _MOST)
    terms = [*range_.signs, add(range_.low, Polynomial.of(-low)), add(negate(range_.high), Polynomial.of(high))]
    constants = [term.constant for term in terms if isinstance(term, Polynomial)]
    return None if any(constant is not None and constant < 0 for constant in constants) else _not_certain(terms)


def _not_certain(terms: Iterable[Term]) -> list[Term]:
    """Return terms without repetitions, and without those that are never negative."""
    distinct = dict.fromkeys(terms)
    return [term for term in distinct if not (isinstance(term, Polynomial) and _is_never_negative(term))]


def _is_never_negative(polynomial: Polynomial) -> bool:
    """Return whether a polynomial in extents of the grid and the block, which are positive, cannot be negative."""
    has_parameters = any(name.startswith("$") for name in polynomial.symbols)
    negative = sum(factor for factor in polynomial.terms.values() if factor < 0)
    positive = sum(factor for factor in polynomial.terms.values() if factor > 0)
    only_constant = negative == min(polynomial.terms.get((), 0), 0)
    is_quotient = any("//" in name for name in polynomial.symbols)
    return not has_parameters and not is_quotient and only_constant and positive + negative >= 0


def _always_fits(assumption: Assumption, types: Mapping[str, Parameter]) -> bool:
    """Return whether a number is a special register, or a parameter of a type that fits."""
    name = next(iter(assumption.value.symbols), "")
    if assumption.value != Polynomial.of(name):
        return False
    parameter = types.get(name.lstrip("$"))
    if parameter is None:
        most = 1024 if name.lstrip("n").startswith("tid") else (1 << 31) - 1
        is_special = bool(re.fullmatch(r"n?(?:cta|t)id\.[xyz]", name))
        return is_special and assumption.low <= 0 and most <= assumption.high
    bits = 8 * parameter.size
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if parameter.kind == "int" else (0, (1 << bits) - 1)
    is_whole = parameter.kind != "uint" or bits < _BITS  # the runtime has integers of 64 bits with a sign
    return is_whole and assumption.low <= low and high <= assumption.high
