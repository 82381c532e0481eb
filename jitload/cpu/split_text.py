"""Tokens and variables in, C++ text out."""

from __future__ import annotations

from collections.abc import Sequence

from jitload.cpptext.lexer import Token
from jitload.cpu.split_declarations import Variable


def write_tokens_apart(tokens: Sequence[Token]) -> str:
    """Write tokens as they stood: on their lines, next to each other where they were."""
    written: list[str] = []
    before: Token | None = None
    for token in tokens:
        if before is not None:
            is_next = before.start + len(before.text) == token.start
            written.append("\n" * (token.line - before.end_line) or ("" if is_next else " "))
        written.append(token.text)
        before = token
    return "".join(written)


def write_type(variable: Variable) -> str:
    """Write the type of a variable, or of its elements."""
    dropped = ("constexpr", "register")
    words = tuple(token for token in variable.specifiers if token.text not in dropped)
    return f"{write_tokens_apart(words)} {write_tokens_apart(variable.pointer)}".strip()


def declare(variable: Variable, *, is_constant: bool = False) -> str:
    """Write a declaration of one variable, with `is_constant` of one that nothing may write to."""
    words = write_tokens_apart(variable.specifiers)
    rest = write_tokens_apart((*variable.dimensions, *variable.initializer))
    said = variable.pointer or variable.specifiers
    constant = "const" if is_constant and all(token.text != "const" for token in said) else ""
    return f"{words} {write_tokens_apart(variable.pointer)} {constant} {variable.name}{rest};"
