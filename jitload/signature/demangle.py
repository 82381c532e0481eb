"""Demangles C++ symbols, and reads kernels' names and types from them."""

from __future__ import annotations

import ctypes
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from jitload.errors import SignatureError, ToolchainError

if TYPE_CHECKING:
    from jitload.model import Variable

# The libraries that may have the demangler; Linux has libstdc++. None stands for the process itself, into which torch
# or Python may have loaded a C++ library.
_CXX_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", None)
# NVRTC puts what is internal to a file in a namespace whose name contains the process id.
_INTERNAL_NAMESPACE = re.compile(r"\(anonymous namespace\)::|\b_(?:INTERNAL|GLOBAL_)_\w+::")


@lru_cache(maxsize=4096)
def demangle(symbol: str) -> str | None:
    """Demangle an Itanium C++ symbol.

    Unnamed namespaces are left out, because they have no name in C++: `(anonymous namespace)::k(int)` is `k(int)`.

    Returns:
        The readable text, such as `void ns::scale<float>(float*)`. None if `symbol` is not a mangled C++ name, or if
        the demangler rejects it: the demangler of libstdc++ rejects names longer than 1,024 characters.

    Example:
        >>> demangle("_Z5scalePfi")
        'scale(float*, int)'
    """
    if not symbol.startswith("_Z") or "\0" in symbol:
        return None
    cxa_demangle, free = _load_demangler()
    status = ctypes.c_int()
    text = cxa_demangle(symbol.encode("utf-8", "surrogateescape"), None, None, ctypes.byref(status))
    if not text:
        return None
    try:
        readable = ctypes.string_at(text).decode("utf-8", "replace")
    finally:
        free(text)
    return _INTERNAL_NAMESPACE.sub("", readable)


def demangle_variables(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """Return the variables with their C++ names filled in."""
    return tuple(variable._replace(name=demangle(variable.symbol) or variable.symbol) for variable in variables)


def read_symbol(symbol: str, expression: str) -> tuple[str, tuple[str, ...] | None]:
    """Return a kernel's C++ name and the types in its symbol.

    The types are None for an `extern "C"` symbol, and for a symbol that the demangler rejects. The name may then come
    from `expression`, which is the kernel's C++ expression, or "".
    """
    readable = demangle(symbol)
    if readable is None and symbol.startswith("_Z") and expression:
        target = re.fullmatch(r"static_cast<.*>\((.*)\)", expression)
        return (target[1] if target else expression).removeprefix("::"), None
    if readable is None or not readable.endswith(")"):
        # The symbol lacks the namespaces, which the expression has. But the name in the expression may be a macro: then
        # only the symbol has the real name.
        is_name = expression.endswith(symbol) and re.fullmatch(r"(?:::)?(?:\w+::)*", expression.removesuffix(symbol))
        return (expression.removeprefix("::") if is_name else symbol), None
    declarator, types = _split_function(readable)
    return split_top_level(declarator, " ")[-1] or symbol, types  # a template's symbol begins with the return type


def read_probe(lowered: str) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the parameter types of a kernel, and the same types with enums replaced by integers.

    `lowered` is the mangled name of the kernel's probe. A probe is a template instance with these types in its
    arguments. Both results are None if the name cannot be read.
    """
    readable = demangle(lowered)
    if readable is None or "<" not in readable:
        return None, None
    types = [_split_function(function)[1] for function in template_arguments(readable)]
    return types[0], types[-1]


class HostProbe(NamedTuple):
    """The facts that a probe gives about a host function. A probe is a template instance that `host_call.h` makes.

    Attributes:
        name: The exported name.
        result: The type of the function's result.
        types: The types of the parameters.
        kind: The kind of the result, as a number from `host_result.h`.
        sizes: The size of each parameter in bytes, or 0 if its type cannot be passed.
        alignments: The alignment of each parameter in bytes.
    """

    name: str
    result: str
    types: tuple[str, ...]
    kind: int
    sizes: tuple[int, ...]
    alignments: tuple[int, ...]


def read_host_probe(symbol: str) -> HostProbe:
    """Return the facts that a probe's symbol gives about a host function."""
    readable = demangle(symbol)
    if readable is None:
        raise SignatureError(
            "the types of a host function cannot be read: its mangled name is too long, or the compiler left it out. "
            "Export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function) instead."
        )
    function, name, *numbers = template_arguments(readable)[:-1]
    result, types = _split_function(function)
    kinds, sizes, alignments = (tuple(int(n) for n in re.findall(r"(\d+)ul", text)) for text in numbers)
    return HostProbe(name.removeprefix("__jitload_name_"), result.strip(), types or (), kinds[0], sizes, alignments)


def name_number(name: str) -> int:
    """Return the CRC-32 of a name, for use as a template argument."""
    return zlib.crc32(name.encode())


def _split_function(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Split `scale(float*, int)` at its last parentheses into `scale` and the types `("float*", "int")`.

    A text that does not end with parentheses gives `("", None)`.
    """
    start = max(find_outside_brackets(text, "("), default=-1)
    if start < 0 or not text.endswith(")"):
        return "", None
    parameters = text[start + 1 : -1].strip()
    if parameters in ("", "void"):
        return text[:start], ()
    return text[:start], tuple(type_.strip() for type_ in split_top_level(parameters, ","))


def template_arguments(text: str) -> list[str]:
    """Return the arguments in the `<…>` of a template instance, such as `__jitload_field<0ul, float>`."""
    return [argument.strip() for argument in split_top_level(text[text.index("<") + 1 : text.rindex(">")], ",")]


def split_top_level(text: str, separator: str) -> list[str]:
    """Split a text at each separator that is outside all brackets."""
    parts, start = [], 0
    for position in find_outside_brackets(text, separator):
        parts.append(text[start:position])
        start = position + 1
    return [*parts, text[start:]]


def find_outside_brackets(text: str, characters: str) -> Iterator[int]:
    """Yield the positions of these characters outside all brackets. They may be opening brackets themselves."""
    depth = 0
    for match in re.finditer(f"[][<>(){{}}{re.escape(characters)}]", text):
        if depth == 0 and match[0] in characters:
            yield match.start()
        depth += (match[0] in "<([{") - (match[0] in ">)]}")


@cache
def _load_demangler() -> tuple[Callable[..., int | None], Callable[[int], None]]:
    """Return the demangler of a C++ runtime library, and the C library's `free`."""
    for name in _CXX_LIBRARIES:
        with suppress(OSError, AttributeError):
            cxa_demangle, free = ctypes.CDLL(name)["__cxa_demangle"], ctypes.CDLL(None)["free"]
            cxa_demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
            cxa_demangle.restype = ctypes.c_void_p
            free.argtypes = (ctypes.c_void_p,)
            free.restype = None
            return cxa_demangle, free
    raise ToolchainError(
        "reading C++ kernel names needs a C++ runtime library, and neither libstdc++ nor libc++abi could be opened.\n"
        "Install one: `apt install libstdc++6`, `dnf install libstdc++` or `conda install libstdcxx-ng`."
    )
