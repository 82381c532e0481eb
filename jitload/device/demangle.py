"""Mangled C++ name in, readable C++ text out: the name, and the types in it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Protocol

from jitload.device.mangled import read_mangled
from jitload.errors import ToolchainError
from jitload.model import Variable

# libstdc++ first: it is what Linux has; None asks the process itself, where torch or Python may have brought one.
_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++abi.dylib", "libc++.1.dylib", None)
_MAX_LENGTH = 1024  # libstdc++ refuses what is longer
# NVRTC names the namespace of a file, with the process id in it, where the file keeps something to itself.
_INTERNAL = re.compile(r"\(anonymous namespace\)::|\b_(?:INTERNAL|GLOBAL_)_\w+::")


@lru_cache(maxsize=4096)
def demangle(symbol: str) -> str | None:
    """Demangle an Itanium C++ symbol.

    Namespaces without a name are left out, because nobody can write them: `(anonymous namespace)::k(int)` is `k(int)`.

    Returns:
        The readable text, `void ns::scale<float>(float*)`, or None when `symbol` is no mangled C++ name.

    Raises:
        ToolchainError: No C++ runtime library with a demangler was found.

    Example:
        >>> demangle("_Z5scalePfi")
        'scale(float*, int)'
    """
    if not symbol.startswith("_Z") or "\0" in symbol:
        return None
    readable = read_mangled(symbol) if len(symbol) > _MAX_LENGTH else _demangle_short(symbol)
    return readable and _INTERNAL.sub("", readable)


def _demangle_short(symbol: str) -> str | None:
    functions = _runtime()
    status = ctypes.c_int()
    text = functions.cxa_demangle(symbol.encode("utf-8", "surrogateescape"), None, None, ctypes.byref(status))
    if not text:
        return None
    try:
        return ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        functions.free(text)


def demangle_variables(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """Return variables, as a cubin or an object file has them, with their C++ names instead of their symbols."""
    return tuple(
        Variable(name=demangle(variable.symbol) or variable.symbol, symbol=variable.symbol, size=variable.size)
        for variable in variables
    )


def read_symbol(symbol: str, expression: str) -> tuple[str, tuple[str, ...] | None]:
    """Return a kernel's C++ name and the types in its symbol; an `extern "C"` symbol has none."""
    readable = demangle(symbol)
    if readable is None or not readable.endswith(")"):
        # The expression has the namespaces; where a macro stands for the name, only the symbol has the name.
        is_name = re.fullmatch(rf"(?:::)?(?:\w+::)*{re.escape(symbol)}", expression)
        return (expression.removeprefix("::") if is_name else symbol), None
    before, types = _split_function(readable)
    return _split_top(before, " ")[-1] or symbol, types  # a template's symbol has the return type in front


def read_probe(lowered: str) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the kernel's types as they are, and with enums replaced, from the lowered name of its probe."""
    readable = demangle(lowered)
    if readable is None or "<" not in readable:
        return None, None
    functions = _split_top(readable[readable.index("<") + 1 : readable.rindex(">")], ",")
    types = [_split_function(function.strip())[1] for function in functions]
    return types[0], types[-1]


def _split_function(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Split `scale(float*, int)` or `void (*)(int)` into what stands before the last parentheses, and their types."""
    start = max((at for at, depth in enumerate(_depths(text)) if depth == 0 and text[at] == "("), default=-1)
    if start < 0 or not text.endswith(")"):
        return "", None
    inner = text[start + 1 : -1].strip()
    if inner in ("", "void"):
        return text[:start], ()
    return text[:start], tuple(part.strip() for part in _split_top(inner, ","))


def _split_top(text: str, separator: str) -> list[str]:
    """Split where the separator stands outside all brackets."""
    parts, start = [], 0
    for at, depth in enumerate(_depths(text)):
        if depth == 0 and text[at] == separator:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def _depths(text: str) -> Iterator[int]:
    """Yield for each character how many brackets are open before it; closing ones belong inside."""
    depth = 0
    for character in text:
        yield depth
        depth += (character in "<([{") - (character in ">)]}")


class _Foreign(Protocol):
    def __call__(self, *arguments: object) -> int: ...


class _Runtime:
    """The two C functions that demangling needs."""

    def __init__(self, cxa_demangle: _Foreign, free: _Foreign) -> None:
        self.cxa_demangle = cxa_demangle
        self.free = free


@cache
def _runtime() -> _Runtime:
    for name in _LIBRARIES:
        try:
            cxa_demangle = ctypes.CDLL(name)["__cxa_demangle"]
            free = ctypes.CDLL(None)["free"]
        except (OSError, AttributeError, TypeError):  # Windows refuses None with a TypeError
            continue
        cxa_demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        cxa_demangle.restype = ctypes.c_void_p
        free.argtypes = (ctypes.c_void_p,)
        free.restype = None
        return _Runtime(cxa_demangle, free)
    raise ToolchainError(
        "reading C++ kernel names needs a C++ runtime library, and neither libstdc++ nor libc++abi could be opened.\n"
        "Install one: `apt install libstdc++6`, `dnf install libstdc++` or `conda install libstdcxx-ng`."
    )
