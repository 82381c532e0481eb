"""Polynomials of parameters, of the extents of the grid and the block, and of what varies between threads.

A symbol is a string, as messages write it: `n` for a parameter, `grid.x`, `block.x`, or a quotient. Other symbols vary
between threads and iterations: coordinates such as `tid.x`, pointers, counters of loops and unknown numbers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Monomial = tuple[str, ...]

EXTENTS = {
    f"{kind}.{axis}": f"{extent}.{axis}" for axis in "xyz" for kind, extent in (("tid", "block"), ("ctaid", "grid"))
}
POINTER, COUNTER, UNKNOWN = "&", "#.", "?"  # begin other symbols that vary
_VARYING = (POINTER, COUNTER, UNKNOWN, "tid.", "ctaid.")
_RANGES = {
    "block.": (1, 1 << 10),
    "tid.": (0, 1 << 10),
    "grid.": (1, 1 << 31),
    "ctaid.": (0, 1 << 31),
    COUNTER: (0, math.inf),
}


def _order(symbol: str) -> tuple[bool, bool, str]:
    return symbol.startswith("block"), "." in symbol, symbol


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of products of symbols: the factors of its monomials, in the order in which they are shown."""

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def of(cls, value: Polynomial | int | str) -> Polynomial:
        """Return a constant or a symbol as a polynomial."""
        if isinstance(value, str):
            return cls((((value,), 1),))
        return value if isinstance(value, Polynomial) else cls((((), value),) if value else ())

    @classmethod
    def sum_of(cls, terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
        """Return the sum of terms, which may have the same monomials."""
        factors: Counter[Monomial] = Counter()
        for monomial, factor in terms:
            factors[monomial] += factor
        shown = sorted(factors.items(), key=lambda term: (not term[0], term[1] < 0, [*map(_order, term[0])]))
        return cls(tuple((monomial, factor) for monomial, factor in shown if factor))

    def __add__(self, other: Polynomial | int) -> Polynomial:
        return Polynomial.sum_of((*self.terms, *Polynomial.of(other).terms))

    def __neg__(self) -> Polynomial:
        return self * -1

    def __sub__(self, other: Polynomial | int) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        pairs = ((left, right) for left in self.terms for right in Polynomial.of(other).terms)
        return Polynomial.sum_of((tuple(sorted(m + n, key=_order)), a * b) for (m, a), (n, b) in pairs)

    def __floordiv__(self, divisor: int) -> Polynomial:
        whole = Polynomial(tuple((monomial, f // divisor) for monomial, f in self.terms if not f % divisor))
        part = self - whole * divisor
        quotient = f"({part} // {divisor})" if len(part.terms) == 1 else f"(({part}) // {divisor})"
        return whole + Polynomial.of(quotient if part.symbols else (part.constant or 0) // divisor)

    def __ge__(self, other: Polynomial | int) -> bool:
        """Return whether this is known never to be less, because of the ranges of extents and coordinates."""
        least: float = 0
        for monomial, factor in (self - other).terms:
            ranges = [_RANGES.get(symbol[: symbol.find(".") + 1], (-1, 0)) for symbol in monomial]
            if any(low < 0 for low, _ in ranges):
                return False
            least += factor * math.prod(high if factor < 0 else low for low, high in ranges)
        return least >= 0

    def __str__(self) -> str:
        """Return the polynomial as it is written in Python: `4 * n + grid.x * block.x - 1`."""
        texts = [re.sub(r"^(-?)1 \* ", r"\1", " * ".join((str(f), *symbols))) for symbols, f in self.terms]
        return " + ".join(texts).replace("+ -", "- ") or "0"

    def split(self) -> tuple[Polynomial, dict[str, Polynomial]]:
        """Return what does not vary, and the factors of symbols that vary and of products of such symbols."""
        factors: dict[str, Polynomial] = {}
        for monomial, factor in self.terms:
            varying = " * ".join(symbol for symbol in monomial if symbol.startswith(_VARYING))
            others = tuple(symbol for symbol in monomial if not symbol.startswith(_VARYING))
            factors[varying] = factors.get(varying, ZERO) + Polynomial(((others, factor),))
        return factors.pop("", ZERO), factors

    @property
    def symbols(self) -> set[str]:
        """All symbols."""
        return {symbol for monomial, _ in self.terms for symbol in monomial}

    @property
    def varying(self) -> set[str]:
        """The symbols that may differ between threads or iterations."""
        return {symbol for symbol in self.symbols if symbol.startswith(_VARYING)}

    @property
    def constant(self) -> int | None:
        """The value, if there are no symbols."""
        return None if self.symbols else dict(self.terms).get((), 0)

    @property
    def magnitude(self) -> Polynomial:
        """The polynomial with the sign with which it is taken to be positive."""
        return self if max(self.terms, key=lambda term: (len(term[0]), term))[1] > 0 else -self


ZERO, ONE = Polynomial(()), Polynomial.of(1)


def with_minimum(terms: tuple[Polynomial, ...], term: Polynomial) -> tuple[Polynomial, ...]:
    """Return terms and another one, without those that are never smaller than one of the others."""
    if any(term >= other for other in terms):
        return terms
    return (*(other for other in terms if not other >= term), term)


def digits_of(term: Polynomial, reach: Polynomial) -> Iterator[tuple[str, Polynomial, Polynomial]]:
    """Yield the coordinates of a sum, what each is worth, and what the lesser ones reach, starting with `reach`.

    If none is worth more, the sum has all values between its ends. If none is worth less, no two of them overlap.
    """
    _, factors = term.split()
    for symbol in dict.fromkeys((*EXTENTS, *factors)):
        worth = factors[symbol].magnitude if symbol in factors else ZERO
        yield symbol, worth, reach
        reach += worth * (Polynomial.of(EXTENTS[symbol]) - 1) if symbol in EXTENTS else ZERO
