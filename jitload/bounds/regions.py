"""The threads and iterations that reach an instruction, and the range of an integer in them."""

from __future__ import annotations

import math
from copy import copy
from typing import NamedTuple

from jitload.bounds.execution import Assumptions, Condition, Execution, Value
from jitload.bounds.paths import Branch, Loop
from jitload.bounds.terms import COUNTER, EXTENTS, ONE, SUM, ZERO, Polynomial, extreme, is_never_negative

Terms = frozenset[Polynomial]  # what must not be negative
Limits = tuple[Polynomial | None, Polynomial | None]  # the smallest and the largest value, or None if there is none
_MOST = 1 << 62  # larger numbers are not trusted, because terms are computed with 64 bits
_MOST_FACTS = 40


class UnknownRangeError(Exception):
    """The range of an integer is not known, for the reason in the text."""


class Range(NamedTuple):
    """The smallest and the largest value of an integer, with what must not be negative for both, and its symbols."""

    low: Polynomial
    high: Polynomial
    certain: Terms
    symbols: frozenset[str]

    def within(self, least: int, most: int) -> Terms:
        """Return what must not be negative for the range to be between two numbers."""
        terms = self.low - max(least, -_MOST), -self.high + min(most, _MOST)
        if any((term.constant or 0) < 0 for term in terms):
            raise UnknownRangeError("its index may be too large for its type")
        return frozenset(terms)


def extent_of(coordinate: str) -> Polynomial:
    """Return the number of values of a coordinate."""
    kind, _, axis = coordinate.partition(".")
    return Polynomial.of(f"{EXTENTS[kind]}.{axis}")


class Region:
    """The threads and iterations of loops that reach an instruction, limited by comparisons.

    Attributes:
        certain: What must not be negative for the limits to hold.
        is_exact: Whether all threads and iterations within the limits reach the instruction.
    """

    def __init__(self, execution: Execution) -> None:
        self.certain: Terms = frozenset()
        self.is_exact = True
        self._execution = execution
        self._facts: tuple[Polynomial, ...] = ()  # what is not negative
        coordinates = [f"{kind}.{axis}" for kind in EXTENTS for axis in "xyz"]
        self._limits: dict[str, Limits] = {name: (ZERO, extent_of(name) - 1) for name in coordinates}
        self._sums: dict[str, tuple[str, Polynomial]] = {}  # limited sums of coordinates, each with one of them

    # ---- comparisons ----

    def after(self, decision: Branch | Loop | None) -> Region:
        """Return the part of the region that takes a branch or does not take it, or that executes a loop."""
        region = copy(self)
        try:
            region.follow(decision)
        except UnknownRangeError:
            region = copy(self)
            region.is_exact = False
        return region

    def follow(self, decision: Branch | Loop | None) -> None:
        """Use what holds after a decision. Raise UnknownRangeError if its numbers may be too large for their types."""
        if isinstance(decision, Loop):
            self._enter(decision)
            return
        condition = self._execution.conditions.get(decision, Condition()) if decision else Condition()
        self.is_exact &= condition.is_whole
        for value in condition.values:
            fact, assumed = self._execution.resolved(value)
            self.certain |= self._certain_if(assumed)
            self._add(fact)

    def _enter(self, loop: Loop) -> None:
        """Use that a loop is executed. What its branch back compares holds if it holds in the first iteration."""
        condition = self._execution.conditions.get(Branch(loop.back[0], is_taken=True), Condition())
        self.is_exact &= condition.is_whole and len(condition.values) == 1 and loop.exits == loop.back
        facts, counter = self._facts, f"{COUNTER}{loop.body[0]}"
        self._limits = {**self._limits, counter: (ZERO, None)}
        for value in condition.values if len(loop.back) == 1 else ():
            fact, assumed = self._execution.resolved(value)
            fact = fact.substitute({counter: Polynomial.of(counter) - 1})
            first = fact.substitute({counter: ZERO})
            if any(is_never_negative(first - known) for known in (ZERO, *facts)):
                self._add(fact)
                self.certain |= self._certain_if(assumed)
            else:
                self.is_exact = False

    def _add(self, fact: Polynomial) -> None:
        """Add the fact that a term is not negative, and limit sums of coordinates by it."""
        factors = fact.factors()
        if factors is None or not factors.keys() <= {"", *self._limits} or len(self._facts) == _MOST_FACTS:
            self.is_exact = False
        elif not any(is_never_negative(fact - other) for other in self._facts):
            self._facts = (*(other for other in self._facts if not is_never_negative(other - fact)), fact)
            self._sums = {}
            self._limits = {name: limits for name, limits in self._limits.items() if not name.startswith(SUM)}
            for other in self._facts:
                self._limit(other)

    def _limit(self, fact: Polynomial) -> None:
        """Limit the sum of coordinates in a fact."""
        factors = fact.factors() or {}
        rest = factors.pop("", ZERO)
        unit = math.gcd(*(number for factor in factors.values() for number in factor.terms.values()))
        symbol = next((s for s in sorted(factors) if abs((factors[s] // unit).constant or 0) == 1), None)
        if symbol is None:
            self.is_exact &= not factors
            return
        unit = factors[symbol].constant or 0
        form = (fact - rest) // unit
        name = f"{SUM}{form}"
        self._sums[name] = symbol, form
        low, high, certain = self._span(form)
        self.certain |= certain
        low, high = self._limits.get(name, (low, high))
        bound = rest // -unit if unit < 0 else -(rest // unit)
        if unit < 0:
            high = bound if high is None else extreme("MIN", [bound, high])
        else:
            low = bound if low is None else extreme("MAX", [bound, low])
        self._limits[name] = low, high

    # ---- ranges ----

    def range_of(self, value: Value) -> Range:
        """Return the range of an integer in the region. Raise UnknownRangeError if it is not known."""
        term, assumed = self._execution.resolved(value)
        for name, (symbol, form) in reversed(self._sums.items()):
            changed = term.substitute({symbol: Polynomial.of(name) - form + Polynomial.of(symbol)})
            if changed.symbols().isdisjoint(form.factors() or ()):
                term = changed
        low, high, certain = self._span(term)
        if low is None or high is None:
            raise UnknownRangeError("no comparison limits its index")
        return Range(low, high, certain | self._certain_if(assumed), frozenset(term.factors() or ()))

    def _certain_if(self, assumed: Assumptions) -> Terms:
        """Return what must not be negative for assumptions to hold in the region."""
        ranges = [(self.range_of(Value(term)), least, most) for term, least, most in assumed]
        return frozenset[Polynomial]().union(*(r.certain | r.within(least, most) for r, least, most in ranges))

    def _span(self, term: Polynomial) -> tuple[Polynomial | None, Polynomial | None, Terms]:
        """Return the smallest and the largest value of a term, and what must not be negative for them to be."""
        factors = term.factors()
        if factors is None or not factors.keys() <= {"", *self._limits}:
            raise UnknownRangeError("its index does not follow from threads, blocks, loops and parameters")
        ends: list[Polynomial | None] = [factors.pop("", ZERO)] * 2
        for symbol, factor in factors.items():
            limits = self._limits[symbol] if _is_positive(factor) else self._limits[symbol][::-1]
            pairs = zip(ends, limits, strict=True)
            ends = [None if end is None or limit is None else end + limit * factor for end, limit in pairs]
        return ends[0], ends[1], frozenset(map(_magnitude, factors.values()))

    # ---- certainty ----

    @property
    def active(self) -> Terms:
        """What must not be negative for any thread to reach the instruction."""
        limits = (self._limits[name] for name in self._sums)
        sizes = (high - low for low, high in limits if low is not None and high is not None)
        return frozenset([*(fact for fact in self._facts if fact.is_uniform), *sizes])

    def terms_for_ends(self, range_: Range) -> Terms | None:
        """Return what must not be negative for threads to have both ends of a range, or None if this is not known."""
        symbols = {symbol for symbol in range_.symbols if symbol not in self._sums}
        terms: Terms = frozenset()
        for name, (_, form) in self._sums.items():
            factors = form.factors() or {}
            if None in self._limits[name] or not symbols.isdisjoint(factors):
                return None
            symbols |= factors.keys()
            terms |= self._terms_for_all(factors)
        is_possible = self.is_exact and all(term.constant is None or term.constant >= 0 for term in terms)
        return terms if is_possible else None

    def _terms_for_all(self, factors: dict[str, Polynomial]) -> Terms:
        """Return what must not be negative for a sum of coordinates to have all values between its ends.

        The coordinates are digits of the sum, and each is worth no more than the lesser ones reach.
        """
        reach, terms = ONE, set()
        digits = [(_magnitude(factor), self._limits[symbol][1]) for symbol, factor in factors.items()]
        for worth, most in sorted(digits, key=lambda digit: max((len(m), n) for m, n in digit[0].terms.items())):
            terms |= {worth, reach - worth}
            if most is None:
                break
            reach += worth * most
        return frozenset(terms)


def _is_positive(factor: Polynomial) -> bool:
    """Return whether a factor is taken to be positive. If its sign is not known, the launch checks it."""
    return max(factor.terms.items(), key=lambda term: (len(term[0]), term))[1] > 0


def _magnitude(factor: Polynomial) -> Polynomial:
    return factor if _is_positive(factor) else -factor
