"""Pieces of C++ text for integer expressions, and the ways to put them together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INT64 = range(-(2**63), 2**63)


class Code(NamedTuple):
    """C++ text of a subexpression.

    Attributes:
        text: An expression of an integer type.
        value: Its value, where that is known.
        is_boolean: Whether it can only be 0 or 1.
        is_atom: Whether it can be an operand without parentheses.
    """

    text: str
    value: int | None = None
    is_boolean: bool = False
    is_atom: bool = True

    @property
    def operand(self) -> str:
        """The text as an operand of another operator."""
        return self.text if self.is_atom else f"({self.text})"

    @property
    def truth(self) -> str:
        """The text where only true or false counts."""
        # Compilers warn where one conditional decides another, unless the comparison is written out.
        return self.operand if self.is_atom or self.is_boolean else f"(({self.text}) != 0)"


def constant(value: int) -> Code:
    """Return the literal for a number of 64 bits."""
    if value == INT64.start:
        return Code(f"(-{INT64.stop - 1} - 1)", value)  # -9223372036854775808 is a minus and a number that does not fit
    return Code(str(value), value, is_boolean=value in (0, 1))


def call(function: str, *arguments: Code | int) -> Code:
    """Call a function of `expression.h` that may fail."""
    texts = (argument.text if isinstance(argument, Code) else str(argument) for argument in arguments)
    return Code(f"jitload_{function}({', '.join(('e', *texts))})")


def smaller(left: Code, right: Code) -> Code:
    """Write `min(left, right)`."""
    return Code(f"jitload_min({left.text}, {right.text})")


def larger(left: Code, right: Code) -> Code:
    """Write `max(left, right)`."""
    return Code(f"jitload_max({left.text}, {right.text})")


def both(left: Code, right: Code) -> Code:
    """Write `left and right`; an operand that is false is 0."""
    if left.is_boolean and right.is_boolean:
        return Code(f"{left.operand} && {right.operand}", is_boolean=True, is_atom=False)
    return Code(f"{left.truth} ? {right.operand} : 0", is_atom=False)


def either(left: Code, right: Code) -> Code:
    """Write `left or right`."""
    if left.is_boolean and right.is_boolean:
        return Code(f"{left.operand} || {right.operand}", is_boolean=True, is_atom=False)
    if left.is_boolean:
        return Code(f"{left.operand} ? 1 : {right.operand}", is_atom=False)
    return Code(f"{left.operand} ?: {right.operand}", is_atom=False)


def invert(operand: Code) -> Code:
    """Write `not operand`."""
    return Code(f"!{operand.truth}", is_boolean=True, is_atom=False)


def choose(test: Code, body: Code, orelse: Code) -> Code:
    """Write `body if test else orelse`."""
    are_boolean = body.is_boolean and orelse.is_boolean
    return Code(f"{test.truth} ? {body.operand} : {orelse.operand}", is_boolean=are_boolean, is_atom=False)


def chain(symbols: Sequence[str], codes: Sequence[Code], temporary: Callable[[], str]) -> Code:
    """Write `a < b < c` with `b` evaluated once, and `c` only where it is needed."""
    temporaries: list[str] = []
    links: list[str] = []
    left = codes[0].operand
    for symbol, code in zip(symbols, codes[1:], strict=True):
        right = following = code.operand
        if code is not codes[-1] and code.value is None:
            following = temporary()
            right = f"({following} = {code.text})"
            temporaries.append(following)
        links.append(f"{left} {symbol} {right}")
        left = following
    text = " && ".join(links)
    if not temporaries:
        return Code(text, is_boolean=True, is_atom=False)
    return Code(f"({{ int64_t {', '.join(temporaries)}; {text}; }})", is_boolean=True)


def join(codes: Sequence[Code], pair: Callable[[Code, Code], Code]) -> Code:
    """Join from the middle: compilers limit how deep parentheses nest."""
    if len(codes) == 1:
        return codes[0]
    half = len(codes) // 2
    return pair(join(codes[:half], pair), join(codes[half:], pair))
