"""The bytes of a shared library in, the names it offers and the names it needs out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_SHT_DYNSYM = 11


class DynamicSymbols(NamedTuple):  # made at each first hit, for an eighth of what a dataclass costs
    """What a library says to the dynamic loader: names it offers, in their order, and names others must offer."""

    offered: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


def read_dynamic_symbols(data: bytes) -> DynamicSymbols:
    """Read the dynamic symbols of a 64-bit little-endian ELF library; of anything else, none.

    Example:
        >>> read_dynamic_symbols(Path("vec.so").read_bytes()).needed
        ('TVMFFIErrorSetRaisedFromCStr', …)
    """
    if data[:6] != b"\x7fELF\2\1":
        return DynamicSymbols()
    try:
        symbols = list(_symbols(data))
    except (struct.error, IndexError, ValueError):
        return DynamicSymbols()
    return DynamicSymbols(
        offered=tuple(name for name, section in symbols if section and name),
        needed=tuple(name for name, section in symbols if not section and name),
    )


def _symbols(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the name of each symbol and the section it is defined in, 0 for none."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<4xI16xQQI", data, offset + at * entry_size) for at in range(count)]
    for kind, start, size, link in sections:
        if kind == _SHT_DYNSYM:
            names = sections[link][1]
            for at in range(start, start + size, 24):
                name, section = struct.unpack_from("<I2xH", data, at)
                end = data.index(b"\0", names + name)
                yield data[names + name : end].decode(errors="replace"), section
