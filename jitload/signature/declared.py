"""Reads hand-written signatures, `Launch(signature=…)`, and asks for one if the types are unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jitload.cpptext.declarations import read_parameters
from jitload.cpptext.lexer import code_tokens
from jitload.errors import SignatureError
from jitload.model import Kernel, ParameterSlot
from jitload.signature.demangle import is_refused, name_in
from jitload.signature.types import find_undeclared_name, list_type_names, resolve_aliases

# What precedes the parameters in a declaration. A parameter that is a pointer to a function begins in the same way.
_HEAD = re.compile(r'^(?:extern\s+"C"\s+)?(?:__global__\s+)?void\s+(?:[\w:]+(?:<[^()]*>)?\s*)?\((?!\s*\*)')


def parse_signature(text: str, kernel: str) -> tuple[tuple[str, str], ...]:
    """Parse a hand-written signature into pairs of type and name.

    Args:
        text: The parameters, `(float* x, int n)`, or the declaration, `void scale(float* x, int n)`.
        kernel: The kernel's name, for messages.

    Raises:
        SignatureError: The text is not a parameter list, or a type in it looks misspelled.

    Example:
        >>> parse_signature("(const float* x, int n)", "scale")
        (('const float*', 'x'), ('int', 'n'))
    """
    inner = _HEAD.sub("(", text.strip())
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    tokens = code_tokens(inner)
    if invalid := next((t.text for t in tokens if t.text in ("{", "}", ";", "#") or t.kind == "literal"), None):
        raise SignatureError(_signature_message(text, kernel, f"{invalid!r} is not allowed in a parameter list"))
    if any(inner.count(opening) != inner.count(closing) for opening, closing in ("()", "[]", "<>")):
        raise SignatureError(_signature_message(text, kernel, "its brackets do not match"))
    parameters = read_parameters(tokens)
    for index, (type_, _) in enumerate(parameters):
        _check_written_type(type_, index, text, kernel)
    return parameters


def _check_written_type(type_: str, index: int, text: str, kernel: str) -> None:
    if not type_ or type_.endswith("..."):
        raise SignatureError(_signature_message(text, kernel, f"parameter {index + 1} has no type"))
    undeclared = find_undeclared_name(resolve_aliases(type_))
    if undeclared is None:
        return
    import difflib  # only for a message

    if matches := difflib.get_close_matches(undeclared, list_type_names(), n=1, cutoff=0.75):
        problem = f"parameter {index + 1}: unknown type {undeclared!r}, did you mean {matches[0]!r}?"
        hint = f"If it is a structure of yours, write 'struct {undeclared}'."
        raise SignatureError(_signature_message(text, kernel, problem, hint))


def _signature_message(text: str, kernel: str, problem: str, hint: str = "") -> str:
    hint = hint or "Write it as in C++: '(const float* x, int n)'."
    return f"signature of kernel {kernel!r}: {problem}\n    {text}\n    {hint}"


def check_is_typed(kernel: Kernel) -> None:
    """Raise SignatureError if the types of a kernel's parameters are unknown."""
    if any(parameter.kind == "bits" for parameter in kernel.parameters):
        slots = tuple(ParameterSlot(offset=p.offset, size=p.size) for p in kernel.parameters)
        raise untyped_error(slots, kernel.name, kernel.symbol)


def untyped_error(slots: Sequence[ParameterSlot], name: str, symbol: str) -> SignatureError:
    """Return the error for a kernel with unknown types; it asks for `signature=`."""
    reason = "the types of its parameters are unknown: neither the compiler nor its symbol tells them"
    if is_refused(symbol):
        name = name_in(symbol) if name == symbol else name
        reason = (
            "the types of its parameters are unknown, because the C++ library's demangler refuses its symbol of "
            f"{len(symbol):,} characters"
        )
    return SignatureError(
        f"kernel {shorten(name)!r}: {reason}\n"
        f"    The parameters in the cubin have {list_sizes(slots)} bytes.\n"
        f'    Declare them: Launch(kernel="{shorten(name)}", signature="(const float* x, int n)").'
    )


def list_sizes(slots: Sequence[ParameterSlot]) -> str:
    """Return the sizes of parameters as a list for a message."""
    shown = ", ".join(str(slot.size) for slot in slots[:32]) or "no"
    return shown + (f", … ({len(slots)} in all)" if len(slots) > 32 else "")


def shorten(name: str) -> str:
    """Return a name for a message, cut off after 200 characters."""
    return name if len(name) <= 200 else f"{name[:200]}…"
