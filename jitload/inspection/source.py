"""Shows the CUDA source of one kernel: the text of its definition, with the comment above it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitload.cpptext.declarations import find_candidates
from jitload.cpptext.lexer import Token, tokenize
from jitload.inspection.code import read_entry

_SOURCE = re.compile(r"(?:source\d+|c(?:pp|uda)_sources)\.(?:cu|cc)")


def read_source(facts: Mapping[str, Any], origin: Path) -> str | None:
    """Return the definition of a typed function's kernel, or None if its source is not kept in a cache entry.

    Args:
        facts: The description of the function.
        origin: The library's file, in the cache entry if it came from one.
    """
    if "kernel" not in facts:
        return None
    name = facts["kernel"]["name"].partition("<")[0]
    texts = kept_texts(origin)
    for candidate in find_candidates(texts):
        if candidate.name == name or candidate.name.endswith(f"::{name}"):
            return _definition(texts[candidate.piece], candidate.line)
    return None


def kept_texts(origin: Path) -> list[str]:
    """Return the sources that are kept in the cache entry of a library, or nothing if it is not in one."""
    manifest = read_entry(origin)
    names = [name for name in (manifest["files"] if manifest else ()) if _SOURCE.fullmatch(name)]
    names.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    return [(origin.parent / name).read_text(encoding="utf-8", errors="replace") for name in names]


def _definition(text: str, line: int) -> str:
    """Return the lines of the function whose name is on a line, counted from 1."""
    tokens = tokenize(text)
    index = next(number for number, token in enumerate(tokens) if token.line >= line and token.kind == "word")
    first, last = _first_line(tokens, index), _last_line(tokens, index)
    return "\n".join(text.splitlines()[first - 1 : last])


def _first_line(tokens: list[Token], index: int) -> int:
    """Return the first line after the previous declaration, where comments, attributes or `template <…>` may begin."""
    first = index
    while first and tokens[first - 1].text not in {";", "{", "}"} and not tokens[first - 1].in_directive:
        first -= 1
    while tokens[first].kind == "comment" and tokens[first].line == tokens[first - 1].end_line and first:
        first += 1  # it belongs to the previous declaration
    return tokens[first].line


def _last_line(tokens: list[Token], index: int) -> int:
    """Return the line of the brace that ends the function's body."""
    depth = 0
    for token in tokens[index:]:
        if token.kind == "punctuator" and token.text in "{}":
            depth += 1 if token.text == "{" else -1
            if depth == 0 and token.text == "}":
                return token.line
    return tokens[-1].end_line
