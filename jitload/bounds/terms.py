"""Polynomials of parameters, of the extents of the grid and the block, and of what varies between threads.

A symbol is a string, as messages write it: `n` for a parameter, `grid.x` and `block.x`. It may be a minimum, a maximum
or a quotient of polynomials, too. Other symbols vary between threads and iterations: coordinates such as `tid.x`,
pointers, the counters of loops, and unknown numbers.
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
POINTER, COUNTER, UNKNOWN, SUM = "&", "#", "?", "="  # begin other symbols that vary
_EXTENT = re.compile(r"(?:grid|block)\.[xyz]")  # at least 1
_NATURAL = re.compile(r"(?:grid|block|ctaid|tid)\.[xyz]|#\d+")  # at least 0


def _order(symbol: str) -> tuple[bool, bool, str]:
    return symbol.startswith("block"), "." in symbol, symbol


class Polynomial:
    """A sum of products of symbols. Instances are never changed."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {monomial: factor for monomial, factor in terms.items() if factor}

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
        part = Polynomial({monomial: factor for monomial, factor in self.terms.items() if factor % divisor})
        whole = Polynomial({monomial: factor // divisor for monomial, factor in (self - part).terms.items()})
        if part.constant is not None:
            return whole + part.constant // divisor
        return whole + Polynomial.of(Operation.of("FLOORDIV", (part, Polynomial.of(divisor))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        """Return the polynomial as it is written in Python: `min(n, grid.x * block.x)`."""
        texts = [re.sub(r"^(-?)1 \* ", r"\1", " * ".join((str(f), *symbols))) for symbols, f in self._sorted()]
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
                if isinstance(symbol, Operation):
                    for index, operand in enumerate(symbol.operands):
                        yield from (*operand.steps(read), *(Op(symbol.name),) * (index > 0))
                else:
                    yield read(symbol)
                yield from (Op("MUL"),) * (position > 0)
            yield from (Op("MUL", 1, factor),) * (factor != 1)
            yield from (Op("ADD"),) * (number > 0)

    def symbols(self) -> set[str]:
        """Return the symbols."""
        return {symbol for monomial in self.terms for symbol in monomial}

    def substitute(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """Return the polynomial with other ones in place of symbols."""
        result = Polynomial({})
        for monomial, factor in self.terms.items():
            product = Polynomial.of(factor)
            for symbol in monomial:
                product *= values.get(symbol, Polynomial.of(symbol))
            result += product
        return result

    def factors(self) -> dict[str, Polynomial] | None:
        """Return the factors of symbols that vary, and under "" the rest, or None if such symbols are multiplied."""
        factors: dict[str, Polynomial] = {}
        for monomial, factor in self.terms.items():
            symbol, *others = [*filter(is_varying, monomial), ""]
            if len(others) > 1:
                return None
            rest = Polynomial({tuple(other for other in monomial if other != symbol): factor})
            factors[symbol] = factors.get(symbol, Polynomial({})) + rest
        return factors

    @property
    def is_uniform(self) -> bool:
        """Whether it is the same for all threads and iterations."""
        return not any(map(is_varying, self.symbols()))

    @property
    def constant(self) -> int | None:
        """The value, if there are no symbols."""
        return self.terms.get((), 0) if not any(self.terms) else None


ZERO, ONE = Polynomial.of(0), Polynomial.of(1)


class Operation(str):  # noqa: SLOT000  a string has no room for slots
    """The symbol of a minimum, a maximum or a quotient that is rounded down: its text in Python.

    Attributes:
        name: The operation.
        operands: Its operands.
    """

    name: Name
    operands: tuple[Polynomial, ...]

    @classmethod
    def of(cls, name: Name, operands: Sequence[Polynomial]) -> Operation:
        """Return the symbol, which is the same for equal operands."""
        is_quotient = name == "FLOORDIV"
        texts = [f"({o})" if is_quotient and len(o.terms) > 1 else str(o) for o in operands]
        symbol = cls(f"({' // '.join(texts)})" if is_quotient else f"{name.lower()}({', '.join(texts)})")
        symbol.name, symbol.operands = name, (*operands,)
        return symbol


def is_varying(symbol: str) -> bool:
    """Return whether a symbol may differ between threads or iterations."""
    return symbol.startswith((POINTER, COUNTER, UNKNOWN, SUM, "tid.", "ctaid."))


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


def is_never_negative(polynomial: Polynomial) -> bool:
    """Return whether a polynomial is known not to be negative, because extents and coordinates are not."""
    least = polynomial.terms.get((), 0)
    for monomial, factor in polynomial.terms.items():
        match monomial:
            case (Operation(name="MIN" | "MAX") as operation,):
                others = polynomial - Polynomial.of(operation) * factor
                cases = (is_never_negative(others + operand * factor) for operand in operation.operands)
                return any(cases) if (factor < 0) == (operation.name == "MIN") else all(cases)
            case (_, *_):
                if factor < 0 or not all(map(_NATURAL.fullmatch, monomial)):
                    return False
                least += factor * all(map(_EXTENT.fullmatch, monomial))
    return least >= 0
