"""Finds out from a kernel's source whether the kernel reads the memory behind a parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jitload.cpptext.declarations import find_candidates
from jitload.cpptext.lexer import Token, tokenize
from jitload.cpptext.preprocessor import macros_with, split_directives
from jitload.cpptext.scopes import find_closing
from jitload.inspection.code import kept_texts

_HAS_OWN_HEADER = re.compile(r'#[ \t]*include[ \t]*"')  # macros in such a header are not seen


def only_stores(function: Any, position: int) -> bool:
    """Return whether a function is a kernel that stores to the memory of an argument, but never reads it.

    The answer is False if the source does not show it, for example if the kernel passes the pointer on.
    """
    facts = getattr(function, "_jitload_facts", {})
    if "kernel" not in facts or facts.get("variants") or "triton" in facts:
        return False
    names = list(inspect.signature(function).parameters)
    origin: Path = function._jitload_library.origin  # noqa: SLF001  the loader sets it
    texts = kept_texts(origin)
    kernel = facts["kernel"]["name"].partition("<")[0].rpartition("::")[2]
    overloads = [c for c in find_candidates(tuple(texts)) if c.name.rpartition("::")[2] == kernel]
    if len(overloads) != 1 or any(map(_HAS_OWN_HEADER.search, texts)):
        return False
    definition = _definition(tokenize(texts[overloads[0].piece]), kernel, overloads[0].line)
    runs = [run for text in texts for run in split_directives(tokenize(text))]
    return not macros_with((names[position],), runs) and has_only_stores(definition, names[position])


def _definition(tokens: Sequence[Token], name: str, line: int) -> Sequence[Token]:
    """Return the tokens of a function from its name, which is on the given line, or [] if it is only declared."""
    named = (index for index, token in enumerate(tokens) if token.line == line and token.text == name)
    first = next(named, len(tokens) - 1)
    end = next((index for index in range(first, len(tokens)) if tokens[index].text in ("{", ";")), first)
    return tokens[first : find_closing(tokens, end) + 1] if tokens[end].text == "{" else []


def has_only_stores(tokens: Sequence[Token], name: str) -> bool:
    """Return whether each use of a parameter in a function's body is a store: `y[i] = …` or `*y = …`.

    Example:
        >>> bodies = ("y[0] = 1;", "y[0] += 1;", "g(y);")
        >>> [has_only_stores(tokenize(f"f(int* y) {{ {body} }}"), "y") for body in bodies]
        [True, False, False]
    """
    body = next((index for index, token in enumerate(tokens) if token.text == "{"), len(tokens))
    uses = [index for index, token in enumerate(tokens) if token.text == name]
    is_declared = any(index < body for index in uses)
    return is_declared and all(_is_store(tokens, index) for index in uses if index > body)


def _is_store(tokens: Sequence[Token], index: int) -> bool:
    end = index + 1
    while tokens[end].text == "[":
        end = find_closing(tokens, end) + 1
    is_element = end > index + 1 or tokens[index - 1].text == "*"
    return is_element and tokens[end].text == "=" and tokens[end + 1].text != "="
