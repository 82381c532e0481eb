"""The tokens of a kernel's body in, its statements out, as far as barriers make their structure matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jitload.cpptext.lexer import Token

Kind = Literal["plain", "block", "if", "for", "while", "do", "barrier", "warp"]
BARRIER = "__syncthreads"
WARP = "__jitload_warp"  # stands for an exchange in each warp: `split_inline` writes it
_OPEN = {"(": ")", "[": "]", "{": "}"}
# Words that begin what is not looked into. Waits among them are seen in the object file, whatever hides them.
_STRANGE = frozenset("goto try asm __asm__ __asm co_await co_yield co_return throw".split())  # noqa: SIM905
_TYPES = frozenset("struct class union enum typedef const static".split())  # noqa: SIM905


class NotUnderstoodError(Exception):
    """Why a kernel stays on the fibers.

    Args:
        reason: The message.
        at: The first token of the statement that all threads cannot go through together, if that is why.
    """

    def __init__(self, reason: str, at: int = -1) -> None:
        super().__init__(reason)
        self.at = at


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a kernel.

    Attributes:
        kind: `plain` for whatever a thread does by itself, compound statements without a barrier among them.
        first: The index of its first token.
        last: The index of its last one.
        heads: Where the parts of its head are, both ends included: a condition, or the three parts of a `for`. A part
            without tokens ends before it begins.
        body: What a block or a loop holds, or an `if` at first.
        other: What stands behind `else`.
        has_barrier: Whether all threads meet in it.
        jumps: Whether it may leave a loop around it, or its turn: `break` or `continue`.
    """

    kind: Kind
    first: int
    last: int
    heads: tuple[tuple[int, int], ...] = ()
    body: tuple[Statement, ...] = ()
    other: tuple[Statement, ...] = ()
    has_barrier: bool = False
    jumps: bool = False


def read_statements(code: Sequence[Token]) -> tuple[Statement, ...]:
    """Return the statements of a body, given without its braces, comments and preprocessor lines.

    Raises:
        NotUnderstoodError: It holds something that this does not read.
    """
    return tuple(_Reader(code).read_all(0, len(code)))


def match_brackets(code: Sequence[Token]) -> dict[int, int]:
    """Return where each opening bracket is closed."""
    found: dict[int, int] = {}
    waiting: list[int] = []
    for at, token in enumerate(code):
        if token.kind != "punctuator":
            continue
        if token.text in _OPEN:
            waiting.append(at)
        elif token.text in (")", "]", "}"):
            if not waiting or _OPEN[code[waiting[-1]].text] != token.text:
                raise NotUnderstoodError("brackets that do not match")
            found[waiting.pop()] = at
    if waiting:
        raise NotUnderstoodError("a bracket that is not closed")
    return found


def refuse_returned_values(code: Sequence[Token]) -> None:
    """Refuse `return f();`, which ends a thread; a lambda may return what it likes.

    Raises:
        NotUnderstoodError: There is one.
    """
    closing = match_brackets(code)
    for at in range(len(code) - 1):
        if code[at].text == "return" and code[at + 1].text != ";":
            around = [start for start, end in closing.items() if start < at < end and code[start].text == "{"]
            if all(_is_block(code, closing, start) for start in around):
                raise NotUnderstoodError("a `return` with a value")


def _is_block(code: Sequence[Token], closing: dict[int, int], brace: int) -> bool:
    """Tell whether a brace begins a block, not the body of a lambda."""
    before = code[brace - 1].text if brace else ""
    if before == ")":
        opening = next(start for start, end in closing.items() if end == brace - 1)
        return code[opening - 1].text in ("if", "for", "while", "switch", "constexpr")
    return before in ("", ";", "{", "}", "else", "do", ":")


class _Reader:
    """One pass over the tokens of a body."""

    def __init__(self, code: Sequence[Token]) -> None:
        self._code = code
        self._closing = match_brackets(code)

    def read_all(self, at: int, end: int) -> Iterator[Statement]:
        while at < end:
            found = self._read(at)
            yield found
            at = found.last + 1

    def _text(self, at: int) -> str:
        return self._code[at].text if at < len(self._code) else ""

    def _read(self, at: int) -> Statement:
        text = self._text(at)
        if text == "{":
            end = self._closing[at]
            return self._compound("block", (at, end), (), tuple(self.read_all(at + 1, end)))
        if text == "if":
            return self._read_if(at)
        if text in ("for", "while"):
            return self._read_loop(at)
        if text == "do":
            return self._read_do(at)
        if text == "switch":
            return self._read_switch(at)
        return self._read_plain(at)

    def _head(self, at: int) -> int:
        """Return the index of the `(` of a head."""
        if self._text(at) != "(":
            raise NotUnderstoodError(f"{self._text(at - 1)!r} without parentheses")
        return at

    def _inner(self, at: int) -> tuple[tuple[Statement, ...], int]:
        """Return what a loop or a branch holds, without the braces around it, and its last token."""
        found = self._read(at)
        return (found.body if found.kind == "block" else (found,)), found.last

    def _read_if(self, at: int) -> Statement:
        opening = self._head(at + 1 + (self._text(at + 1) == "constexpr"))
        closing = self._closing[opening]
        body, last = self._inner(closing + 1)
        other: tuple[Statement, ...] = ()
        if self._text(last + 1) == "else":
            other, last = self._inner(last + 2)
        return self._compound("if", (at, last), ((opening + 1, closing - 1),), body, other)

    def _read_loop(self, at: int) -> Statement:
        opening = self._head(at + 1)
        closing = self._closing[opening]
        body, last = self._inner(closing + 1)
        if self._text(at) == "while":
            return self._compound("while", (at, last), ((opening + 1, closing - 1),), body)
        parts, start = [], opening + 1
        for mark in self._marks(opening + 1, closing, ";"):
            parts.append((start, mark - 1))
            start = mark + 1
        parts.append((start, closing - 1))
        if len(parts) != 3 and any(one.has_barrier for one in body):
            raise NotUnderstoodError("a barrier in a `for` over a range")
        return self._compound("for", (at, last), tuple(parts), body)

    def _read_do(self, at: int) -> Statement:
        body, last = self._inner(at + 1)
        if self._text(last + 1) != "while":
            raise NotUnderstoodError("`do` without `while`")
        opening = self._head(last + 2)
        closing = self._closing[opening]
        return self._compound("do", (at, closing + 1), ((opening + 1, closing - 1),), body)

    def _read_switch(self, at: int) -> Statement:
        opening = self._head(at + 1)
        brace = self._closing[opening] + 1
        if self._text(brace) != "{":
            raise NotUnderstoodError("a `switch` without braces")
        last = self._closing[brace]
        self._refuse(at, last)
        words = {token.text for token in self._code[at:last]}
        return Statement(kind="plain", first=at, last=last, jumps="continue" in words)

    def _read_plain(self, at: int) -> Statement:
        if self._text(at) in ("else", "case", "default"):
            raise NotUnderstoodError(f"{self._text(at)!r} out of place")
        if self._code[at].kind == "word" and self._text(at + 1) == ":":
            raise NotUnderstoodError("a label")
        ends = self._marks(at, len(self._code), ";")
        last = next(ends, None)
        if last is None:
            raise NotUnderstoodError("a statement without its end")
        self._refuse_hidden_statements(at, last)
        texts = [token.text for token in self._code[at : last + 1]]
        if texts in ([BARRIER, "(", ")", ";"], ["__syncwarp", "(", ")", ";"]):
            return Statement(kind="barrier", first=at, last=last, has_barrier=True)
        if texts[0] == WARP:
            return Statement(kind="warp", first=at, last=last, has_barrier=True)
        self._refuse(at, last)
        return Statement(kind="plain", first=at, last=last, jumps=texts[0] in ("break", "continue"))

    def _refuse_hidden_statements(self, at: int, last: int) -> None:
        """Refuse words, attributes for one, that stand before a compound statement."""
        if self._text(at) == self._text(at + 1) == "[":
            raise NotUnderstoodError("a declaration that is not read, or an attribute")
        for brace in self._marks(at, last, "{"):
            if self._text(at) in _TYPES:
                break
            if self._code[self._closing[brace] + 1].kind == "word" or self._text(self._closing[brace] + 1) == "{":
                raise NotUnderstoodError(f"what begins with {self._text(at)!r}")

    def _refuse(self, first: int, last: int) -> None:
        for token in self._code[first : last + 1]:
            if token.text == BARRIER:
                raise NotUnderstoodError(f"{BARRIER} that is no statement of its own")
            if token.text in _STRANGE:
                raise NotUnderstoodError(repr(token.text))

    def _marks(self, at: int, end: int, mark: str) -> Iterator[int]:
        """Yield where a mark stands outside of brackets."""
        while at < end:
            if self._code[at].text == mark:
                yield at
            at = self._closing.get(at, at) + 1

    def _compound(
        self,
        kind: Kind,
        place: tuple[int, int],
        heads: tuple[tuple[int, int], ...],
        body: tuple[Statement, ...],
        other: tuple[Statement, ...] = (),
    ) -> Statement:
        for head in heads:
            self._refuse(*head)
        parts = (*body, *other)
        return Statement(
            kind=kind, first=place[0], last=place[1], heads=heads, body=body, other=other,
            has_barrier=any(one.has_barrier for one in parts),
            jumps=kind in ("if", "block") and any(one.jumps for one in parts),
        )  # fmt: skip
