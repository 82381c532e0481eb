"""The threads and iterations that reach an instruction: ranges of coordinates, limited by comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from jitload.bounds.terms import EXTENTS, Polynomial, extreme, is_known_at_launch

_ONE, _ZERO = Polynomial.of(1), Polynomial()
_UNLIMITED = "?"  # the symbol for the number of a loop's iterations


class Range(NamedTuple):
    """The smallest and the largest value of a polynomial in a domain.

    Attributes:
        low: The smallest value.
        high: The largest value.
        signs: What must not be negative for `low` and `high` to hold.
        is_exact: Whether a thread reaches each of both, if the conditions hold. Otherwise, no thread exceeds them.
    """

    low: Polynomial
    high: Polynomial
    signs: tuple[Polynomial, ...] = ()
    is_exact: bool = True

    def plus(self, other: Range) -> Range:
        """Return the range of a sum of numbers that are independent of each other."""
        return Range(self.low + other.low, self.high + other.high, self.signs + other.signs)

    def times(self, factor: Polynomial) -> Range:
        """Return the range of a multiple."""
        ends = (self.high, self.low) if _is_negative(factor) else (self.low, self.high)
        return self._replace(low=ends[0] * factor, high=ends[1] * factor, signs=(*self.signs, _magnitude(factor)))

    @property
    def is_known(self) -> bool:
        """Whether both ends are known at the launch."""
        return all(map(is_known_at_launch, self.low.symbols | self.high.symbols))


class _Form:
    """A sum of coordinates, with the terms that limit it from below and from above."""

    def __init__(self, sum_: Polynomial) -> None:
        self.sum = sum_
        self.coordinates = sorted(sum_.coordinates, key=self._weight)
        self.lows: list[Polynomial] = []
        self.highs: list[Polynomial] = []

    def _weight(self, coordinate: str) -> tuple[bool, int, int, str]:
        """Order the coordinates as digits of a number: the last one has the largest factor."""
        factor = self.sum.coefficient(coordinate)
        degree = max(map(len, factor.terms))
        return coordinate.startswith("#"), degree, abs(factor.terms.get((), 0)), coordinate

    @property
    def range(self) -> Range:
        """The range of the sum."""
        total = Range(_ZERO, _ZERO)
        for coordinate in self.coordinates:
            of_coordinate = Range(_ZERO, extent_of(coordinate) - 1)
            total = total.plus(of_coordinate.times(self.sum.coefficient(coordinate)))
        lows = [*self.lows, *([total.low] if Range(total.low, _ZERO).is_known or not self.lows else [])]
        highs = [*self.highs, *([total.high] if Range(_ZERO, total.high).is_known or not self.highs else [])]
        return total._replace(low=extreme("MAX", lows), high=extreme("MIN", highs))


class Domain:
    """What comparisons `polynomial >= 0` leave of the threads of a launch and of the iterations of their loops.

    Attributes:
        active: What must not be negative for any thread to be in the domain.
        exact: What must not be negative for each value of the forms to be reached.
        is_exact: Whether all comparisons could be used.
    """

    def __init__(self, constraints: Iterable[Polynomial]) -> None:
        self.active: list[Polynomial] = []
        self.exact: list[Polynomial] = []
        self.is_exact = True
        self._ranges: dict[Polynomial, Range | None] = {}
        forms: dict[Polynomial, _Form] = {}
        for constraint in dict.fromkeys(constraints):
            split = constraint.split()
            if split is None:
                self.is_exact = False
            elif not split[0].terms:
                self.active.append(constraint)
            else:
                self._limit(forms, *split)
        self._forms: list[_Form] = []
        for form in forms.values():
            if any({*form.coordinates} & {*other.coordinates} for other in self._forms):
                self.is_exact = False  # of several forms that limit a coordinate, only the first one is used
            else:
                self._forms.append(form)
                self._check_is_reached(form)

    def _limit(self, forms: dict[Polynomial, _Form], linear: Polynomial, rest: Polynomial) -> None:
        """Add the constraint `linear + rest >= 0`."""
        leading = min(linear.terms, key=lambda monomial: (len(monomial), monomial))
        unit = math.gcd(*linear.terms.values()) * (1 if linear.terms[leading] > 0 else -1)
        form = forms.setdefault(linear // unit, _Form(linear // unit))
        if len(form.coordinates) == 1 and form.sum != Polynomial.of(*form.coordinates):
            del forms[form.sum]
            self.is_exact = False  # a multiple of a coordinate by an unknown factor
            return
        for coordinate in form.coordinates:
            if coordinate.startswith("#"):  # in later iterations, the comparison must not hold again
                self.exact.append(-linear.coefficient(coordinate))
        if unit > 0:
            form.lows.append(-(rest // unit))
        else:
            form.highs.append(rest // -unit)

    # ---- which values are reached ----

    def _check_is_reached(self, form: _Form) -> None:
        """Note under which conditions each value from the lowest to the highest one of a form is reached."""
        reach = _ONE
        for number, coordinate in enumerate(form.coordinates):
            factor, extent = _magnitude(form.sum.coefficient(coordinate)), extent_of(coordinate)
            if len(form.coordinates) > 1:
                self.exact += [reach - factor] if number else [factor - 1, -factor + 1]
            if extent == Polynomial.of(_UNLIMITED):
                self.is_exact &= number == len(form.coordinates) - 1
            else:
                reach += factor * (extent - 1)
        low, high, signs, _ = form.range
        self.exact += signs
        if form.range.is_known:
            self.active.append(high - low)
        else:
            self.is_exact = False

    # ---- ranges ----

    def range_of(self, polynomial: Polynomial) -> Range | None:
        """Return the range of a polynomial, or None if it is not known."""
        if polynomial not in self._ranges:
            range_ = self._range_of(polynomial)
            self._ranges[polynomial] = range_ if range_ and range_.is_known else None
        return self._ranges[polynomial]

    def _range_of(self, polynomial: Polynomial) -> Range | None:
        split = polynomial.split()
        if split is None:
            return None
        linear, rest = split
        is_exact = self.is_exact
        total = Range(rest, rest)
        for form in self._forms:
            part = Polynomial({m: f for m, f in linear.terms.items() if {*m} & {*form.coordinates}})
            factor = _ratio(part, form)
            if factor is not None:
                total = total.plus(form.range.times(factor))
                linear -= part
            elif part.terms:
                is_exact = False
        for coordinate in sorted(linear.coordinates):
            range_ = _Form(Polynomial.of(coordinate)).range.times(linear.coefficient(coordinate))
            total = total.plus(range_)
        return total._replace(is_exact=is_exact)


def extent_of(coordinate: str) -> Polynomial:
    """Return the number of values of a coordinate, which is not limited for the iterations of a loop."""
    if coordinate.startswith("#"):
        return Polynomial.of(_UNLIMITED)
    kind, axis = coordinate.split(".")
    return Polynomial.of(f"{EXTENTS[kind]}.{axis}")


def _ratio(part: Polynomial, form: _Form) -> Polynomial | None:
    """Return the factor with which a form gives a part, or None."""
    first = form.coordinates[0]
    own = form.sum.coefficient(first)
    ratio = part.coefficient(first) * own
    return ratio if own.constant in (1, -1) and part.terms and ratio * form.sum == part else None


def _is_negative(factor: Polynomial) -> bool:
    """Return whether a factor is taken to be negative: where its sign matters, it is checked at the launch."""
    return bool(factor.terms) and max(factor.terms.items(), key=lambda term: (len(term[0]), term[0]))[1] < 0


def _magnitude(factor: Polynomial) -> Polynomial:
    return -factor if _is_negative(factor) else factor
