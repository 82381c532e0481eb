"""Macros as a source's own text defines them: tokens in, tokens without them out.

What another definition could take the place of is left alone. `Macros.used` and whoever asks the preprocessor whether
the rest is undefined make sure of that where the text is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jitload.cpptext.lexer import Token

_DIRECTIVES = frozenset(
    "define undef if ifdef ifndef elif else endif include pragma error warning line".split()  # noqa: SIM905
)
# Headers that bring no macro which stands for a part of a statement, and no operator of the user's.
_PLAIN_HEADER = re.compile(
    r"cuda(?:_\w+)?\.h|cuda/std/.*|cooperative_groups.*|(?:device|vector|math|sm)_\w+\.h|c?(?:stdio|stdint|stddef|stdlib"
    r"|math|float|limits|assert|string)(?:\.h)?|type_traits|utility|algorithm|array|tuple|functional|numeric"
)
_WHOLE = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_OPERATORS = re.compile(r"[=!+\-*/%&|^]=|\+\+|--|&&|\|\||<<|>>=")
_FAR = 1 << 40  # tokens that a macro left are next to no other
_DEEPEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Macro:
    name: str
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]
    place: tuple[int, int]
    is_conditional: bool

    @property
    def is_whole_number(self) -> bool:
        """Whether the preprocessor can tell that no other definition has taken its place."""
        whole = (t.kind == "punctuator" or (t.kind == "number" and _WHOLE.fullmatch(t.text)) for t in self.body)
        return self.parameters is None and bool(self.body) and all(whole)


class Macros:
    """The definitions in the pieces of a source."""

    def __init__(self, pieces: Sequence[Sequence[Token]]) -> None:
        self.has_strange_headers = False
        self.last_header = (-1, -1)  # of the user's: where it is included
        self._defined: dict[str, list[_Macro | None]] = {}
        for piece, tokens in enumerate(pieces):
            depth = 0
            for line in _directives(tokens):
                word = line[1].text if len(line) > 1 else ""
                depth += word.startswith("if")
                depth -= word == "endif"
                self._take(word, line, (piece, line[0].start), is_conditional=depth > 0)

    def before(self, place: tuple[int, int]) -> Expansion:
        """Return what is certain at a place, given by piece and position."""
        known = {}
        for name, found in self._defined.items():
            only = _choose([macro for macro in found if macro is None or macro.place < place])
            if only and (not only.is_conditional or only.is_whole_number) and _is_plain(only):
                known[name] = only
        return Expansion(known)

    def hide(self, word: str) -> bool:
        """Tell whether a definition names a word."""
        return any(one.text == word for found in self._defined.values() for m in found if m for one in m.body)

    def _take(self, word: str, line: Sequence[Token], place: tuple[int, int], *, is_conditional: bool) -> None:
        if word not in _DIRECTIVES and len(line) > 1:
            self.has_strange_headers = True
        elif word == "include":
            name = "".join(token.text for token in line[2:]).strip('<>"')
            if not _PLAIN_HEADER.fullmatch(name):
                self.has_strange_headers = True
                self.last_header = place
        elif word == "undef" and len(line) > 2:
            self._defined.setdefault(line[2].text, []).append(None)
        elif word == "define" and len(line) > 2:
            macro = _read_macro(line[2:], place, is_conditional=is_conditional)
            self._defined.setdefault(line[2].text, []).append(macro)


def _choose(found: Sequence[_Macro | None]) -> _Macro | None:
    """Return the definition that counts, or does so as long as the preprocessor finds its number."""
    while found and found[0] is None:
        found = found[1:]
    first = found[0] if found else None
    if first and first.is_whole_number and len(found) > 1 and all(one and one.is_conditional for one in found[1:]):
        return replace(first, is_conditional=True)
    return first if len(found) == 1 else None


class Expansion:
    """Macros at one place, and which of them were used."""

    def __init__(self, known: Mapping[str, _Macro]) -> None:
        self._known = known
        self._offset = _FAR
        self.used: set[str] = set()
        self.values: dict[str, str] = {}  # of those that another definition may have taken the place of

    def expand(self, tokens: Sequence[Token]) -> list[Token]:
        """Return the tokens with operators of several characters as one token each, and without the macros."""
        return join_operators(list(self._expand(tokens, frozenset())))

    def _expand(self, tokens: Sequence[Token], hidden: frozenset[str]) -> Iterator[Token]:
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token.text == "_Pragma" and (end := _arguments(tokens, at + 1)[0]) > at:  # as `#pragma` is left out
                at = end + 1
                continue
            macro = self._known.get(token.text) if token.kind == "word" and token.text not in hidden else None
            arguments: list[list[Token]] = []
            end = at
            if macro and macro.parameters is not None:
                end, arguments = _arguments(tokens, at + 1)
            if macro is None or end < at or len(hidden) > _DEEPEST:
                yield token
                at += 1
                continue
            self.used.add(macro.name)
            if macro.is_conditional:
                self.values[macro.name] = " ".join(part.text for part in macro.body)
            if macro.parameters is not None and len(arguments) != len(macro.parameters):
                arguments = [[]] if macro.parameters and not arguments else arguments
            given = dict(zip(macro.parameters or (), arguments, strict=False))
            self._offset += _FAR
            body = [
                replaced
                for part in macro.body
                for replaced in (
                    given[part.text]
                    if part.text in given
                    else [part._replace(line=token.line, end_line=token.line, start=part.start + self._offset)]
                )
            ]
            yield from self._expand(body, hidden | {macro.name})
            at = end + 1


def join_operators(tokens: Sequence[Token]) -> list[Token]:
    """Make one token of each operator that has several characters; `>>` stays two."""
    found: list[Token] = []
    for token in tokens:
        before = found[-1] if found else None
        if before and token.kind == before.kind == "punctuator" and before.start + len(before.text) == token.start:
            text = before.text + token.text
            if _OPERATORS.fullmatch(text):
                found[-1] = before._replace(text=text)
                continue
        found.append(token)
    return found


def _directives(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each preprocessor line."""
    line: list[Token] = []
    before = 0
    for token in tokens:
        begins = token.in_directive and token.text == "#" and token.line > before
        if line and (begins or not token.in_directive):
            yield line
            line = []
        if token.in_directive and token.kind != "comment":
            line.append(token)
        before = token.end_line
    if line:
        yield line


def _read_macro(line: Sequence[Token], place: tuple[int, int], *, is_conditional: bool) -> _Macro:
    name, rest = line[0], list(line[1:])
    parameters: tuple[str, ...] | None = None
    if rest and rest[0].text == "(" and rest[0].start == name.start + len(name.text):
        closing = next((at for at, token in enumerate(rest) if token.text == ")"), len(rest) - 1)
        parameters = tuple(token.text for token in rest[1:closing] if token.text != ",")
        rest = rest[closing + 1 :]
    return _Macro(
        name=name.text,
        parameters=parameters,
        body=tuple(token._replace(in_directive=False) for token in rest),
        place=place,
        is_conditional=is_conditional,
    )


def _is_plain(macro: _Macro) -> bool:
    return "#" not in {token.text for token in macro.body} and "..." not in (macro.parameters or ())


def _arguments(tokens: Sequence[Token], at: int) -> tuple[int, list[list[Token]]]:
    """Return where a call of a macro ends and its arguments; -1 where it is none."""
    if at >= len(tokens) or tokens[at].text != "(":
        return -1, []
    found: list[list[Token]] = [[]]
    depth = 0
    for end in range(at, len(tokens)):
        text = tokens[end].text
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        if depth == 0:
            return end, found if found != [[]] else []
        if depth == 1 and text == ",":
            found.append([])
        elif end > at:
            found[-1].append(tokens[end])
    return -1, []
