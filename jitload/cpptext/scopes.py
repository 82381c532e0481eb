"""Splits the tokens of C++ text into declarations, and finds the namespaces that these are in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from jitload.cpptext.lexer import CLOSING, Token
from jitload.cpptext.preprocessor import Run

CLASSES = frozenset(("struct", "class", "union", "enum"))
SPACES = ("__device__", "__constant__", "__managed__")  # of device variables


def split_branches(runs: Iterable[Run]) -> tuple[list[Token], list[Sequence[Token]]]:
    """Return the tokens outside directives, and the branches that are left out of them.

    If the braces in a branch of an `#if` do not match, the later branches of this `#if` are left out.
    """
    # For each open `#if`: the number of open braces in its current branch, and whether to leave out tokens.
    branches: list[tuple[int, bool]] = []
    code: list[Token] = []
    left_out: list[Sequence[Token]] = []
    for directive, run in runs:
        name = directive.name if directive else ""
        if name.startswith("if"):
            branches.append((0, False))
        elif name.startswith("el") and branches:
            depth, skips = branches[-1]
            branches[-1] = (0, skips or depth != 0)
        elif name == "endif" and branches:
            branches.pop()
        if directive:
            continue
        if any(skips for _, skips in branches):
            left_out.append(run)
            continue
        depth = sum((token.text == "{") - (token.text == "}") for token in run)
        branches = [(before + depth, skips) for before, skips in branches]
        code += run
    return code, left_out


def declarations_in(
    code: Sequence[Token], namespaces: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Sequence[Token], Sequence[Token]]]:
    """Yield (namespaces, declaration, head) for declarations outside of classes. A head ends where a body begins."""
    for declaration in filter(None, split_declarations(code)):
        opening = body_start(declaration)
        head = declaration[:opening]
        if opening is not None and is_namespace(head):
            yield from declarations_in(declaration[opening + 1 : -1], (*namespaces, *opened_namespaces(head)))
        else:
            yield namespaces, declaration, head


def is_namespace(head: Sequence[Token]) -> bool:
    """Return whether a declaration that begins with these tokens is a namespace or `extern "C"`."""
    words = [token.text for token in head]
    return "namespace" in words or (words[:1] == ["extern"] and len(head) == 2 and head[1].kind == "literal")


def template_end(declaration: Sequence[Token]) -> int:
    """Return the number of tokens in the `template <…>` clauses at the start of a declaration."""
    end = 0
    while [token.text for token in declaration[end : end + 2]] == ["template", "<"]:
        close = find_angle(declaration, end + 1)
        if close < 0:
            break
        end = close + 1
    return end


def split_declarations(code: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the tokens of each declaration.

    A declaration ends at a `;`, at an access specifier such as `public:`, or at the `}` of a function or namespace.
    """
    start = index = 0
    while index < len(code):
        text = code[index].text
        words = set(plain_words([token.text for token in code[start:index]])) if text == "{" else set()
        end = find_closing(code, index) if text in ("{", "(", "[") else index
        index = (end if end >= 0 else len(code)) + 1
        is_open = words & {*CLASSES, "=", *SPACES} and "namespace" not in words and ")" not in words
        if text == ";" or (text == "{" and not is_open):
            yield code[start : index - (text == ";")]
            start = index
        elif text == ":" and code[start].text in ("public", "private", "protected"):
            yield code[start:index]
            start = index


def opened_namespaces(head: Sequence[Token]) -> tuple[str, ...]:
    """Return the namespaces named in the tokens before a `{`, such as `("a", "b")` for `namespace a::b`."""
    start = next((index for index, token in enumerate(head) if token.text == "namespace"), None)
    if start is None:
        return ()
    names, depth = [], 0
    for token in head[start + 1 :]:
        depth += (token.text in "([") - (token.text in ")]")
        if depth == 0 and token.kind == "word" and token.text not in ("inline", "__attribute__"):
            names.append(token.text)
    return tuple(names)


def body_start(declaration: Sequence[Token]) -> int | None:
    """Return the index of the first `{` outside of parentheses, as in `void f(Pair pair = {}) {`."""
    index = 0
    while index < len(declaration) and declaration[index].text != "{":
        index = max(index, find_closing(declaration, index) if declaration[index].text == "(" else index) + 1
    return index if index < len(declaration) else None


def plain_words(words: Sequence[str]) -> list[str]:
    """Return the words without attributes such as `alignas(16)`."""
    text = re.sub(r"(?:alignas|__align__|__attribute__|__builtin_align__|__launch_bounds__) \( .*? \)(?: \))?", "",
                  " ".join(words))  # fmt: skip
    return text.split()


# ---- brackets -----------------------------------------------------------------------------------------------------


def find_closing(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the bracket that matches the bracket at `start`, or -1 if there is none."""
    opening, closing, depth = tokens[start].text, CLOSING[tokens[start].text], 0
    for index in range(start, len(tokens)):
        depth += (tokens[index].text == opening) - (tokens[index].text == closing)
        if depth == 0:
            return index
    return -1


def find_angle(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the `>` that closes the `<` at `start`, or -1 if the `<` is a less-than sign."""
    depth, index = 0, start
    while index < len(tokens):
        text = tokens[index].text
        if text in CLOSING:
            index = find_closing(tokens, index)
            if index < 0:
                return -1
        elif text in (")", "]", "}", ";"):
            return -1
        depth += (text == "<") - (text == ">")
        if depth == 0:
            return index
        index += 1
    return -1
