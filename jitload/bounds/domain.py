"""The threads and iterations that reach an instruction: ranges of coordinates, limited by comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jitload.bounds.polynomial import Polynomial
from jitload.bounds.terms import Term, add, divide, extreme, multiply, negate

_ONE = Polynomial.of(1)
_ZERO = Polynomial()


class Range(NamedTuple):
    """The smallest and the largest value of a polynomial in a domain.

    Attributes:
        low: The smallest value.
        high: The largest value.
        bound: A simpler term that is not less than `high`.
        is_exact: Whether a thread reaches each of both, if the conditions hold. Otherwise, no thread exceeds them.
        signs: What must not be negative for `low` and `high` to hold.
    """

    low: Term
    high: Term
    bound: Term
    is_exact: bool
    signs: tuple[Term, ...]


class _Form:
    """A sum of coordinates, with the terms that limit it from below and from above."""

    def __init__(self, form: Polynomial) -> None:
        self.form = form
        self.coordinates = sorted(form.coordinates, key=lambda c: _weight(form.coefficient(c), c))
        self.lows: list[Term] = []
        self.highs: list[Term] = []


class Domain:
    """What comparisons `polynomial >= 0` leave of the threads of a launch and of the iterations of their loops.

    Attributes:
        active: What must not be negative for any thread to be in the domain.
        exact: What must not be negative for each value of the forms to be reached.
        is_exact: Whether all comparisons could be used.
    """

    def __init__(self, constraints: Iterable[Polynomial]) -> None:
        self.active: list[Term] = []
        self.exact: list[Term] = []
        self.is_exact = True
        self._fixed: list[tuple[str, Polynomial]] = []
        self._ranges: dict[Polynomial, Range | None] = {}
        remaining = self._without_implied(self._fix([*dict.fromkeys(constraints)]))
        forms: dict[Polynomial, _Form] = {}
        for constraint in remaining:
            split = constraint.split()
            if split is None:
                self.is_exact = False
            elif not split[0].terms:
                self.active.append(constraint)
            else:
                self._limit(forms, *split)
        self._forms = [form for form in forms.values() if self._is_separate(form, forms.values())]
        for form in self._forms:
            self._check_is_reached(form)

    def _fix(self, constraints: list[Polynomial]) -> list[Polynomial]:
        """Return constraints with the values of coordinates that they set to one value."""
        for constraint in [*constraints]:
            if -constraint not in constraints or (split := constraint.split()) is None:
                continue
            symbols, rest = split[0].symbols, split[1]
            factor = split[0].coefficient(next(iter(symbols))).constant if len(symbols) == 1 else None
            if factor in (1, -1):
                (symbol,) = symbols
                value = -rest if factor == 1 else rest
                self._fixed.append((symbol, value))
                self.active.append(value)
                if (extent := extent_of(symbol)) is not None:
                    self.active.append(extent - _ONE - value)
                others = [
                    other.substitute(symbol, value) for other in constraints if other not in (constraint, -constraint)
                ]
                return self._fix(others)
        return constraints

    def _without_implied(self, constraints: list[Polynomial]) -> list[Polynomial]:
        """Return constraints without those of the first iteration of a loop that also has a constraint for all."""
        kept = []
        for constraint in constraints:
            steps = [constraint - other for other in constraints if other != constraint]
            implied = next((step for step in steps if _grows_in_one_loop(step)), None)
            if implied is None:
                kept.append(constraint)
            else:
                self.exact.append(implied.coefficient(*implied.coordinates))
        return kept

    def _limit(self, forms: dict[Polynomial, _Form], linear: Polynomial, rest: Polynomial) -> None:
        leading = min(linear.terms, key=lambda monomial: (len(monomial), monomial))
        unit = math.gcd(*linear.terms.values()) * (1 if linear.terms[leading] > 0 else -1)
        form = Polynomial({monomial: factor // unit for monomial, factor in linear.terms.items()})
        known = forms.setdefault(form, _Form(form))
        for coordinate in known.coordinates:
            if coordinate.startswith("#"):  # in later iterations, the comparison must not hold again
                self.exact.append(-linear.coefficient(coordinate))
        if unit > 0:
            known.lows.append(negate(divide(rest, Polynomial.of(unit))))
        else:
            known.highs.append(divide(rest, Polynomial.of(-unit)))

    def _is_separate(self, form: _Form, forms: Iterable[_Form]) -> bool:
        """Return whether no other form limits the same coordinates. If several do, only the first one is used."""
        sharing = [other for other in forms if {*other.coordinates} & {*form.coordinates}]
        if len(sharing) > 1:
            self.is_exact = False
        return sharing[0] is form

    def _check_is_reached(self, form: _Form) -> None:
        """Note under which conditions each value from the lowest to the highest one of a form is reached."""
        reach = _ONE
        for number, coordinate in enumerate(form.coordinates):
            factor = _magnitude(form.form.coefficient(coordinate))
            extent = extent_of(coordinate)
            if len(form.coordinates) > 1:
                self.exact += [reach - factor] if number else [factor - _ONE, _ONE - factor]
            if extent is None:
                self.is_exact &= number == len(form.coordinates) - 1
            else:
                reach += factor * (extent - _ONE)
        low, high, _, signs = self._range_of_form(form)
        self.exact += signs
        if low is None or high is None:
            self.is_exact = False
        else:
            self.active.append(add(high, negate(low)))

    def _range_of_form(self, form: _Form) -> tuple[Term | None, Term | None, Term | None, list[Term]]:
        """Return the lowest and the highest value of a form, a simple bound of it, and what must not be negative.

        For a form of one coordinate, the values are those of the coordinate.
        """
        lows, highs = [*form.lows], [*form.highs]
        is_single = len(form.coordinates) == 1
        factor = _magnitude(form.form.coefficient(form.coordinates[0]))
        signs: list[Term] = []
        if is_single and factor.constant != 1:
            lows = [negate(divide(negate(low), factor)) for low in lows]
            highs = [divide(high, factor) for high in highs]
            signs.append(factor - _ONE)
        simple = highs[:1]
        low: Polynomial | None = _ZERO
        high: Polynomial | None = _ZERO
        for coordinate in form.coordinates:
            coefficient, extent = form.form.coefficient(coordinate), extent_of(coordinate)
            is_negative = _is_negative(coefficient)
            part = coefficient if not is_single else Polynomial.of(-1 if is_negative else 1)
            if not is_single and not _is_never_negative(_magnitude(coefficient)):
                signs.append(_magnitude(coefficient))
            last = None if extent is None else part * (extent - _ONE)
            if is_negative:
                low = None if low is None or last is None else low + last
            else:
                high = None if high is None or last is None else high + last
        lows += [] if low is None else [low]
        highs += [] if high is None else [high]
        lowest = extreme("MAX", lows) if lows else None
        highest = extreme("MIN", highs) if highs else None
        return lowest, highest, simple[0] if simple else highest, signs

    def range_of(self, polynomial: Polynomial) -> Range | None:
        """Return the range of a polynomial, or None if it is not known."""
        if polynomial not in self._ranges:
            self._ranges[polynomial] = self._range_of(polynomial)
        return self._ranges[polynomial]

    def _range_of(self, polynomial: Polynomial) -> Range | None:
        for symbol, value in self._fixed:
            polynomial = polynomial.substitute(symbol, value)
        split = polynomial.split()
        if split is None:
            return None
        linear, rest = split
        parts: list[Range] = []
        is_exact = self.is_exact
        for form in self._forms:
            part = _part(linear, form.coordinates)
            if part.terms and (quotient := _quotient(part, form)) is not None:
                range_ = _scaled(quotient, *self._range_of_form(form))
                if range_ is None:
                    return None
                parts.append(range_)
                linear -= part
            elif part.terms:
                is_exact = False
        for coordinate in sorted(linear.coordinates):
            alone = _Form(Polynomial.of(coordinate))
            range_ = _scaled(linear.coefficient(coordinate), *self._range_of_form(alone))
            if range_ is None:
                return None
            parts.append(range_)
        return Range(
            add(rest, *(part.low for part in parts)),
            add(rest, *(part.high for part in parts)),
            add(rest, *(part.bound for part in parts)),
            is_exact,
            tuple(sign for part in parts for sign in part.signs),
        )


def extent_of(coordinate: str) -> Polynomial | None:
    """Return the number of values of a coordinate, or None for the iterations of a loop."""
    return None if coordinate.startswith("#") else Polynomial.of(f"n{coordinate}")


def _part(linear: Polynomial, coordinates: Sequence[str]) -> Polynomial:
    return Polynomial({m: factor for m, factor in linear.terms.items() if any(name in coordinates for name in m)})


def _quotient(part: Polynomial, form: _Form) -> Polynomial | None:
    """Return the factor with which a form gives a part, or None. A form of one coordinate counts as the coordinate."""
    first = form.coordinates[0]
    if len(form.coordinates) == 1:
        sign = -1 if _is_negative(form.form.coefficient(first)) else 1
        return part.coefficient(first) * Polynomial.of(sign)
    if form.form.coefficient(first).constant not in (1, -1):
        return None
    quotient = part.coefficient(first) * form.form.coefficient(first)
    return quotient if quotient * form.form == part else None


def _scaled(
    factor: Polynomial, low: Term | None, high: Term | None, bound: Term | None, signs: Sequence[Term]
) -> Range | None:
    """Return the range of a multiple of something with a range."""
    if low is None or high is None or bound is None:
        return None
    more = () if _is_never_negative(_magnitude(factor)) else (_magnitude(factor),)
    ends = multiply(factor, low), multiply(factor, high)
    if _is_negative(factor):
        return Range(ends[1], ends[0], ends[0], True, (*signs, *more))
    return Range(*ends, multiply(factor, bound), True, (*signs, *more))


def _is_negative(factor: Polynomial) -> bool:
    """Return whether a factor is taken to be negative: where its sign matters, it is checked at the launch."""
    return bool(factor.terms) and max(factor.terms.items(), key=lambda term: (len(term[0]), term[0]))[1] < 0


def _magnitude(factor: Polynomial) -> Polynomial:
    return -factor if _is_negative(factor) else factor


def _is_never_negative(factor: Polynomial) -> bool:
    return all(number >= 0 and not any(name.startswith("$") for name in m) for m, number in factor.terms.items())


def _grows_in_one_loop(step: Polynomial) -> bool:
    """Return whether a difference is a multiple of a loop's iterations, by a factor that is taken to be positive."""
    split, coordinates = step.split(), step.coordinates
    if split is None or split[1].terms or len(coordinates) != 1:
        return False
    (iteration,) = coordinates
    return iteration.startswith("#") and not _is_negative(step.coefficient(iteration))


def _weight(coefficient: Polynomial, coordinate: str) -> tuple[bool, int, int, str]:
    """Order the coordinates of a form as digits of a number: the last one has the largest factor."""
    degree = max(map(len, coefficient.terms))
    return coordinate.startswith("#"), degree, abs(coefficient.terms.get((), 0)), coordinate
