"""Read and edit the symbols of object files: undefined symbols, and symbols exported to other objects and to tvm-ffi.

For `output="x.o"`, the objects of a build are merged but not linked, because the user may link the result with other
objects that define what it calls. The user may also link several such results. All of them may contain the launcher and
other parts of jitload, so the symbols of these parts are made weak.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from jitload.elf.file import STB_GLOBAL, STB_LOCAL, STB_WEAK, STV_HIDDEN, ElfError, ElfFile, Symbol, edit_symbols
from jitload.errors import LoadError

LAUNCHER_PREFIX = "_ZN7jitload2v1"  # the symbols in the launcher's namespace, jitload::v1, begin with this
_EXPORT = re.compile(rb"(?<=\0)__tvm_ffi_(?!_cubin_)\w+(?=\0)")


def read_undefined_symbols(objects: Iterable[Path]) -> tuple[str, ...]:
    """Return the symbols that the objects use and that none of them defines."""
    symbols = [symbol for symbol in _read_symbols(objects) if symbol.name]
    defined = {symbol.name for symbol in symbols if symbol.section and symbol.binding != STB_LOCAL}
    return tuple(sorted({symbol.name for symbol in symbols if not symbol.section} - defined))


def read_global_symbols(objects: Iterable[Path]) -> frozenset[str]:
    """Return the global symbols that the objects define. Local and weak symbols are left out."""
    return frozenset(symbol.name for symbol in _read_symbols(objects) if _is_global_definition(symbol))


def make_weak(path: Path, names: Collection[str]) -> None:
    """Make symbols of an object weak, so that the linker accepts several definitions and takes the first."""

    def weaken(symbol: Symbol) -> Symbol:
        if _is_global_definition(symbol) and symbol.name in names:
            return symbol._replace(info=(STB_WEAK << 4) | symbol.type)
        return symbol

    path.write_bytes(edit_symbols(path.read_bytes(), weaken))


def find_exports(path: Path) -> frozenset[str]:
    """Return the names of functions that an object may export to tvm-ffi, from a quick search of its bytes."""
    return frozenset(name.decode() for name in _EXPORT.findall(path.read_bytes()))


def show_exports(path: Path) -> bool:
    """Make an object's exports to tvm-ffi visible, and return whether any of them was hidden.

    jitload compiles with `-fvisibility=hidden`. C++ that was written for tvm-ffi's own build may not expect this.
    """

    def show(symbol: Symbol) -> Symbol:
        is_hidden = _is_global_definition(symbol) and symbol.visibility == STV_HIDDEN
        if is_hidden and _EXPORT.search(f"\0{symbol.name}\0".encode(errors="surrogateescape")):
            return symbol._replace(other=symbol.other & ~STV_HIDDEN)
        return symbol

    data = path.read_bytes()
    shown = edit_symbols(data, show)
    if shown == data:
        return False
    path.write_bytes(shown)
    return True


def _read_symbols(objects: Iterable[Path]) -> Iterator[Symbol]:
    for path in objects:
        try:
            yield from ElfFile(path.read_bytes()).symbols()
        except ElfError as error:
            raise LoadError(f"{path} is not an object file that can be linked: {error}. Compile it again.") from error


def _is_global_definition(symbol: Symbol) -> bool:
    return bool(symbol.section) and symbol.binding == STB_GLOBAL
