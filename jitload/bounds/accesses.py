"""Finds the accesses of a kernel to the memory of its pointers, and the range of addresses of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

from jitload.bounds.execution import SHARED, Address, Condition, Execution, Loop, Path, within
from jitload.bounds.ptx import Entry, Instruction, PtxError, read_entry
from jitload.bounds.terms import COUNTER, EXTENTS, ONE, POINTER, ZERO, Polynomial, is_never_negative
from jitload.model import Parameter

_ACCESS = re.compile(r"(?:ld|st|atom|red|ldu)\.(?:.*\.)?[a-z]+(\d+)(?:x(\d))?")
_SPACES = {"global", "shared", "local", "const", "param"}
_MOST_FACTS = 40


class Access(NamedTuple):
    """An access to memory behind a pointer, in bytes from the pointer on."""

    pointer: str  # the parameter's name, or `shared:` and the name of an array in shared memory
    instruction: Instruction
    reason: str = ""  # why nothing else is known
    size: int = 0  # the number of bytes of one access
    offset: Polynomial = ZERO  # the first byte
    low: Polynomial = ZERO  # the smallest offset
    high: Polynomial = ZERO  # the largest offset
    conditions: tuple[Polynomial, ...] = ()  # what must not be negative for all of this to hold
    is_exact: bool = False  # whether threads then access both ends; otherwise, they may access less
    unlimited: tuple[Access, ...] = ()  # the same, in launches in which the comparisons hold for all threads


class UnknownRangeError(Exception):
    """The range of an integer is not known, for the reason in the text."""


def find_accesses(ptx: str, symbol: str, parameters: Sequence[Parameter]) -> tuple[list[Access], Entry]:
    """Return the accesses of a kernel to shared memory and to the memory of its pointers, and the kernel.

    If the PTX cannot be read, nothing is known of the pointers, and the kernel has no instructions.
    """
    try:
        entry = read_entry(ptx, symbol)
        execution = Execution(entry, parameters)
    except PtxError as error:
        reason, none = f"the PTX cannot be read ({error})", Instruction("no instruction", ())
        pointers = [parameter.name for parameter in parameters if parameter.kind == "pointer"]
        return [Access(pointer, none, reason) for pointer in pointers], Entry((), (), {}, {})
    accesses: list[Access] = []
    regions: dict[tuple[int, ...], Region] = {}  # by the ids of the steps of paths
    for address in execution.addresses:
        pointers = execution.pointers_in(address.value)
        try:
            accesses += [_region_of(address.path, regions).access_at(address, pointer) for pointer in pointers]
        except UnknownRangeError as error:
            accesses += [Access(pointer, address.instruction, str(error)) for pointer in pointers]
    if any(i.root == "call" and "vprintf" not in i.operands for i in entry.instructions):  # which may end the kernel
        accesses = [access._replace(is_exact=False) for access in accesses]
    return accesses, entry


def _region_of(path: Path | None, regions: dict[tuple[int, ...], Region]) -> Region:
    """Return a copy of the region to which a path leads."""
    if path is None:
        raise UnknownRangeError("the pointer is stored, chosen or passed on")
    key = (*map(id, path),)
    if key not in regions:
        regions[key] = Region(path)
    return copy(regions[key])


class Region:
    """The threads and iterations of loops that reach an instruction, limited by comparisons."""

    def __init__(self, path: Path) -> None:
        self._conditions: frozenset[Polynomial] = frozenset()
        self._coordinates = {*EXTENTS}  # and the counters of loops
        self._facts: tuple[Polynomial, ...] = ()  # what is not negative
        self._is_exact = True  # whether all threads and iterations for which the facts hold reach the instruction
        for step in path:
            if isinstance(step, Loop):
                self._enter(step)
            else:
                self._follow(step)

    def access_at(self, address: Address, pointer: str) -> Access:
        """Return the access to an address. Raise UnknownRangeError if its range is not known."""
        space = "shared" if pointer.startswith(SHARED) else "global"
        size = _size_of(address.instruction.opcode, space)
        if size == 0:
            raise UnknownRangeError("jitload does not know the instruction")
        offset = address.value.term - Polynomial.of(f"{POINTER}{pointer}")
        self._assume(address.value.assumed | (within(offset, 32, is_signed=True) if space == "shared" else set()))
        unlimited = Access(pointer, address.instruction, "", size, offset, is_exact=address.is_certain)
        others = copy(self).without_limits(unlimited)
        low, high = self._least(offset), -self._least(-offset)
        is_exact = address.is_certain and self._is_exact and self._has_ends(offset)
        conditions = tuple(sorted(self._conditions, key=str))
        return Access(pointer, address.instruction, "", size, offset, low, high, conditions, is_exact, others)

    def without_limits(self, access: Access) -> tuple[Access, ...]:
        """Return the access in launches in which comparisons limit it, but hold for all threads.

        After this, the region is that of all threads.
        """
        facts, self._facts = [fact for fact in self._facts if fact.varying], ()
        of_limited = self._conditions
        try:
            for end in map(self._least_of_all, facts):
                self._require(Polynomial.of(-1) if end is None else end)
            low, high = self._least(access.offset), -self._least(-access.offset)
        except UnknownRangeError:
            return ()
        # The last condition is checked first. In most launches, it is one of these that does not hold.
        own = sorted(self._conditions - of_limited, key=str)
        conditions, is_exact = (*sorted(of_limited, key=str), *own), access.is_exact and self._is_exact
        return (access._replace(low=low, high=high, conditions=conditions, is_exact=is_exact),) if facts else ()

    def _follow(self, condition: Condition) -> None:
        """Use what holds after a branch."""
        self._is_exact &= condition.is_whole
        for fact in condition.facts:
            try:
                self._assume(condition.assumed)
                self._add(fact)
            except UnknownRangeError:
                self._is_exact = False

    def _enter(self, loop: Loop) -> None:
        """Use that a loop is executed. What its branch back compares holds if it holds in the first iteration."""
        self._coordinates.add(loop.counter)
        self._is_exact &= loop.again.is_whole and loop.exits == loop.back
        for fact in loop.again.facts if len(loop.back) == 1 else ():
            first = fact.substitute({loop.counter: Polynomial.of(-1)})
            if any(is_never_negative(first - known) for known in (ZERO, *self._facts)):
                self._add(fact.substitute({loop.counter: Polynomial.of(loop.counter) - 1}))
                self._assume(loop.again.assumed)
            else:
                self._is_exact = False

    def _add(self, fact: Polynomial) -> None:
        """Add the fact that a term is not negative."""
        factors = fact.factors()
        rest = factors.pop("", ZERO)
        unit = math.gcd(*(number for factor in factors.values() for _, number in factor.terms)) or 1
        fact = (fact - rest) // unit + rest // unit
        if not factors.keys() <= self._coordinates or (factors and not _pivot(fact)) or len(self._facts) == _MOST_FACTS:
            self._is_exact = False
        elif not any(is_never_negative(fact - other) for other in self._facts):
            self._facts = (*(other for other in self._facts if not is_never_negative(other - fact)), fact)
            self._conditions |= set() if factors else {fact}

    def _assume(self, terms: Iterable[Polynomial]) -> None:
        """Require that terms are not negative for any thread."""
        for term in terms:
            self._require(self._least(term))

    def _require(self, term: Polynomial) -> None:
        if (term.constant or 0) < 0:
            raise UnknownRangeError("its index may be too large for its type")
        self._conditions |= set() if is_never_negative(term) else {term}

    def _least(self, term: Polynomial) -> Polynomial:
        """Return the smallest value of a term in the region."""
        for fact in reversed(self._facts):
            multiple, rest = _divided(term, fact)
            if multiple.terms and multiple == _magnitude(multiple):
                self._require(multiple)
                term = rest
        least = self._least_of_all(term)
        if least is None:
            raise UnknownRangeError("no comparison limits its index")
        return least

    def _least_of_all(self, term: Polynomial) -> Polynomial | None:
        """Return the smallest value of a term for all threads and iterations, or None if there is none.

        A factor whose sign is not known is required to be positive.
        """
        factors = term.factors()
        least = factors.pop("", ZERO)
        if not factors.keys() <= self._coordinates:
            raise UnknownRangeError("its index does not follow from threads, blocks, loops and parameters")
        for symbol, factor in factors.items():
            magnitude = _magnitude(factor)
            self._require(magnitude)
            if magnitude != factor and symbol.startswith(COUNTER):
                return None
            least -= magnitude * (Polynomial.of(EXTENTS[symbol]) - 1) if magnitude != factor else ZERO
        return least

    def _has_ends(self, offset: Polynomial) -> bool:
        """Return whether threads have both ends of the range of an offset, with conditions for that."""
        facts = [fact for fact in self._facts if fact.varying]
        for fact in facts:
            offset = _divided(offset, fact)[1]
        for number, fact in enumerate(facts):
            others = [other for other in facts[:number] if (fact + other).varying]
            if not _is_dense(fact) or any(not fact.varying.isdisjoint(other.varying) for other in (offset, *others)):
                return False
            self._conditions |= {fact + other for other in facts[:number] if other not in others}
            self._conditions |= {-end for end in map(self._least_of_all, (fact, -fact)) if end is not None}
        return True


def _divided(term: Polynomial, fact: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return which multiple of a fact is in a term, and the rest, which has no coordinate of the fact."""
    pivot = _pivot(fact)
    multiple = term.factors().get(pivot, ZERO) * fact.factors()[pivot] if pivot else ZERO
    rest = term - fact * multiple
    return (multiple, rest) if rest.varying.isdisjoint(fact.varying) else (ZERO, term)


def _pivot(fact: Polynomial) -> str:
    """Return a coordinate that has no factor in a fact except for 1 and -1, or "" if there is none."""
    factors = fact.factors()
    return next((symbol for symbol in sorted(factors) if symbol and factors[symbol] in (ONE, -ONE)), "")


def _is_dense(fact: Polynomial) -> bool:
    """Return whether a sum of coordinates has all values between its ends.

    The coordinates are digits of the sum, and each is worth no more than the lesser ones reach.
    """
    factors = {symbol: _magnitude(factor) for symbol, factor in fact.factors().items() if symbol}
    reach = ONE
    for symbol in sorted(factors, key=lambda symbol: max((len(m), n) for m, n in factors[symbol].terms)):
        if not is_never_negative(reach - factors[symbol]):
            return False
        reach += ZERO if symbol.startswith(COUNTER) else factors[symbol] * (Polynomial.of(EXTENTS[symbol]) - 1)
    return True


def _magnitude(factor: Polynomial) -> Polynomial:
    """Return a factor with the sign with which it is taken to be positive."""
    return factor if max(factor.terms, key=lambda term: (len(term[0]), term))[1] > 0 else -factor


def _size_of(opcode: str, space: str) -> int:
    """Return the number of bytes in a space of memory that an instruction accesses, or 0 if this is not known."""
    match, vector = _ACCESS.fullmatch(opcode), re.search(r"\.v(\d)\.", opcode)
    if match is None or _SPACES & {*re.split(r"\W+", opcode)} - {space}:
        return 0
    return int(vector[1] if vector else 1) * int(match[1]) * int(match[2] or 1) // 8
