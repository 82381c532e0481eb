"""The objects of a build in, one object for a link of the user's own out: upstream's `output="x.o"`.

Nothing is linked: what the C++ calls may come from other objects of that link. What is ours in it, and the same in
every such object, is weak, so that a library may hold any number of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from jitload.device.elf import HEADER, SHT_SYMTAB, read_sections, read_symbols
from jitload.host_build import Step
from jitload.toolchain import Compiler

_LAUNCHER = "_ZN7jitload2v1"  # begins the names of the launcher's functions
_BIND_GLOBAL, _BIND_WEAK = 1, 2
_ROW, _INFO = 24, 4  # the size of a symbol, and where its binding is


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
    sections = read_sections(bytes(data))
    symbols = read_symbols(sections)
    table = next(at for at, section in enumerate(sections) if section.kind == SHT_SYMTAB)
    start = _offset_of(bytes(data), table)
    for at, symbol in enumerate(symbols):
        if symbol.name in names and symbol.section and symbol.info >> 4 == _BIND_GLOBAL:
            data[start + at * _ROW + _INFO] = (_BIND_WEAK << 4) | symbol.kind
    path.write_bytes(data)


def _offset_of(data: bytes, section: int) -> int:
    """Return where a section's bytes are in the file."""
    header = HEADER.unpack_from(data)
    row = header[6] + section * header[11]
    return int.from_bytes(data[row + 24 : row + 32], "little")
