"""Make one object file of those of a build, for upstream's `output="x.o"`.

Nothing is linked: functions that the C++ calls may be in other objects of the user's own link. The launcher, and what
else is the same in each such object, becomes weak, so that a library may contain any number of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from jitload.building.ninja import Step
from jitload.elf.file import STB_GLOBAL, STB_LOCAL, STB_WEAK, STV_HIDDEN, ElfError, ElfFile, Symbol, edit_symbols
from jitload.errors import LoadError
from jitload.toolchain.host import Compiler

_LAUNCHER_PREFIX = "_ZN7jitload2v1"  # the namespace jitload::v1
_EXPORT = re.compile(rb"(?<=\0)__tvm_ffi_(?!_cubin_)\w+(?=\0)")


def merge_step(compiler: Compiler, objects: tuple[str, ...], product: str) -> Step:
    """Return the command that merges object files; a single one is copied as the compiler wrote it."""
    merge = (*compiler.command, "-r", "-nostdlib", *objects, "-o", product)
    return Step(output=product, command=merge if len(objects) > 1 else ("cp", objects[0], product), inputs=objects)


def read_undefined_symbols(objects: Iterable[Path]) -> tuple[str, ...]:
    """Return the names that objects use and none of them defines."""
    symbols = [symbol for symbol in _read_symbols(objects) if symbol.name]
    defined = {symbol.name for symbol in symbols if symbol.section and symbol.binding != STB_LOCAL}
    return tuple(sorted({symbol.name for symbol in symbols if not symbol.section} - defined))


def read_global_symbols(objects: Iterable[Path]) -> frozenset[str]:
    """Return the names that objects define for others and that only one object of a link may define."""
    return frozenset(symbol.name for symbol in _read_symbols(objects) if _is_global_definition(symbol))


def includes_launcher(names: Iterable[str]) -> bool:
    """Return whether functions of the launcher are among the names."""
    return any(name.startswith(_LAUNCHER_PREFIX) for name in names)


def make_weak(path: Path, names: Collection[str]) -> None:
    """Make symbols of an object weak: the linker takes the first of several definitions."""

    def weaken(symbol: Symbol) -> Symbol:
        if _is_global_definition(symbol) and symbol.name in names:
            return symbol._replace(info=(STB_WEAK << 4) | symbol.type)
        return symbol

    path.write_bytes(edit_symbols(path.read_bytes(), weaken))


def find_exports(path: Path) -> frozenset[str]:
    """Return what may be names of functions that an object exports to tvm-ffi, from a quick search of its bytes."""
    return frozenset(name.decode() for name in _EXPORT.findall(path.read_bytes()))


def show_exports(path: Path) -> bool:
    """Make the functions visible that an object exports to tvm-ffi; return whether any of them was hidden.

    Upstream compiles with everything visible, jitload with everything hidden that does not say otherwise.
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
