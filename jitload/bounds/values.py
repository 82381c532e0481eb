"""The integers and predicates of a thread, and what instructions make of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jitload.bounds.ptx import Instruction
from jitload.bounds.terms import Polynomial, is_known_at_launch

_TYPE = re.compile(r"([sub])(8|16|32|64)")
_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_MOST_TERMS = 40
WORD = 4  # registers have at least this many bytes; smaller results are extended in a way that depends on the type


class Assumption(NamedTuple):
    """A number is from `low` to `high`, so that a narrower or signed register holds it unchanged."""

    value: Polynomial
    low: int
    high: int


class Value(NamedTuple):
    """An integer of a thread: equal to `polynomial` modulo 2 to the power of the register's width.

    The assumptions are those under which this is so.
    """

    polynomial: Polynomial
    assumptions: frozenset[Assumption] = frozenset()

    @classmethod
    def of(cls, value: int | str) -> Value:
        """Return a constant or a symbol."""
        return cls(Polynomial.of(value))


class Condition(NamedTuple):
    """What holds for the registers, under the assumptions, if a predicate has a value.

    Attributes:
        limits: What is not negative then.
        unequal: What is not zero.
        assumptions: Under which both are so.
        is_whole: Whether the predicate has the value whenever all this holds.
    """

    limits: tuple[Polynomial, ...] = ()
    unequal: tuple[Polynomial, ...] = ()
    assumptions: frozenset[Assumption] = frozenset()
    is_whole: bool = False

    def both(self, other: Condition) -> Condition:
        """Return what holds if two predicates have their values."""
        is_whole = self.is_whole and other.is_whole
        limits, unequal = self.limits + other.limits, self.unequal + other.unequal
        return Condition(limits, unequal, self.assumptions | other.assumptions, is_whole)


class Predicate(NamedTuple):
    """What holds if a predicate is true, and if it is false."""

    if_true: Condition = Condition()
    if_false: Condition = Condition()


def width_of(instruction: Instruction) -> tuple[int, bool]:
    """Return the bits of the last type of an instruction, 0 if it is not that of an integer, and if it has a sign."""
    match = _TYPE.fullmatch(instruction.modifiers[-1]) if instruction.modifiers else None
    return (int(match[2]), match[1] == "s") if match else (0, False)


def evaluate(instruction: Instruction, values: Sequence[Value]) -> Value | None:
    """Return the result of an instruction, or None if it is not known."""
    is_integer = width_of(instruction)[0] > 0
    if instruction.root == "cvta" or (is_integer and instruction.root == "mov"):
        return values[0]
    if not is_integer or instruction.root not in _OPERATIONS:
        return None
    result = _OPERATIONS[instruction.root](instruction, *values)
    return result if result and len(result.polynomial.terms) <= _MOST_TERMS else None


def compare(instruction: Instruction, left: Value, right: Value) -> Predicate:
    """Return the result of `setp`."""
    operator = instruction.modifiers[0]
    if not width_of(instruction)[0] or len(instruction.modifiers) != 2 or operator not in _NEGATED:
        return Predicate()
    left, right = _interpreted(left, instruction), _interpreted(right, instruction)
    difference, assumptions = left.polynomial - right.polynomial, left.assumptions | right.assumptions

    limits = {
        "lt": (-difference - 1,),
        "le": (-difference,),
        "gt": (difference - 1,),
        "ge": (difference,),
        "eq": (difference, -difference),
    }

    def condition(operator: str) -> Condition:
        return Condition(limits.get(operator, ()), (difference,) * (operator == "ne"), assumptions, is_whole=True)

    return Predicate(condition(operator), condition(_NEGATED[operator]))


def _interpreted(value: Value, instruction: Instruction) -> Value:
    """Return a value whose polynomial is the number that an instruction reads, and not only equal to it modulo 2^n."""
    bits, is_signed = width_of(instruction)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    constant = value.polynomial.constant
    if constant is not None:
        return Value(Polynomial.of((constant - low) % (1 << bits) + low), value.assumptions)
    return value._replace(assumptions=value.assumptions | {Assumption(value.polynomial, low, high)})


def _combined(polynomial: Polynomial, *values: Value) -> Value:
    return Value(polynomial, frozenset().union(*(value.assumptions for value in values)))


def _sum(instruction: Instruction, *values: Value) -> Value | None:
    """Evaluate `add`, `sub`, `neg` and `not`."""
    if "sat" in instruction.modifiers:
        return None
    first, last = values[0].polynomial, values[-1].polynomial
    results = {"sub": first - last, "neg": -last, "not": -last - 1}
    return _combined(results.get(instruction.root, first + last), *values)


def _multiply(instruction: Instruction, *values: Value) -> Value | None:
    """Evaluate `mul` and `mad`, which has a third operand."""
    first, second, *third = values
    if "wide" in instruction.modifiers:
        first, second = (_interpreted(value, instruction) for value in (first, second))
    elif "lo" not in instruction.modifiers:
        return None
    product = first.polynomial * second.polynomial
    return _combined(product + third[0].polynomial if third else product, first, second, *third)


def _shift(instruction: Instruction, value: Value, by: Value) -> Value | None:
    count = by.polynomial.constant
    if count is None or not 0 <= count < width_of(instruction)[0]:
        return None
    return _combined(value.polynomial * (1 << count), value, by)


def _convert(instruction: Instruction, value: Value) -> Value | None:
    target = _TYPE.fullmatch(instruction.modifiers[-2])
    if target is None or len(instruction.modifiers) != 2 or int(target[2]) < 8 * WORD:
        return None
    return value if int(target[2]) <= width_of(instruction)[0] else _interpreted(value, instruction)


def _quotient(instruction: Instruction, value: Value, by: Value) -> Value | None:
    """Evaluate `div`, `shr`, `rem` and `and` of a positive number that is known at the launch and a constant.

    `and` is `rem` of a power of two if the lowest bits of its constant are set, and rounds down if all others are.
    """
    root, bits, constant = instruction.root, width_of(instruction)[0], by.polynomial.constant
    if constant is None or not -(1 << bits - 1) <= constant < 1 << bits:
        return None
    if root == "and":
        constant -= (constant >> bits - 1 & 1) << bits if constant > 0 else 0  # as a number with a sign
        divisor = abs(constant + (constant >= 0))
    else:
        divisor = 1 << constant if root == "shr" and 0 <= constant < bits else constant * (root != "shr")
    if divisor <= 0 or (root == "and" and divisor & divisor - 1):
        return None
    dividend = _interpreted(value, instruction)
    number = dividend.polynomial
    if not all(map(is_known_at_launch, number.symbols)):
        return None
    is_positive = Assumption(number, 0, (1 << bits) - 1)
    rounded = number // divisor * divisor
    results = {"rem": number - rounded, "and": rounded if constant < 0 else number - rounded}
    assumptions = dividend.assumptions | by.assumptions | {is_positive}
    return Value(results.get(root, number // divisor), assumptions)


_OPERATIONS: Mapping[str, Callable[..., Value | None]] = {
    **dict.fromkeys(("add", "sub", "neg", "not"), _sum),
    **dict.fromkeys(("mul", "mad"), _multiply),
    **dict.fromkeys(("div", "shr", "rem", "and"), _quotient),
    "shl": _shift,
    "cvt": _convert,
}
