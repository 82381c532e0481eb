"""Polynomials with integer coefficients in named symbols: the exact values of a kernel's integers.

Symbols are the special registers of PTX (`tid.x`, `ntid.x`, …), parameters (`$n`), the addresses in pointer parameters
(`@x`) and of arrays in shared memory (`@shared:s`), the iterations of loops (`#3`, counted from 0) and values that are
not known (`?7`). A quotient of what is known at the launch is a symbol, too: `$n//4`. So is a quotient of a number that
differs between threads, a `Quotient`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Monomial = tuple[str, ...]
MOST_TERMS = 40

_COORDINATE = re.compile(r"(?:cta|t)id\.[xyz]|#\d+")
_LAUNCH = re.compile(r"(?:n(?:cta|t)id\.[xyz]|\$\w+)(?://\d+)?")


class Quotient(str):  # noqa: SLOT000  a string has no room for slots
    """The symbol of a quotient, rounded down, of a number that is not negative by a positive constant.

    Attributes:
        dividend: The number. Its symbols are the same in all iterations of loops.
        divisor: The constant.
    """

    dividend: Polynomial
    divisor: int

    @classmethod
    def of(cls, dividend: Polynomial, divisor: int) -> Quotient:
        """Return the symbol, which is the same for equal numbers."""
        terms = sorted((*monomial, str(factor)) for monomial, factor in dividend.terms.items())
        quotient = cls(f"%{terms}//{divisor}")
        quotient.dividend, quotient.divisor = dividend, divisor
        return quotient

    @property
    def coordinates(self) -> set[str]:
        """The symbols that differ between threads, among which are other quotients and those of their dividends."""
        own = self.dividend.coordinates
        return own.union(*(symbol.coordinates for symbol in own if isinstance(symbol, Quotient)))


def is_coordinate(symbol: str) -> bool:
    """Return whether a symbol differs between the threads of a launch, or between the iterations of a loop."""
    return isinstance(symbol, Quotient) or _COORDINATE.fullmatch(symbol) is not None


def is_known_at_launch(symbol: str) -> bool:
    """Return whether a symbol is a parameter or an extent of the grid or the block."""
    return _LAUNCH.fullmatch(symbol) is not None


class Polynomial:
    """A sum of products of symbols. Instances are never changed."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, int] | None = None) -> None:
        self.terms = {monomial: factor for monomial, factor in (terms or {}).items() if factor}

    @classmethod
    def of(cls, value: int | str) -> Polynomial:
        """Return a constant or a symbol."""
        return cls({(): value} if isinstance(value, int) else {(value,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial(terms)

    def __neg__(self) -> Polynomial:
        return Polynomial({monomial: -factor for monomial, factor in self.terms.items()})

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Polynomial(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @property
    def constant(self) -> int | None:
        """The value, if there are no symbols."""
        return self.terms.get((), 0) if not any(self.terms) else None

    @property
    def symbols(self) -> set[str]:
        """The symbols."""
        return {symbol for monomial in self.terms for symbol in monomial}

    @property
    def coordinates(self) -> set[str]:
        """The symbols that differ between threads or iterations."""
        return {*filter(is_coordinate, self.symbols)}

    @property
    def quotients(self) -> list[Quotient]:
        """The quotients among the symbols. Those whose dividends have others come before these."""
        found = (symbol for symbol in self.symbols if isinstance(symbol, Quotient))
        return sorted(found, key=lambda quotient: (len(quotient), quotient), reverse=True)

    def coefficient(self, symbol: str) -> Polynomial:
        """Return the factor of a symbol in which the polynomial is linear."""
        terms = {}
        for monomial, factor in self.terms.items():
            if symbol in monomial:
                rest = list(monomial)
                rest.remove(symbol)
                terms[tuple(rest)] = factor
        return Polynomial(terms)

    def substitute(self, symbol: str, value: Polynomial) -> Polynomial:
        """Return the polynomial with a value in place of a symbol."""
        result = Polynomial({monomial: factor for monomial, factor in self.terms.items() if symbol not in monomial})
        for monomial, factor in self.terms.items():
            if symbol in monomial:
                product = Polynomial({tuple(name for name in monomial if name != symbol): factor})
                for _ in range(monomial.count(symbol)):
                    product *= value
                result += product
        return result

    def split(self) -> tuple[Polynomial, Polynomial] | None:
        """Return the terms with coordinates and the other ones, or None if this is not linear in coordinates.

        None is also returned if any other symbol is not known at the launch.
        """
        linear: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            count = sum(map(is_coordinate, monomial))
            if count > 1 or not all(is_coordinate(name) or is_known_at_launch(name) for name in monomial):
                return None
            (linear if count else rest)[monomial] = factor
        return Polynomial(linear), Polynomial(rest)
