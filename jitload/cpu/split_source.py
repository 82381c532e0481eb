"""The tokens of a source in, its kernels out, and what it says outside of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jitload.cpptext.declarations import find_angle, find_closing
from jitload.cpptext.lexer import Token
from jitload.cpu.split_declarations import Variable, read_parameter
from jitload.cpu.split_text import write_tokens_apart
from jitload.cpu.split_tree import NotUnderstoodError
from jitload.cpu.split_words import KEYWORDS

_PLAIN_HEAD = frozenset({"static", "inline", "void", "extern", "__global__", "__forceinline__"})
_NO_TYPE = frozenset("return else case new delete throw do not and or goto using namespace".split())  # noqa: SIM905
_BOUNDS = frozenset({"__launch_bounds__", "__maxnreg__", "__cluster_dims__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A definition: where in a piece's tokens its parts are."""

    head: int
    name: int
    open: int
    close: int
    brace: int
    end: int


def find_kernels(tokens: Sequence[Token]) -> Iterator[Kernel]:
    """Yield the definitions whose parts can be told apart."""
    start, at = 0, 0
    while at < len(tokens):
        text = tokens[at].text
        if text == "__global__":
            found = _read_kernel(tokens, start, at)
            if found:
                yield found
                at = found.end
        if tokens[at].text in (";", "{", "}"):
            start = at + 1
        at += 1


def _read_kernel(tokens: Sequence[Token], start: int, at: int) -> Kernel | None:
    while at < len(tokens) and tokens[at].text not in (";", "{", "}"):
        if tokens[at].kind == "word" and at + 1 < len(tokens) and tokens[at + 1].text == "(":
            closing = find_closing(tokens, at + 1)
            if closing < 0:
                return None
            if tokens[at].text not in _BOUNDS and tokens[closing + 1 : closing + 2] and tokens[closing + 1].text == "{":
                end = find_closing(tokens, closing + 1)
                found = Kernel(head=start, name=at, open=at + 1, close=closing, brace=closing + 1, end=end)
                return found if end > 0 else None
            at = closing
        at += 1
    return None


def read_template(head: Sequence[Token]) -> tuple[str, frozenset[str], frozenset[str]]:
    """Return the `template<…>` before a kernel, its parameters' names, and those of its types.

    Raises:
        NotUnderstoodError: There is a word that is not known.
    """
    at, end = 0, 0
    words: list[Token] = []
    while at < len(head):
        text = head[at].text
        if text == "template" and at == end:
            closing = find_angle(head, at + 1)
            words += head[at + 2 : closing]
            at = end = closing + 1
            continue
        if text in _BOUNDS and head[at + 1].text == "(":
            at = find_closing(head, at + 1)
        elif text not in _PLAIN_HEAD and text != '"C"':
            raise NotUnderstoodError(f"{text!r} before its name")
        at += 1
    if any(token.text in ("requires", "...", "template", "*", "&") for token in words):
        raise NotUnderstoodError("its template parameters")
    names = frozenset(token.text for token in words if token.kind == "word" and token.text not in KEYWORDS)
    types = frozenset(b.text for a, b in pairwise(words) if a.text in ("typename", "class"))
    return (write_tokens_apart(head[:end]) + "\n" if end else ""), names, types & names


def read_parameters(tokens: Sequence[Token], end: int) -> tuple[Variable, ...]:
    """Return a kernel's parameters, which are seen up to the token `end` of its body.

    Raises:
        NotUnderstoodError: One is of a kind that is not read.
    """
    found, start, depth = [], 0, 0
    for at, token in enumerate([*tokens, Token("punctuator", ",", 0, 0, in_directive=False)]):
        depth += (token.text in ("(", "<", "[")) - (token.text in (")", ">", "]"))
        if token.text == "," and depth == 0:
            piece = tokens[start:at]
            if piece and [one.text for one in piece] != ["void"]:
                found.append(read_parameter(piece, end))
            start = at + 1
    return tuple(found)


def find_specialized(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the names in declarations that begin with `template <>`, those of specialized kernels among them."""
    for at, token in enumerate(tokens):
        if token.text == "template" and [one.text for one in tokens[at + 1 : at + 3]] == ["<", ">"]:
            for one in tokens[at + 3 :]:
                if one.text in ("{", ";"):
                    break
                if one.kind == "word":
                    yield one.text


def find_functions(tokens: Sequence[Token]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the functions that are defined in the text, and those of them that take no reference."""
    found: set[str] = set()
    refused: set[str] = set()
    for at, token in enumerate(tokens[:-1]):
        if token.kind == "word" and tokens[at + 1].text == "(" and token.text not in KEYWORDS:
            closing = find_closing(tokens, at + 1)
            following = tokens[closing + 1].text if 0 < closing < len(tokens) - 1 else ""
            is_definition = (
                following in ("{", "const", "noexcept") and at > 0 and tokens[at - 1].text not in (".", "->")
            )
            if is_definition:
                takes = any(one.text in ("&", "[") for one in tokens[at + 1 : closing])
                (refused if takes else found).add(token.text)
    return frozenset(found | refused), frozenset(found - refused)


def find_constants(tokens: Sequence[Token]) -> frozenset[str]:
    """Return the names of `constexpr` variables and enumerators of numbers."""
    found: set[str] = set()
    for at, token in enumerate(tokens):
        if token.text == "constexpr":
            end = at + 1
            while end < len(tokens) and tokens[end].text not in ("=", "{", "(", ";", "["):
                end += 1
            if end < len(tokens) and tokens[end].text == "=" and not any(t.text in ("*", "&") for t in tokens[at:end]):
                found.add(tokens[end - 1].text)
        elif token.text == "enum":
            brace = next((i for i in range(at, min(at + 8, len(tokens))) if tokens[i].text == "{"), -1)
            if brace > 0 and ";" not in {t.text for t in tokens[at:brace]}:
                inside = tokens[brace : find_closing(tokens, brace)]
                found |= {b.text for a, b in pairwise(inside) if a.text in ("{", ",") and b.kind == "word"}
    return frozenset(found)


def find_ambiguous(tokens: Sequence[Token]) -> frozenset[str]:
    """Return the names that seem to be declared several times: overloads, or names of several namespaces."""
    found: Counter[str] = Counter()
    for (before, token), following in zip(pairwise(tokens), tokens[2:], strict=False):
        is_type = before.text in ("*", "&", ">") or (before.kind == "word" and before.text not in _NO_TYPE)
        is_named = token.kind == "word" and token.text not in KEYWORDS
        is_enumerator = before.text in ("{", ",") and following.text == "="
        if is_named and ((is_type and following.text in ("=", "(", "[", ";", "{", ",")) or is_enumerator):
            found[token.text] += 1
    return frozenset(name for name, count in found.items() if count > 1)
