"""Integers as polynomials in named symbols, which may be minima, maxima and quotients of polynomials.

A symbol is a string. Those of threads are `tid.x`, `ctaid.x` and so on. The iteration of a loop, counted from 0, is
`#3`. Symbols that are known at the launch have the names that messages use: `n` for a parameter, `grid.x` and
`block.x`. `@x` is the address in a pointer parameter, `@shared:s` that of an array in shared memory, and `?7` is not
known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Union

from jitload.expressions.compiler import Op

Monomial = tuple[str, ...]
Number = Union["Polynomial", int]
Name = Literal["MIN", "MAX", "FLOORDIV"]

EXTENTS = {"ctaid": "grid", "tid": "block"}  # the symbols for how many values coordinates have
_COORDINATE = re.compile(r"(?:cta|t)id\.[xyz]|#\d+")
_EXTENT = re.compile(r"(?:grid|block)\.[xyz]")


def is_coordinate(symbol: str) -> bool:
    """Return whether a symbol differs between the threads of a launch, or between the iterations of a loop."""
    return _COORDINATE.fullmatch(symbol) is not None


def is_known_at_launch(symbol: str) -> bool:
    """Return whether a symbol follows from parameters and the extents of the grid and the block, as operations do."""
    return isinstance(symbol, Operation) or symbol.isidentifier() or _EXTENT.fullmatch(symbol) is not None


def _order(symbol: str) -> tuple[bool, bool, str]:
    return symbol.startswith("block"), "." in symbol, symbol


class Polynomial:
    """A sum of products of symbols. Instances are never changed."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, int] | None = None) -> None:
        self.terms = {monomial: factor for monomial, factor in (terms or {}).items() if factor}

    @classmethod
    def of(cls, value: int | str | Polynomial) -> Polynomial:
        """Return a constant or a symbol as a polynomial."""
        if isinstance(value, Polynomial):
            return value
        return cls({(): value} if isinstance(value, int) else {(value,): 1})

    def __add__(self, other: Number) -> Polynomial:
        terms = dict(self.terms)
        for monomial, factor in Polynomial.of(other).terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Polynomial(terms)

    def __neg__(self) -> Polynomial:
        return self * -1

    def __sub__(self, other: Number) -> Polynomial:
        return self + -other

    def __mul__(self, other: Number) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in Polynomial.of(other).terms.items():
                monomial = tuple(sorted(left + right, key=_order))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Polynomial(terms)

    def __floordiv__(self, divisor: int) -> Polynomial:
        if all(factor % divisor == 0 for factor in self.terms.values()):
            return Polynomial({monomial: factor // divisor for monomial, factor in self.terms.items()})
        part = Polynomial({monomial: factor for monomial, factor in self.terms.items() if factor % divisor})
        if part.constant is None:
            quotient = Polynomial.of(Operation.of("FLOORDIV", (part, Polynomial.of(divisor))))
        else:
            quotient = Polynomial.of(part.constant // divisor)
        return quotient + (self - part) // divisor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        """Return the polynomial as it is written in Python: `min(n, grid.x * block.x)`."""
        terms = self._sorted()
        match terms:
            case [((Operation(name="MIN" | "MAX") as operation,), unit), ((), constant)] if constant % unit == 0:
                operands = [operand + constant // unit for operand in operation.operands]
                terms = [((Operation.of(operation.name, operands),), unit)]
        texts = [re.sub(r"^(-?)1 \* ", r"\1", " * ".join((str(factor), *symbols))) for symbols, factor in terms]
        return " + ".join(texts).replace("+ -", "- ") or "0"

    def _sorted(self) -> list[tuple[Monomial, int]]:
        """Return the terms, with the constant last."""
        return sorted(self.terms.items(), key=lambda term: (not term[0], term[1] < 0, [*map(_order, term[0])]))

    def steps(self, read: Callable[[str], Op]) -> Iterator[Op]:
        """Yield the steps of the evaluator that leave the value on its stack. `read` returns the one for a symbol."""
        for number, (symbols, factor) in enumerate(self._sorted() or [((), 0)]):
            if not symbols:
                yield Op("ADD", 1, factor) if number else Op("CONSTANT", value=factor)
                continue
            for position, symbol in enumerate(symbols):
                yield from symbol.steps(read) if isinstance(symbol, Operation) else (read(symbol),)
                yield from (Op("MUL"),) * (position > 0)
            yield from (Op("MUL", 1, factor),) * (factor != 1)
            yield from (Op("ADD"),) * (number > 0)

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

    def coefficient(self, symbol: str) -> Polynomial:
        """Return the factor of a symbol in which the polynomial is linear."""
        terms = {}
        for monomial, factor in self.terms.items():
            if symbol in monomial:
                position = monomial.index(symbol)
                terms[monomial[:position] + monomial[position + 1 :]] = factor
        return Polynomial(terms)

    def substitute(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """Return the polynomial with values in place of symbols, but not in operations."""
        if not values.keys() & self.symbols:
            return self
        total = Polynomial()
        for monomial, factor in self.terms.items():
            product = Polynomial.of(factor)
            for symbol in monomial:
                product *= values.get(symbol) or Polynomial.of(symbol)
            total += product
        return total

    def split(self) -> tuple[Polynomial, Polynomial] | None:
        """Return the terms with coordinates and the other ones, or None if this is not linear in coordinates.

        None is also returned if any other symbol is not known at the launch.
        """
        parts: tuple[dict[Monomial, int], dict[Monomial, int]] = {}, {}
        for monomial, factor in self.terms.items():
            count = sum(map(is_coordinate, monomial))
            if count > 1 or not all(is_coordinate(symbol) or is_known_at_launch(symbol) for symbol in monomial):
                return None
            parts[not count][monomial] = factor
        return Polynomial(parts[0]), Polynomial(parts[1])


class Operation(str):  # noqa: SLOT000  a string has no room for slots
    """The symbol of a minimum, a maximum or a quotient that is rounded down, known at the launch: its text in Python.

    Attributes:
        name: The operation.
        operands: Its operands.
    """

    name: Name
    operands: tuple[Polynomial, ...]

    @classmethod
    def of(cls, name: Name, operands: Sequence[Polynomial]) -> Operation:
        """Return the symbol, which is the same for equal operands."""
        text = f"{name.lower()}({', '.join(map(str, operands))})"
        if name == "FLOORDIV":
            dividend, divisor = operands
            text = f"({dividend} // {divisor})" if len(dividend.terms) == 1 else f"(({dividend}) // {divisor})"
        symbol = cls(text)
        symbol.name, symbol.operands = name, (*operands,)
        return symbol

    def steps(self, read: Callable[[str], Op]) -> Iterator[Op]:
        """Yield the steps of the evaluator for the operation."""
        first, *others = self.operands
        yield from first.steps(read)
        for operand in others:
            if operand.constant is not None:
                yield Op(self.name, 1, operand.constant)
            else:
                yield from operand.steps(read)
                yield Op(self.name)


def extreme(name: Literal["MIN", "MAX"], terms: Iterable[Polynomial]) -> Polynomial:
    """Return the smallest or the largest of terms. Common factors and a constant are outside of the operation."""
    sign = 1 if name == "MAX" else -1
    kept: list[Polynomial] = []
    for term in dict.fromkeys(terms):
        if not any(is_never_negative((other - term) * sign) for other in kept):
            kept = [*(other for other in kept if not is_never_negative((term - other) * sign)), term]
    if len(kept) == 1:
        return kept[0]
    constant = max(term.terms.get((), 0) for term in kept)
    operands = [term - constant for term in kept]
    unit = math.gcd(*(factor for operand in operands for factor in operand.terms.values()))
    return Polynomial.of(Operation.of(name, [operand // unit for operand in operands])) * unit + constant


def without_minima(polynomial: Polynomial) -> Polynomial:
    """Return a polynomial that takes fewer steps, and is not less if the factors of minima are not negative."""
    total = Polynomial()
    for monomial, factor in polynomial.terms.items():
        minima: dict[str, Polynomial] = {}
        for symbol in monomial:
            if factor > 0 and isinstance(symbol, Operation) and symbol.name == "MIN":
                minima[symbol] = symbol.operands[0]
        total += Polynomial({monomial: factor}).substitute(minima)
    return total


def is_never_negative(polynomial: Polynomial) -> bool:
    """Return whether a polynomial is known not to be negative, because extents of the grid and the block are not."""
    least = polynomial.terms.get((), 0)
    for monomial, factor in polynomial.terms.items():
        match monomial:
            case (Operation(name="MIN" | "MAX") as operation,):
                others = polynomial - Polynomial.of(operation) * factor
                cases = (is_never_negative(others + operand * factor) for operand in operation.operands)
                return any(cases) if (factor < 0) == (operation.name == "MIN") else all(cases)
            case (_, *_):
                if factor < 0 or not all(map(_EXTENT.fullmatch, monomial)):
                    return False
                least += factor  # each extent is at least 1
    return least >= 0
