"""Terms: numbers that are computed at a launch, from its parameters, its grid and its block.

A term is a `Polynomial`, or an operation on terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, Union

from jitload.bounds.polynomial import Polynomial
from jitload.expressions.compiler import Op

_AXES = "xyz"
_SLOTS = {"nctaid": 0, "ntid": 3}  # where the plan of a launch has its grid and its block


class Operation(NamedTuple):
    """The sum, product, minimum, maximum or quotient (rounded down) of terms."""

    name: Literal["ADD", "MUL", "MIN", "MAX", "FLOORDIV"]
    terms: tuple[Term, ...]


Term = Union[Polynomial, Operation]  # noqa: UP007  a name in it is defined later
_SIGNS = {"ADD": " + ", "MUL": " * ", "FLOORDIV": " // "}


def add(*terms: Term) -> Term:
    """Return a sum, with its polynomials in one."""
    parts = [part for t in terms for part in (t.terms if isinstance(t, Operation) and t.name == "ADD" else (t,))]
    total = Polynomial()
    for part in parts:
        total += part if isinstance(part, Polynomial) else Polynomial()
    others = [part for part in parts if isinstance(part, Operation)]
    if not others:
        return total
    rest = [] if total.constant == 0 else [total]
    return Operation("ADD", (*others, *rest)) if len(others) + len(rest) > 1 else others[0]


def multiply(factor: Polynomial, term: Term) -> Term:
    """Return a product."""
    if isinstance(term, Polynomial) or not factor.terms:
        return factor * term if isinstance(term, Polynomial) else factor
    return term if factor.constant == 1 else Operation("MUL", (term, factor))


def extreme(name: Literal["MIN", "MAX"], terms: Sequence[Term]) -> Term:
    """Return the smallest or the largest of terms."""
    distinct = [*dict.fromkeys(terms)]
    constants = [t.constant for t in distinct if isinstance(t, Polynomial) and t.constant is not None]
    if len(constants) > 1:
        best = min(constants) if name == "MIN" else max(constants)
        distinct = [t for t in distinct if not (isinstance(t, Polynomial) and t.constant is not None)]
        distinct.append(Polynomial.of(best))
    return distinct[0] if len(distinct) == 1 else Operation(name, tuple(distinct))


def divide(term: Term, divisor: Polynomial) -> Term:
    """Return a quotient, rounded down."""
    if isinstance(term, Polynomial) and term.constant is not None and divisor.constant:
        return Polynomial.of(term.constant // divisor.constant)
    return term if divisor.constant == 1 else Operation("FLOORDIV", (term, divisor))


def negate(term: Term) -> Term:
    """Return `-term`."""
    return multiply(Polynomial.of(-1), term)


def steps(term: Term, read: Callable[[str], tuple[Op, ...]]) -> Iterator[Op]:
    """Yield the steps of the evaluator that leave a term on its stack. `read` returns the steps for a symbol."""
    if isinstance(term, Polynomial):
        yield from _polynomial_steps(term, read)
        return
    for number, part in enumerate(term.terms):
        if number and isinstance(part, Polynomial) and part.constant is not None:
            yield Op(term.name, 1, part.constant)
            continue
        yield from steps(part, read)
        if number:
            yield Op(term.name)


def _polynomial_steps(polynomial: Polynomial, read: Callable[[str], tuple[Op, ...]]) -> Iterator[Op]:
    monomials = sorted(polynomial.terms.items(), key=lambda term: not term[0])
    if not monomials:
        yield Op("CONSTANT")
    for number, (symbols, factor) in enumerate(monomials):
        if not symbols:
            yield Op("ADD", 1, factor) if number else Op("CONSTANT", value=factor)
            continue
        for place, symbol in enumerate(symbols):
            yield from read(symbol)
            if place:
                yield Op("MUL")
        if factor != 1:
            yield Op("MUL", 1, factor)
        if number:
            yield Op("ADD")


def text_of(term: Term) -> str:
    """Return a term as it is written in Python: `min(n, grid.x * block.x)`."""
    if isinstance(term, Polynomial):
        return _polynomial_text(term)
    parts = [text_of(part) for part in term.terms]
    if term.name in ("MIN", "MAX"):
        return f"{term.name.lower()}({', '.join(parts)})"
    if term.name != "ADD":
        parts = [f"({part})" if " " in part and not part.endswith(")") else part for part in parts]
    return _SIGNS[term.name].join(parts).replace("+ -", "- ")


def _polynomial_text(polynomial: Polynomial) -> str:
    texts = []
    for symbols, factor in sorted(polynomial.terms.items(), key=lambda term: not term[0]):
        names = [*map(name_of, symbols)]
        is_unit = bool(names) and factor in (1, -1)
        texts.append(
            ("-" if factor == -1 else "") * is_unit + " * ".join([*([] if is_unit else [str(factor)]), *names])
        )
    return " + ".join(texts).replace("+ -", "- ") or "0"


def name_of(symbol: str) -> str:
    """Return the name of a symbol in messages: `n`, `grid.x` or `block.y`."""
    base, slashes, divisor = symbol.partition("//")
    kind, _, axis = base.partition(".")
    name = {"nctaid": f"grid.{axis}", "ntid": f"block.{axis}"}.get(kind, base.lstrip("$"))
    return f"({name} // {divisor})" if slashes else name


def reading_steps(symbol: str, parameters: Sequence[str]) -> tuple[Op, ...]:
    """Return the steps that read a symbol from a launch's parameters, grid or block."""
    base, slashes, divisor = symbol.partition("//")
    kind, _, axis = base.partition(".")
    if kind in _SLOTS:
        first = Op("PLANNED", _SLOTS[kind] + _AXES.index(axis))
    else:
        first = Op("COMPUTED", parameters.index(base.lstrip("$")))
    return (first, Op("FLOORDIV", 1, int(divisor))) if slashes else (first,)


def over(term: Term, unit: int) -> Term | None:
    """Return a term divided by a constant, or None if it is not a multiple for all values."""
    if isinstance(term, Polynomial):
        if any(factor % unit for factor in term.terms.values()):
            return None
        return Polynomial({monomial: factor // unit for monomial, factor in term.terms.items()})
    places = range(len(term.terms)) if term.name != "MUL" else (1,)
    parts = [over(part, unit) if place in places else part for place, part in enumerate(term.terms)]
    if term.name == "FLOORDIV" or any(part is None for part in parts):
        return None
    return term._replace(terms=tuple(part for part in parts if part is not None))


def simplified(term: Term) -> Term:
    """Return an equal term that is easier to read: `min(n, m)` for `min(n - 1, m - 1) + 1`."""
    if isinstance(term, Polynomial):
        return term
    parts = [simplified(part) for part in term.terms]
    if term.name == "MUL" and isinstance(parts[1], Polynomial) and parts[1].constant == 1:
        return parts[0]
    if term.name == "ADD":
        total = add(*parts)
        if isinstance(total, Operation) and total.name == "ADD" and len(total.terms) == 2:
            inner, rest = total.terms
            if isinstance(inner, Operation) and inner.name in ("MIN", "MAX"):
                return inner._replace(terms=tuple(add(part, rest) for part in inner.terms))
        return total
    return term._replace(terms=tuple(parts))
