"""Tokens of a C++ text in, those out that a compiler may see: what `#if` and its kin certainly drop is left out.

A name that the text does not define, and nothing that it includes by a path of its own, is undefined. What this cannot
tell, it keeps.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jitload.device.lexer import Token

# What is defined while NVRTC compiles, and not while nvcc compiles the host's part, or the other way round.
NVRTC_NAMES: Final[Mapping[str, str | None]] = {"__CUDACC_RTC__": "1", "__NVCC__": None, "__CUDA_ARCH__": ""}
_MAYBE = "?"  # the text of a macro that may be defined or not
_HEADER = "#include"  # stands for all names, of which a header may define any
_LONGEST = 100  # words of a condition; a reader that goes down into brackets needs an end
_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_DEFINITION = re.compile(r"(?:-D|--define-macro=)(\w+)(?:=(.*))?", re.DOTALL)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*")


def names_of_options(options: Sequence[str]) -> dict[str, str | None]:
    """Return the macros that options of a compiler define, with their texts; one that reads a header hides all."""
    names: dict[str, str | None] = {}
    for at, option in enumerate(options):
        text = f"-D{options[at + 1]}" if option == "-D" and at + 1 < len(options) else option
        if match := _DEFINITION.fullmatch(text):
            names[match[1]] = "1" if match[2] is None else match[2]
        elif "-include" in option:
            names[_HEADER] = _MAYBE
    return names


def live_tokens(tokens: Sequence[Token], names: Mapping[str, str | None]) -> Iterator[Token]:
    """Yield the tokens that may be compiled; comments are not among those given.

    Args:
        tokens: The text's.
        names: Macros that are defined from the start, with their texts; None for one that is not.
    """
    branches = _Branches(dict(names))
    start = 0
    while start < len(tokens):
        end = start + 1
        if tokens[start].in_directive:
            while end < len(tokens) and tokens[end].in_directive and not _begins_line(tokens, end):
                end += 1
            branches.read([token.text for token in tokens[start + 1 : end]])
        if branches.may_live:
            yield from tokens[start:end]
        start = end


def _begins_line(tokens: Sequence[Token], at: int) -> bool:
    return tokens[at].text == "#" and tokens[at].line > tokens[at - 1].end_line


@dataclass(slots=True)
class _Branch:
    """The branch of an `#if` that is open: whether it may be compiled, and whether it surely is.

    `may_follow` says whether a later one may be, `none_before` whether all earlier ones surely are not.
    """

    may_live: bool = True
    is_certain: bool = False
    may_follow: bool = True
    none_before: bool = True

    def enter(self, value: bool | None) -> None:  # noqa: FBT001  a condition's value is all there is
        self.may_live = self.may_follow and value is not False
        self.is_certain = self.none_before and value is True
        self.may_follow = self.may_follow and value is not True
        self.none_before = self.none_before and value is False


class _Branches:
    """The conditions that are open at a place of the text, and the macros that are known there."""

    def __init__(self, names: dict[str, str | None]) -> None:
        self._names = names
        self._open: list[_Branch] = []

    @property
    def may_live(self) -> bool:
        return all(branch.may_live for branch in self._open)

    def read(self, line: Sequence[str]) -> None:
        """Follow a preprocessor line, given by its words."""
        word, rest = (line[0], line[1:]) if line else ("", ())
        if word in ("if", "ifdef", "ifndef"):
            self._open.append(_Branch())
            self._open[-1].enter(self._value(word, rest))
        elif word in ("elif", "elifdef", "elifndef", "else") and self._open:
            self._open[-1].enter(True if word == "else" else self._value(word.removeprefix("el"), rest))
        elif word == "endif" and self._open:
            self._open.pop()
        elif self.may_live:
            self._define(word, rest)

    def _define(self, word: str, rest: Sequence[str]) -> None:
        is_certain = all(branch.is_certain for branch in self._open)
        if word == "include" and rest and rest[0] != "<":
            self._names[_HEADER] = _MAYBE
        elif word == "define" and rest:
            self._names[rest[0]] = "".join(rest[1:]) if is_certain else _MAYBE
        elif word == "undef" and rest:
            self._names[rest[0]] = None if is_certain else _MAYBE

    def _value(self, word: str, condition: Sequence[str]) -> bool | None:
        """Return what a condition is; None where that cannot be told."""
        if word == "if":
            number = _Condition(condition, self._names).value()
            return None if number is None else bool(number)
        is_defined = _is_defined(condition[0], self._names) if condition else None
        return is_defined if is_defined is None or word == "ifdef" else not is_defined


def _is_defined(name: str, names: Mapping[str, str | None]) -> bool | None:
    if name in names:
        return None if names[name] == _MAYBE else names[name] is not None
    is_anybodys = _HEADER in names or name.startswith("_")
    return None if is_anybodys else False


class _Condition:
    """The reader of one condition: integers, names, `defined`, `!`, comparisons, `&&`, `||` and parentheses."""

    def __init__(self, words: Sequence[str], names: Mapping[str, str | None]) -> None:
        self._words = _joined(words)
        self._names = names
        self._at = 0

    def value(self) -> int | None:
        if len(self._words) > _LONGEST:
            return None
        found = self._either()
        return found if self._at == len(self._words) else None

    def _next(self) -> str:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else ""

    def _takes(self, word: str) -> bool:
        is_here = self._at < len(self._words) and self._words[self._at] == word
        self._at += is_here
        return is_here

    def _either(self) -> int | None:
        value = self._all()
        while self._takes("||"):
            other = self._all()
            value = 1 if value or other else None if None in (value, other) else 0
        return value

    def _all(self) -> int | None:
        value = self._comparison()
        while self._takes("&&"):
            other = self._comparison()
            value = 0 if 0 in (value, other) else None if None in (value, other) else 1
        return value

    def _comparison(self) -> int | None:
        value = self._single()
        for mark, compare in _COMPARISONS.items():
            if self._takes(mark):
                other = self._single()
                return None if value is None or other is None else int(compare(value, other))
        return value

    def _single(self) -> int | None:
        if self._takes("!"):
            value = self._single()
            return None if value is None else int(not value)
        if self._takes("("):
            value = self._either()
            return value if self._takes(")") else None
        if self._takes("defined"):
            has_bracket = self._takes("(")
            is_defined = _is_defined(self._next(), self._names)
            is_whole = not has_bracket or self._takes(")")
            return int(is_defined) if is_defined is not None and is_whole else None
        return self._number(self._next())

    def _number(self, word: str) -> int | None:
        if word in ("true", "false"):
            return int(word == "true")
        if match := _INTEGER.fullmatch(self._names.get(word) or word):
            return int(match[1], 0 if match[1][:2] in ("0x", "0X") else 10)
        is_name = word.isidentifier() and not (self._at < len(self._words) and self._words[self._at] == "(")
        return 0 if is_name and _is_defined(word, self._names) is False else None


def _joined(words: Sequence[str]) -> list[str]:
    """Put marks together that the lexer leaves apart: `&` `&`."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] + word in ("&&", "||", "==", "!="):
            joined[-1] += word
        else:
            joined.append(word)
    return joined
