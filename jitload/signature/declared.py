"""A hand-written signature in, the types and names in it out."""

from __future__ import annotations

import re

from jitload.device.lexer import tokenize
from jitload.device.parameters import read_parameters
from jitload.errors import SignatureError
from jitload.signature.types import known_names, resolve_aliases, unknown_name

# What stands before the parameters in a declaration; a parameter that points to a function begins likewise.
_HEAD = re.compile(r'^(?:extern\s+"C"\s+)?(?:__global__\s+)?void\s+(?:[\w:]+(?:<[^()]*>)?\s*)?\((?!\s*\*)')


def parse_signature(text: str, kernel: str) -> tuple[tuple[str, str], ...]:
    """Read a hand-written signature into pairs of type and name.

    Args:
        text: The parameters, `(float* x, int n)`, or the declaration, `void scale(float* x, int n)`.
        kernel: The kernel's name, for messages.

    Raises:
        SignatureError: The text is no parameter list, or names a type that looks like a slip of the pen.

    Example:
        >>> parse_signature("(const float* x, int n)", "scale")
        (('const float*', 'x'), ('int', 'n'))
    """
    inner = _HEAD.sub("(", text.strip())
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    tokens = [token for token in tokenize(inner) if token.kind != "comment"]
    if bad := next((t.text for t in tokens if t.text in ("{", "}", ";", "#") or t.kind == "text"), None):
        raise SignatureError(_signature_message(text, kernel, f"{bad!r} has no place in a parameter list"))
    if any(inner.count(opening) != inner.count(closing) for opening, closing in ("()", "[]", "<>")):
        raise SignatureError(_signature_message(text, kernel, "its brackets do not match"))
    parameters = read_parameters(tokens)
    for index, (type_, _) in enumerate(parameters):
        _check_written_type(type_, index, text, kernel)
    return parameters


def _check_written_type(type_: str, index: int, text: str, kernel: str) -> None:
    if not type_ or type_.endswith("..."):
        raise SignatureError(_signature_message(text, kernel, f"parameter {index + 1} has no type"))
    unknown = unknown_name(resolve_aliases(type_))
    if unknown is None:
        return
    import difflib  # for this message alone

    if alike := difflib.get_close_matches(unknown, known_names(), n=1, cutoff=0.75):
        problem = f"parameter {index + 1}: unknown type {unknown!r}, did you mean {alike[0]!r}?"
        hint = f"If it is a structure of yours, write 'struct {unknown}'."
        raise SignatureError(_signature_message(text, kernel, problem, hint))


def _signature_message(text: str, kernel: str, problem: str, hint: str = "") -> str:
    hint = hint or "Write it as in C++: '(const float* x, int n)'."
    return f"signature of kernel {kernel!r}: {problem}\n    {text}\n    {hint}"
