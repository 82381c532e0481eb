"""The threads and iterations that reach an instruction: ranges of coordinates, limited by comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jitload.bounds.polynomial import Polynomial, Quotient
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
        self._ranges: dict[Polynomial, Range | None] = {}
        self._whole: list[Quotient] = []  # those without a remainder
        usable = self._without_quotients([*dict.fromkeys(constraints)])
        forms: dict[Polynomial, _Form] = {}
        for constraint in self._without_implied(usable):
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
        self.is_exact &= all(map(self._has_whole, self._whole))

    def _without_quotients(self, constraints: list[Polynomial]) -> list[Polynomial]:
        """Return constraints without those of quotients. Of these, only that a remainder is 0 is used."""
        usable = []
        for constraint in constraints:
            quotient = next(iter(constraint.quotients), None)
            if quotient is None:
                usable.append(constraint)
                continue
            remainder = quotient.dividend - Polynomial.of(quotient) * Polynomial.of(quotient.divisor)
            if -constraint not in constraints or constraint not in (remainder, -remainder):
                self.is_exact = False
            elif constraint == remainder:
                self._whole.append(quotient)
        return usable

    def _has_whole(self, quotient: Quotient) -> bool:
        """Return whether the other comparisons are known to leave each quotient up to the highest one."""
        sharing = [form for form in self._forms if {*form.coordinates} & quotient.coordinates]
        has_own_form = all(form.form == quotient.dividend and not form.lows for form in sharing)
        return has_own_form and len(self._whole) == 1 and self._reaches_all(quotient.dividend)

    def _reaches_all(self, polynomial: Polynomial) -> bool:
        """Return whether a number is known to have each value from 0 to its highest one."""
        coordinates = polynomial.coordinates
        if polynomial.quotients and polynomial == Polynomial.of(*coordinates):
            return self._reaches_all(polynomial.quotients[0].dividend)
        is_form = any(form.form == polynomial and not form.lows for form in self._forms)
        is_free = not any(coordinates & {*form.coordinates} for form in self._forms)
        return is_form or (is_free and len(coordinates) == 1 and polynomial == Polynomial.of(*coordinates))

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
        if len(form.coordinates) == 1 and form != Polynomial.of(*form.coordinates):
            self.is_exact = False  # a multiple of a coordinate by an unknown factor
            return
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
        """Return the lowest and the highest value of a form, a simple bound of it, and what must not be negative."""
        lows, highs = [*form.lows], [*form.highs]
        bound = highs[0] if highs else None
        low: Polynomial | None = _ZERO
        high: Polynomial | None = _ZERO
        for coordinate in form.coordinates:
            coefficient, extent = form.form.coefficient(coordinate), extent_of(coordinate)
            last = None if extent is None else coefficient * (extent - _ONE)
            if _is_negative(coefficient):
                low = None if low is None or last is None else low + last
            else:
                high = None if high is None or last is None else high + last
        lows += [] if low is None else [low]
        highs += [] if high is None else [high]
        lowest = extreme("MAX", lows) if lows else None
        highest = extreme("MIN", highs) if highs else None
        signs: list[Term] = [_magnitude(form.form.coefficient(coordinate)) for coordinate in form.coordinates]
        return lowest, highest, bound or highest, signs

    def range_of(self, polynomial: Polynomial) -> Range | None:
        """Return the range of a polynomial, or None if it is not known."""
        if polynomial not in self._ranges:
            self._ranges[polynomial] = self._range_of(polynomial)
        return self._ranges[polynomial]

    def _range_of(self, polynomial: Polynomial) -> Range | None:
        parts: list[Range] = []
        used: set[str] = set()
        is_exact = True
        while quotients := polynomial.quotients:
            quotient = quotients[0]
            factor = _factor(polynomial, quotient)
            part = factor * quotient.dividend
            count = (polynomial - part).coefficient(quotient)
            polynomial -= part + count * Polynomial.of(quotient)
            is_mixed = bool(quotient.coordinates & polynomial.coordinates) and not factor.terms and _is_negative(count)
            found = None if count.coordinates or is_mixed else self._range_of_quotient(quotient, factor, count)
            if found is None:
                return None
            parts.append(found)
            is_exact &= not used & quotient.coordinates
            used |= quotient.coordinates
        rest = self._range_of_sum(polynomial)
        return rest and _sum([*parts, rest], is_exact=is_exact and not polynomial.coordinates & used)

    def _range_of_quotient(self, quotient: Quotient, factor: Polynomial, count: Polynomial) -> Range | None:
        """Return the range of `factor * dividend + count * quotient`."""
        number, divisor = self.range_of(quotient.dividend), Polynomial.of(quotient.divisor)
        if number is None:
            return None
        low, high = divide(number.low, divisor), divide(number.high, divisor)
        if (factor.constant or 0) > 0 and (count.constant or -1) > 0:  # it grows with the dividend
            low = add(multiply(factor, number.low), multiply(count, low))
            high = add(multiply(factor, number.high), multiply(count, high))
            return number._replace(low=low, high=high, bound=high)
        count += factor * divisor  # from here on, the remainder takes the place of the dividend
        highest = extreme("MIN", [divisor - _ONE, number.high])
        remainder = _scaled(factor, _ZERO, highest, divisor - _ONE, ())
        whole = _scaled(count, low, high, high, number.signs)
        assert remainder is not None
        assert whole is not None
        if not factor.terms:
            return whole._replace(is_exact=self.is_exact if quotient in self._whole else number.is_exact)
        is_reached = not count.terms and self._reaches_all(quotient.dividend)
        return _sum([remainder, whole], is_exact=is_reached and number.is_exact)

    def _range_of_sum(self, polynomial: Polynomial) -> Range | None:
        split = polynomial.split()
        if split is None:
            return None
        linear, rest = split
        parts: list[Range] = []
        is_exact = self.is_exact and not any(split[0].coordinates & quotient.coordinates for quotient in self._whole)
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
        return _sum([Range(rest, rest, rest, True, ()), *parts], is_exact=is_exact)


def extent_of(coordinate: str) -> Polynomial | None:
    """Return the number of values of a coordinate, or None for the iterations of a loop."""
    return None if coordinate.startswith("#") else Polynomial.of(f"n{coordinate}")


def _sum(parts: Sequence[Range], *, is_exact: bool) -> Range:
    """Return the range of a sum of numbers that are independent of each other if `is_exact` is true."""
    return Range(
        add(*(part.low for part in parts)),
        add(*(part.high for part in parts)),
        add(*(part.bound for part in parts)),
        is_exact and all(part.is_exact for part in parts),
        tuple(sign for part in parts for sign in part.signs),
    )


def _factor(polynomial: Polynomial, quotient: Quotient) -> Polynomial:
    """Return the factor with which a polynomial has the dividend of a quotient, or 0."""
    for symbol in sorted(quotient.dividend.coordinates):
        own, factor = quotient.dividend.coefficient(symbol).constant, polynomial.coefficient(symbol).constant
        if own and factor and factor % own == 0:
            return Polynomial.of(factor // own)
    return _ZERO


def _part(linear: Polynomial, coordinates: Sequence[str]) -> Polynomial:
    return Polynomial({m: factor for m, factor in linear.terms.items() if any(name in coordinates for name in m)})


def _quotient(part: Polynomial, form: _Form) -> Polynomial | None:
    """Return the factor with which a form gives a part, or None."""
    first = form.coordinates[0]
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
    signs = (*signs, _magnitude(factor))
    ends = multiply(factor, low), multiply(factor, high)
    if _is_negative(factor):
        return Range(ends[1], ends[0], ends[0], True, signs)
    return Range(*ends, multiply(factor, bound), True, signs)


def _is_negative(factor: Polynomial) -> bool:
    """Return whether a factor is taken to be negative: where its sign matters, it is checked at the launch."""
    return bool(factor.terms) and max(factor.terms.items(), key=lambda term: (len(term[0]), term[0]))[1] < 0


def _magnitude(factor: Polynomial) -> Polynomial:
    return -factor if _is_negative(factor) else factor


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
