"""CUDA text in, the places that look like kernels out; the compiler decides which of them are."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from jitload.device.conditions import NVRTC_NAMES, live_tokens, names_of_options
from jitload.device.lexer import Token, tokenize
from jitload.device.parameters import find_angle, find_closing, read_parameters, write_tokens
from jitload.model import Candidate

SourceKind = Literal["device", "host", "both"]

# Words that may stand before `(` in a declaration without being the name of what is declared.
_CUDA_ATTRIBUTES = ("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__align__")
_ATTRIBUTES = ("__attribute__", "__attribute", "__declspec", "alignas", "decltype", "noexcept", "requires", "explicit")
_NOT_A_NAME = frozenset({*_CUDA_ATTRIBUTES, *_ATTRIBUTES, "void"})
_NOTHING = Token("mark", "", 0, 0, False)


def find_candidates(pieces: Sequence[str]) -> tuple[Candidate, ...]:
    """Find what looks like a `__global__` function in the pieces of a source.

    Comments, strings, preprocessor lines and explicit instantiations do not count. A kernel that is declared and later
    defined comes once, with the names of the definition if it has them.

    Example:
        >>> find_candidates(["namespace ns { __global__ void scale(float* x, int n) {} }"])[0].name
        'ns::scale'
    """
    return _find_candidates(tuple(pieces))


@functools.lru_cache(maxsize=8)  # asked before the compile, and for each architecture
def _find_candidates(pieces: tuple[str, ...]) -> tuple[Candidate, ...]:
    found: dict[tuple[str, bool, tuple[str, ...]], tuple[Candidate, bool]] = {}
    for piece, text in enumerate(pieces):
        if "__global__" not in text and "\\\n" not in text and "\\\r" not in text:
            continue
        for declared in _Scanner(tokenize(text), piece).scan():
            name, is_template, types = declared[0].name, declared[0].is_template, declared[0].types
            key = (name, is_template, tuple(map(_without_top_const, types)))
            found[key] = _merge(found[key], declared) if key in found else declared
    return tuple(candidate for candidate, _ in found.values())


def classify(
    text_pieces: Sequence[str], *, has_embed_cubin: bool, options: Sequence[str] = (), for_nvrtc: bool = False
) -> SourceKind:
    """Tell whether a source is device code, host code, or both in one text.

    Kernels together with `<<<…>>>` need nvcc whatever else is there, and so do kernels beside C++ for tvm-ffi that
    embeds no cubin: it launches them through the CUDA runtime. Otherwise `embed_cubin=` or something of tvm-ffi's means
    host, and `__global__`, or a variable or function for the device alone, means device.

    Args:
        text_pieces: The texts.
        has_embed_cubin: Whether there are cubins to embed.
        options: The compiler's options, which may define what the text asks for.
        for_nvrtc: Whether a launch that NVRTC does not see is none: `#ifndef __CUDACC_RTC__`.

    Example:
        >>> classify(["__global__ void k() {}"], has_embed_cubin=False)
        'device'
    """
    code = [token for text in text_pieces for token in tokenize(text) if token.kind != "comment"]
    names = names_of_options(options)
    tokens = [token for token in live_tokens(code, names) if token.kind in ("word", "mark")]
    words = {token.text for token in tokens if token.kind == "word"}
    is_host_like = {"tvm", "ffi"} <= words or any(word.startswith("TVM_FFI_") for word in words)
    if for_nvrtc and not is_host_like:
        tokens = [*live_tokens(code, {**NVRTC_NAMES, **names})]
    launches = any(token.text == "<<<" and before.text != "operator" for before, token in pairwise([_NOTHING, *tokens]))
    has_kernels = any(token.text == "__global__" and not token.in_directive for token in tokens)
    has_cubins = has_embed_cubin or any(word.startswith("TVM_FFI_EMBED_CUBIN") for word in words)
    if launches or (is_host_like and has_kernels and not has_cubins):
        return "both"
    if has_cubins or is_host_like:
        return "host"
    return "device" if words & {"__global__", "__device__", "__constant__"} else "host"


class _Scanner:
    """One pass over the tokens of one piece, with the namespaces that are open at each of them."""

    def __init__(self, tokens: Sequence[Token], piece: int) -> None:
        self._piece = piece
        self._code: list[Token] = []
        self._comments: dict[int, list[Token]] = {}  # by the index in _code of the token that follows
        self._branches: dict[int, list[str]] = {}  # `if`, `else`, `endif`, likewise
        self._scopes: list[tuple[str, ...]] = []
        self._start = 0  # of the declaration in hand
        self._saved: list[tuple[list[tuple[str, ...]], int]] = []
        for at, token in enumerate(tokens):
            if not token.in_directive:
                self._sort(token)
            elif token.text == "#" and at + 1 < len(tokens) and tokens[at + 1].line == token.line:
                self._branches.setdefault(len(self._code), []).append(tokens[at + 1].text)

    def scan(self) -> Iterator[tuple[Candidate, bool]]:
        """Yield each candidate, and whether it is a definition."""
        at = 0
        while at < len(self._code):
            self._follow_branches(at)
            text = self._code[at].text
            if text == "{":
                self._scopes.append(_namespaces(self._code[self._start : at]))
            elif text == "}" and self._scopes:
                self._scopes.pop()
            elif text == "__global__":
                declarator = _find_declarator(self._code, at + 1)
                if declarator and self._is_kernel(at):
                    yield self._candidate(at, declarator), declarator.is_definition
                    at = declarator.close
            is_access = text == ":" and at > 0 and self._code[at - 1].text in ("public", "private", "protected")
            if text in ("{", "}", ";") or is_access:
                self._start = at + 1
            at += 1

    def _sort(self, token: Token) -> None:
        if token.kind == "comment":
            self._comments.setdefault(len(self._code), []).append(token)
        else:
            self._code.append(token)

    def _follow_branches(self, at: int) -> None:
        """Let each branch of an `#if` begin where the first began, so that only one of them opens its braces."""
        for word in self._branches.pop(at, ()):
            if word.startswith("if"):
                self._saved.append((list(self._scopes), self._start))
            elif word.startswith("el") and self._saved:
                scopes, self._start = self._saved[-1]
                self._scopes = list(scopes)
            elif word == "endif" and self._saved:
                self._saved.pop()

    def _is_kernel(self, at: int) -> bool:
        """Tell a declaration from an explicit instantiation, `template __global__ void k<float>(float*)`."""
        head = [token.text for token in self._code[self._start : at]]
        instantiates = any(word == "template" and following != "<" for word, following in pairwise([*head, ""]))
        return not instantiates and "friend" not in head

    def _candidate(self, at: int, declarator: _Declarator) -> Candidate:
        head = [token.text for token in self._code[self._start : at]]
        is_template = any(
            head[i : i + 2] == ["template", "<"] and head[i + 2 : i + 3] != [">"] for i in range(len(head))
        )
        namespaces = [name for scope in self._scopes for name in scope]
        parameters = read_parameters(self._code[declarator.open + 1 : declarator.close])
        return Candidate(
            name="::".join([*namespaces, declarator.name]),
            is_template=is_template,
            parameters=tuple(name for _, name in parameters),
            types=tuple(type_ for type_, _ in parameters),
            doc=self._doc(at),
            piece=self._piece,
            line=self._code[declarator.name_at].line,
        )

    def _doc(self, at: int) -> str:
        """Return the comment right above the declaration, or right above `__global__` within it."""
        for index in range(at, self._start - 1, -1):
            before = self._code[index - 1].end_line if index else 0
            comments = [comment for comment in self._comments.get(index, ()) if comment.line > before]
            if block := _adjacent(comments, self._code[index].line):
                return _clean_comment(block)
        return ""


@dataclass(frozen=True, slots=True)
class _Declarator:
    """A function's name and the indices of its parentheses."""

    name: str
    name_at: int
    open: int
    close: int
    is_definition: bool


def _find_declarator(code: Sequence[Token], at: int) -> _Declarator | None:
    """Find name and parameters after `__global__`: the last `name(…)` before the body, attributes and macros apart."""
    found: tuple[int, int, int] | None = None  # where the name, its `(` and its `)` are
    while at < len(code) and code[at].text not in (";", "{", "}", "=", "->", "requires", "__global__"):
        token, end = code[at], at
        opening = _parameters_at(code, at)
        if token.kind == "word" and opening:
            end = find_closing(code, opening)
            if end < 0 or (code[end + 1 : end + 2] and code[end + 1].text == "(" and token.text not in _NOT_A_NAME):
                return None  # never closed, or a macro that makes the name: `NAME(k)(float* x)`
            found = found if token.text in _NOT_A_NAME else (at, opening, end)
        elif token.text == "[":
            end = max(find_closing(code, at), at)
        at = end + 1
    if found is None:
        return None
    terminator = next((token.text for token in code[at:] if token.text in (";", "{")), ";")
    name_at, opening, closing = found
    return _Declarator(_qualified_name(code, name_at, opening), name_at, opening, closing, terminator == "{")


def _parameters_at(code: Sequence[Token], at: int) -> int:
    """Return the index of the `(` after the name at `at` and its template arguments, or 0."""
    following = at + 1
    if following < len(code) and code[following].text == "<":
        following = find_angle(code, following) + 1
    return following if following < len(code) and code[following].text == "(" else 0


def _qualified_name(code: Sequence[Token], at: int, end: int) -> str:
    start = at
    while start > 1 and code[start - 1].text == "::" and code[start - 2].kind == "word":
        start -= 2
    return write_tokens(code[start:end])


def _namespaces(head: Sequence[Token]) -> tuple[str, ...]:
    """Return the names that `namespace a::b {` opens; none for any other brace."""
    start = next((at for at, token in enumerate(head) if token.text == "namespace"), None)
    if start is None:
        return ()
    names, depth = [], 0
    for token in head[start + 1 :]:
        depth += (token.text in "([") - (token.text in ")]")
        if depth == 0 and token.kind == "word" and token.text not in ("inline", "__attribute__"):
            names.append(token.text)
    return tuple(names)


def _adjacent(comments: Sequence[Token], line: int) -> list[Token]:
    """Return the comments that end right above `line`: one block comment, or a run of `//` lines."""
    block: list[Token] = []
    for comment in reversed(comments):
        if comment.in_directive or comment.end_line not in (line - 1, line):
            break
        if block and not (comment.text.startswith("//") and block[0].text.startswith("//")):
            break
        block.insert(0, comment)
        line = comment.line
    return block


def _clean_comment(comments: Sequence[Token]) -> str:
    """Take off the comment marks, the frame of stars and the rulers."""
    text = "\n".join(comment.text for comment in comments)
    if text.startswith("/*"):
        text = re.sub(r"^/\*[*!]*<?|\*+/$", "", text)
        lines = [re.sub(r"^[ \t]*\*(?!\*)", "", line) for line in text.split("\n")]
    else:
        lines = [re.sub(r"^//[/!]*<?", "", line) for line in text.split("\n")]
    kept = ["" if re.fullmatch(r"\s*[-=*/#~_+]{3,}\s*", line) else line.rstrip() for line in lines]
    return inspect.cleandoc("\n".join([kept[0].strip(), *kept[1:]]))


def _without_top_const(type_: str) -> str:
    """Drop what does not tell overloads apart: the `const` of the parameter itself."""
    return re.sub(r"^const (?=[^*&]*$)|(?<=\*) const$", "", type_)


def _merge(known: tuple[Candidate, bool], new: tuple[Candidate, bool]) -> tuple[Candidate, bool]:
    """Make one candidate of two declarations; the definition has the last word.

    Of two definitions only one is compiled, and the text does not tell which: where they differ, a parameter stays
    unnamed rather than go by the name of another.
    """
    main, other = (new[0], known[0]) if new[1] and not known[1] else (known[0], new[0])
    pairs = tuple(zip(main.parameters, other.parameters, strict=True))
    names = tuple(mine or theirs for mine, theirs in pairs)
    if known[1] and new[1]:
        names = tuple(mine if mine == theirs else "" for mine, theirs in pairs)
    return replace(main, parameters=names, doc=main.doc or other.doc), known[1] or new[1]
