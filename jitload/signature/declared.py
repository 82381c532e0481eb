"""Reads hand-written signatures, `Launch(signature=…)`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from jitload.cpptext.declarations import read_parameters
from jitload.cpptext.lexer import tokenize
from jitload.errors import SignatureError
from jitload.signature.types import (
    TYPE_NAMES,
    describe_type,
    find_undeclared_name,
    resolve_aliases,
    scalars_in,
    split_type,
)

if TYPE_CHECKING:
    from jitload.model import Parameter

# Matches what precedes the parameters in a declaration, `void scale(`, but not the beginning of a parameter that is a
# pointer to a function, `void (*`.
_SPECIFIERS = r'(?:(?:extern\s*"C"|__global__|static|inline|__launch_bounds__\s*\([^()]*\))\s*)*'
_HEAD = rf"^{_SPECIFIERS}void\s+{_SPECIFIERS}(?:([\w:]+)(?:<[^()]*>)?\s*)?\((?!\s*\*)"


def parse_signature(text: str, kernel: str, other_names: Sequence[str] = ()) -> tuple[tuple[str, str], ...]:
    """Parse a hand-written signature into (type, name) pairs.

    Args:
        text: The parameters, `(float* x, int n)`, or the declaration, `void scale(float* x, int n)`.
        kernel: The kernel's name, for messages.
        other_names: Other names that the kernel may have in the declaration.

    Raises:
        SignatureError: The text is not a parameter list, or a type in it looks misspelled.

    Example:
        >>> parse_signature("(const float* x, int n)", "scale")
        (('const float*', 'x'), ('int', 'n'))
    """
    declaration = text.strip().removesuffix(";").rstrip()
    head = re.match(_HEAD, declaration)
    own_names = {re.split(r"[<(]", name)[0].strip().rpartition("::")[2] for name in (kernel, *other_names)}
    if head and head[1] and head[1].rpartition("::")[2] not in own_names:
        problem = f"it declares {head[1]!r}"
        raise _signature_error(text, kernel, problem, "Write this kernel's name, or only the parameters.")
    inner = re.sub(_HEAD, "(", declaration)
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    tokens = tokenize(inner)
    if invalid := next((t.text for t in tokens if t.text in ("{", "}", ";", "#") or t.kind == "literal"), None):
        raise _signature_error(text, kernel, f"{invalid!r} is not allowed in a parameter list")
    if any(inner.count(opening) != inner.count(closing) for opening, closing in ("()", "[]", "<>")):
        raise _signature_error(text, kernel, "its brackets do not match")
    parameters = read_parameters(tokens)
    names = [name for _, name in parameters if name]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise _signature_error(text, kernel, f"two parameters are named {repeated!r}")
    for index, (type_, name) in enumerate(parameters):
        _check_written_type(type_, name, index, (text, kernel))
    return parameters


def check_agrees(declared: Sequence[str], compiled: Sequence[Parameter], kernel: str) -> None:
    """Raise SignatureError if a hand-written signature differs from the types that the compiler reports.

    A user-defined type in the signature may be a typedef of the compiled type. For such a type, only a difference
    between a pointer and a value is an error.
    """
    if len(declared) != len(compiled):
        raise SignatureError(
            f"kernel {shorten(kernel)!r} has {len(compiled)} parameters, but its signature has {len(declared)}\n"
            f"{_LEAVE_OUT}"
        )
    facts = attrgetter("kind", "size", "dtype", "alignment")
    for index, (type_, parameter) in enumerate(zip(declared, compiled, strict=True)):
        written = describe_type(resolve_aliases(type_))
        is_own_type = split_type(written.type)[0] not in TYPE_NAMES
        is_same_kind = (written.kind == "pointer") == (parameter.kind == "pointer")
        is_same = facts(written) == facts(parameter)
        if parameter.kind == "struct":
            is_same = is_same and scalars_in(written.type) == scalars_in(parameter.type)
        if not is_same and not (is_own_type and is_same_kind):
            raise SignatureError(
                f"kernel {shorten(kernel)!r}, parameter {index + 1}: its signature says {written.type!r}, but it was "
                f"compiled with {parameter.type!r}\n{_LEAVE_OUT}"
            )


_LEAVE_OUT = "    Leave the signature out: it is only for kernels whose types the compiler does not report."
_NAME = r"[A-Za-z_]\w*(?:<.*>)?"
_TYPE_NAME = rf"(?:::)?{_NAME}(?:::{_NAME})*"
_DECLARATOR = r"(?s)(?:\s*(?:[*&]|\b(?:const|volatile)\b))*\s*(?:\(.*\)|\[[^\]]*\])*"
_NOT_TYPES = frozenset(("auto", "static", "inline", "extern", "template", "typename", "const", "volatile"))


def _check_written_type(type_: str, name: str, index: int, signature: tuple[str, str]) -> None:
    """Raise SignatureError unless a launch can pass the type of a parameter in a hand-written signature.

    `signature` is a pair for the message: the text of the signature, and the kernel's name.
    """
    text, kernel = signature
    if not type_ or type_.endswith("..."):
        raise _signature_error(text, kernel, f"parameter {index + 1} has no type")
    base, declarator = split_type(type_)
    is_type = base in TYPE_NAMES or (re.fullmatch(_TYPE_NAME, base) and base not in _NOT_TYPES)
    is_void = base == "void" and not re.search(r"[*&]", declarator)
    if not is_type or is_void or not re.fullmatch(_DECLARATOR, declarator):
        problem = f"parameter {index + 1}: {f'{type_} {name}'.strip()!r} is not a type and a name"
        raise _signature_error(text, kernel, problem)
    if "&" in declarator:
        pointer = f"{type_[: type_.index('&')].rstrip()}*" if type_.endswith("&") else "a pointer"
        problem = f"parameter {index + 1}: {f'{type_} {name}'.strip()!r} is a reference, which a launch cannot pass"
        raise _signature_error(text, kernel, problem, f"Write the pointer that the kernel gets: {pointer}")
    undeclared = find_undeclared_name(resolve_aliases(type_))
    if undeclared is None:
        return
    if not name and not declarator:
        problem = f"parameter {index + 1}: {undeclared!r} has no type, or is a type without a name"
        raise _signature_error(text, kernel, problem, f"Write 'int {undeclared}', for example.")
    import difflib  # imported here, because only this message needs it

    if matches := difflib.get_close_matches(undeclared, TYPE_NAMES, n=1, cutoff=0.75):
        problem = f"parameter {index + 1}: unknown type {undeclared!r}, did you mean {matches[0]!r}?"
        hint = f"If it is a structure of yours, write 'struct {undeclared}'."
        raise _signature_error(text, kernel, problem, hint)


def _signature_error(text: str, kernel: str, problem: str, hint: str = "") -> SignatureError:
    hint = hint or "Write it as in C++: '(const float* x, int n)'."
    return SignatureError(f"signature of kernel {kernel!r}: {problem}\n    {text}\n    {hint}")


def shorten(name: str) -> str:
    """Return a name for a message, cut off after 200 characters."""
    return name if len(name) <= 200 else f"{name[:200]}…"
