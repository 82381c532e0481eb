"""The bytes of an ELF file in, its sections and symbols out, and the names that a library offers and needs.

Parsed with struct alone: importing pyelftools would cost 28 ms of the 100 ms that a first build may take.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SHT_SYMTAB, SHT_RELA = 2, 4
STT_OBJECT, STT_FUNC, STT_TLS = 1, 2, 6

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_NULL, _SHT_NOBITS, _SHT_DYNSYM = 0, 8, 11


class DamageError(ValueError):
    """What a malformed file gets wrong."""


class Section(NamedTuple):  # as the others here: made at a first hit, for an eighth of what a dataclass costs
    """One section; of one without bytes in the file, the size alone."""

    name: str
    kind: int
    size: int
    link: int
    info: int
    data: bytes


class Symbol(NamedTuple):
    """One symbol; the section is 0 where another file has to define it."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def kind(self) -> int:
        """One of `STT_…`."""
        return self.info & 0xF

    @property
    def is_local(self) -> bool:
        """Whether no other file sees it."""
        return self.info >> 4 == 0


class DynamicSymbols(NamedTuple):
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
        symbols = read_symbols(read_sections(data), _SHT_DYNSYM)
    except (struct.error, IndexError, ValueError):
        return DynamicSymbols()
    return DynamicSymbols(
        offered=tuple(symbol.name for symbol in symbols if symbol.section and symbol.name),
        needed=tuple(symbol.name for symbol in symbols if not symbol.section and symbol.name),
    )


def read_sections(data: bytes) -> list[Section]:
    """Read the sections of a 64-bit little-endian ELF file in their order, the empty first one among them.

    Raises:
        DamageError: The file is cut off, or has no sections.
        struct.error: It is cut off within its header.
        UnicodeDecodeError: The name of a section is not UTF-8.
    """
    header = HEADER.unpack_from(data)
    table, entry_size, count, names_index = header[6], header[11], header[12], header[13]
    cut(data, header[5], header[9] * header[10], "the table of segments")  # the end of a cubin, as a rule
    if not count or entry_size != _SECTION.size:
        raise DamageError("it has no table of sections")
    rows = list(_SECTION.iter_unpack(cut(data, table, count * _SECTION.size, "the table of sections")))
    if names_index >= count:
        raise DamageError("its section names are missing")
    names = cut(data, rows[names_index][4], rows[names_index][5], "the section names")
    return [_read_section(data, row, names) for row in rows]


def read_symbols(sections: Sequence[Section], kind: int = SHT_SYMTAB) -> list[Symbol]:
    """Read the table of symbols, or another table of the same form, in its order.

    Raises:
        DamageError: There is no such table, or it is malformed.
        UnicodeDecodeError: The name of a symbol is not UTF-8.
    """
    table = next((section for section in sections if section.kind == kind), None)
    if table is None or table.link >= len(sections) or len(table.data) % _SYMBOL.size:
        raise DamageError("it has no table of symbols")
    names = sections[table.link].data
    return [Symbol(_string(names, name_at), *row) for name_at, *row in _SYMBOL.iter_unpack(table.data)]


def cut(data: bytes, offset: int, size: int, what: str) -> bytes:
    """Return a piece of the bytes that must have it.

    Raises:
        DamageError: They end before; `what` names the piece.
    """
    if offset + size > len(data):
        raise DamageError(f"{what} should end at byte {offset + size}, and there are {len(data)}")
    return data[offset : offset + size]


def _read_section(data: bytes, row: tuple[int, ...], names: bytes) -> Section:
    name_at, kind, _flags, _address, offset, size, link, info, _align, _entry = row
    name = _string(names, name_at)
    body = b"" if kind in (_SHT_NULL, _SHT_NOBITS) else cut(data, offset, size, f"section {name!r}")
    return Section(name, kind, size, link, info, body)


def _string(table: bytes, at: int) -> str:
    end = table.find(b"\0", at)
    if at >= len(table) or end < 0:
        raise DamageError("a name lies outside its table")
    return table[at:end].decode()
