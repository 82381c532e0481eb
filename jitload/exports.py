"""Kernels in, the names under which Python calls them out."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence

from jitload.model import Kernel

_MAX_LENGTH = 120


def export_names(kernels: Sequence[Kernel]) -> dict[str, Kernel]:
    """Choose a different C identifier for each kernel, as short as the others allow.

    A kernel goes by its unqualified name; where several share one, by the name with its namespaces; where they still
    do, with its template arguments, and at last with the types of its parameters; of what is longer than anybody types
    the end is replaced by a hash.

    Example:
        >>> list(export_names(cubin.kernels))  # ns::scale<float, 4> and ns::scale<int, 4>
        ['ns__scale__float_4', 'ns__scale__int_4']
    """
    names = [_unqualified(kernel) for kernel in kernels]
    for longer in (_qualified, _with_arguments, _with_types):
        names = _lengthen(names, kernels, longer)
    exports: dict[str, Kernel] = {}
    for name, kernel in zip(names, kernels, strict=True):
        exports[unused_name(_cut(name), exports)] = kernel
    return exports


def _lengthen(names: Sequence[str], kernels: Sequence[Kernel], longer: Callable[[Kernel], str]) -> list[str]:
    shared = Counter(names)
    return [longer(kernel) if shared[name] > 1 else name for name, kernel in zip(names, kernels, strict=True)]


def _unqualified(kernel: Kernel) -> str:
    return _identifier(kernel.name.partition("<")[0].rpartition("::")[2])


def _qualified(kernel: Kernel) -> str:
    return "__".join(map(_identifier, kernel.name.partition("<")[0].split("::")))


def _with_arguments(kernel: Kernel) -> str:
    _, bracket, arguments = kernel.name.partition("<")
    return _qualified(kernel) + (f"__{_words(arguments.removesuffix('>'))}" if bracket else "")


def _with_types(kernel: Kernel) -> str:
    types = [parameter.type for parameter in kernel.parameters] or ["void"]
    return "__".join([_with_arguments(kernel), *map(_words, types)])


def _words(text: str) -> str:
    """Spell C++ text in the letters of an identifier: `const float*` is `const_float_ptr`."""
    for mark, word in (("*", " ptr "), ("&", " ref "), ("-", " minus ")):
        text = text.replace(mark, word)
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "_"


def _identifier(name: str) -> str:
    """Replace what a C identifier cannot have: accents, `$`."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain and not plain[0].isdigit() else f"_{plain}"


def _cut(name: str) -> str:
    """Keep the start of a name of thousands of characters, and what tells it from others with that start."""
    if len(name) <= _MAX_LENGTH:
        return name
    return f"{name[: _MAX_LENGTH - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def unused_name(name: str, taken: Container[str]) -> str:
    """Return the name, with a number where it is taken."""
    number, unused = 2, name
    while unused in taken:
        unused = f"{name}_{number}"
        number += 1
    return unused
