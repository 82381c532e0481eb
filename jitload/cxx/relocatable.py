"""The objects of a build in, one object for a link of the user's own out: upstream's `output="x.o"`.

Nothing is linked: what the C++ calls may come from other objects of that link. What is ours in it, and the same in
every such object, is weak, so that a library may hold any number of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from jitload.device.elf import HEADER, SHT_SYMTAB, Symbol, read_sections, read_symbols
from jitload.host_build import Step
from jitload.toolchain.host import Compiler

_LAUNCHER = "_ZN7jitload2v1"  # begins the names of the launcher's functions
_BIND_GLOBAL, _BIND_WEAK = 1, 2
_ROW, _INFO, _OTHER = 24, 4, 5  # the size of a symbol, and where its binding and its visibility are
_VISIBILITY, _HIDDEN = 3, 2
_EXPORT = re.compile(rb"(?<=\0)__tvm_ffi_(?!_cubin_)\w+(?=\0)")


def merge_step(compiler: Compiler, objects: tuple[str, ...], product: str) -> Step:
    """Return the command that makes one object of several; one alone stays as the compiler wrote it."""
    merge = (*compiler.command, "-r", "-nostdlib", *objects, "-o", product)
    return Step(output=product, command=merge if len(objects) > 1 else ("cp", objects[0], product), inputs=objects)


def read_missing(objects: Iterable[Path]) -> tuple[str, ...]:
    """Return the names that objects leave to others, their own put together."""
    symbols = [symbol for path in objects for symbol in read_symbols(read_sections(path.read_bytes())) if symbol.name]
    defined = {symbol.name for symbol in symbols if symbol.section and not symbol.is_local}
    return tuple(sorted({symbol.name for symbol in symbols if not symbol.section} - defined))


def asks_for_launcher(missing: Iterable[str]) -> bool:
    """Tell whether names that are missing are the launcher's."""
    return any(name.startswith(_LAUNCHER) for name in missing)


def read_defined(objects: Iterable[Path]) -> frozenset[str]:
    """Return the names that objects define once and for all."""
    return frozenset(
        symbol.name
        for path in objects
        for symbol in read_symbols(read_sections(path.read_bytes()))
        if symbol.section and symbol.info >> 4 == _BIND_GLOBAL
    )


def make_weak(path: Path, names: Collection[str]) -> None:
    """Make symbols of an object weak: of several definitions in a link, the first is taken."""
    data = bytearray(path.read_bytes())
    for place, symbol in _globals(bytes(data)):
        if symbol.name in names:
            data[place + _INFO] = (_BIND_WEAK << 4) | symbol.kind
    path.write_bytes(data)


def exports_in(path: Path) -> frozenset[str]:
    """Return what may be the names of functions that an object has for tvm-ffi, as its bytes show them."""
    return frozenset(name.decode() for name in _EXPORT.findall(path.read_bytes()))


def show_exports(path: Path) -> bool:
    """Make an object's functions for tvm-ffi visible that were written without saying so; tell whether any was not.

    Upstream compiles so that everything is visible, and we so that nothing is but what says so.
    """
    data = bytearray(path.read_bytes())
    hidden = [
        place
        for place, symbol in _globals(bytes(data))
        if symbol.other & _VISIBILITY == _HIDDEN and _EXPORT.search(f"\0{symbol.name}\0".encode())
    ]
    for place in hidden:
        data[place + _OTHER] &= ~_VISIBILITY
    if hidden:
        path.write_bytes(data)
    return bool(hidden)


def _globals(data: bytes) -> Iterator[tuple[int, Symbol]]:
    """Yield the symbols that an object defines for others, and where each is in the file."""
    sections = read_sections(data)
    table = next(at for at, section in enumerate(sections) if section.kind == SHT_SYMTAB)
    start = _offset_of(data, table)
    for at, symbol in enumerate(read_symbols(sections)):
        if symbol.section and symbol.info >> 4 == _BIND_GLOBAL:
            yield start + at * _ROW, symbol


def _offset_of(data: bytes, section: int) -> int:
    """Return where a section's bytes are in the file."""
    header = HEADER.unpack_from(data)
    row = header[6] + section * header[11]
    return int.from_bytes(data[row + 24 : row + 32], "little")
