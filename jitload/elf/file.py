"""Read and write 64-bit little-endian ELF files: object files, shared libraries and cubins.

Files are parsed with `struct`: importing pyelftools would take 28 ms, a fifth of the time budget of a first build.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

ET_REL, ET_EXEC = 1, 2
EM_CUDA = 190
SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA = 0, 1, 2, 3, 4
SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_GROUP = 8, 9, 11, 17
SHF_ALLOC = 2
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_TLS = 0, 1, 2, 6
STV_HIDDEN = 2

RELA = struct.Struct("<QIIq")  # offset, type, symbol index, addend
REL = struct.Struct("<QII")

_IDENTIFICATION = b"\x7fELF\2\1"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
HEADER_SIZE = _HEADER.size
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_ALIGNMENT = 1 << 24


class ElfError(ValueError):
    """A file is not ELF, or is damaged. The message says what is wrong."""


class Header(NamedTuple):  # a NamedTuple, because a dataclass takes eight times as long to define
    """The header of an ELF file."""

    identification: bytes
    type: int
    machine: int
    version: int
    entry_point: int
    segment_table: int
    section_table: int
    flags: int
    header_size: int
    segment_entry_size: int
    segment_count: int
    section_entry_size: int
    section_count: int
    section_names: int

    @property
    def abi_version(self) -> int:
        """The version of the ABI, which CUDA increases with its own releases."""
        return self.identification[8]


def file_size(head: bytes) -> int:
    """Return the size of an ELF file, given its first `HEADER_SIZE` bytes.

    The last part of the file must be the table of segments or of sections, as in cubins.
    """
    header = Header(*_HEADER.unpack_from(head))
    return max(
        header.segment_table + header.segment_count * header.segment_entry_size,
        header.section_table + header.section_count * header.section_entry_size,
    )


class Section(NamedTuple):
    """A section of an ELF file. `data` is empty if the file contains no bytes for the section."""

    name: str
    type: int
    flags: int = 0
    address: int = 0
    offset: int = 0
    size: int = 0
    link: int = 0
    info: int = 0
    alignment: int = 1
    entry_size: int = 0
    data: bytes | memoryview = b""


class Symbol(NamedTuple):
    """An entry of a symbol table. `section` is the index of the section that defines the symbol, or 0 if none does."""

    name: str
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def type(self) -> int:
        """What the symbol names: a constant `STT_…`, such as `STT_FUNC` for a function."""
        return self.info & 0xF

    @property
    def binding(self) -> int:
        """Which files see the symbol: a constant `STB_…`, such as `STB_LOCAL`."""
        return self.info >> 4

    @property
    def visibility(self) -> int:
        """Whether other libraries see the symbol: a constant `STV_…`, such as `STV_HIDDEN`."""
        return self.other & 3


class ElfFile:
    """A parsed ELF file.

    Attributes:
        header: The header of the file.
        sections: The sections in the order of the file, beginning with ELF's empty section.

    Raises:
        ElfError: The bytes are not a 64-bit little-endian ELF file, or are cut off or damaged.
    """

    def __init__(self, data: bytes) -> None:
        if not data.startswith(_IDENTIFICATION):
            raise ElfError(f"it begins with {data[:8]!r}, unlike a 64-bit little-endian ELF file")
        if len(data) < _HEADER.size:
            raise ElfError(f"it is cut off after {len(data)} bytes")
        self.header = header = Header(*_HEADER.unpack_from(data))
        view = memoryview(data)
        # A cubin usually ends with the table of segments, so this check finds most cubins that are cut off.
        segments_size = header.segment_count * header.segment_entry_size
        read_bytes(view, header.segment_table, segments_size, "the table of segments")
        if not header.section_count or header.section_entry_size != _SECTION.size:
            raise ElfError("it has no table of sections")
        table = read_bytes(view, header.section_table, header.section_count * _SECTION.size, "the table of sections")
        rows = list(_SECTION.iter_unpack(table))
        if header.section_names >= len(rows) or rows[header.section_names][1] != SHT_STRTAB:
            raise ElfError("its section names are missing")
        _, _, _, _, offset, size, *_ = rows[header.section_names]
        names = bytes(read_bytes(view, offset, size, "the section names"))
        self.sections = [_read_section(view, row, names) for row in rows]

    def symbols(self, table_type: int = SHT_SYMTAB) -> list[Symbol]:
        """Return the symbols of the symbol table with the section type `table_type`, in the order of the table.

        Raises:
            ElfError: There is no such table, or it is damaged.
        """
        table = next((section for section in self.sections if section.type == table_type), None)
        if table is None or len(table.data) % _SYMBOL.size:
            raise ElfError("it has no table of symbols")
        if table.link >= len(self.sections) or self.sections[table.link].type != SHT_STRTAB:
            raise ElfError("the names of its symbols are missing")
        names = bytes(self.sections[table.link].data)
        return [Symbol(_read_string(names, row[0]), *row[1:]) for row in _SYMBOL.iter_unpack(table.data)]


def read_bytes(data: memoryview, offset: int, size: int, description: str) -> memoryview:
    """Return `size` bytes of the data, beginning at `offset`.

    Raises:
        ElfError: The data ends before these bytes do. `description` names the bytes in the message.
    """
    if offset + size > len(data):
        raise ElfError(f"{description} should end at byte {offset + size}, but there are only {len(data)}")
    return data[offset : offset + size]


def _read_section(data: memoryview, row: tuple[int, ...], names: bytes) -> Section:
    name = _read_string(names, row[0])
    _, type_, _, _, offset, size, *_ = row
    has_data = type_ not in (SHT_NULL, SHT_NOBITS)
    return Section._make((name, *row[1:], read_bytes(data, offset, size, f"section {name!r}") if has_data else b""))


def _read_string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if end < 0:
        raise ElfError("a name lies outside its table")
    return table[offset:end].decode(errors="surrogateescape")


class DynamicSymbols(NamedTuple):
    """The names that a shared library defines, and the names that it needs from other libraries.

    Both are in the order of the library's symbol table.
    """

    defined: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()


def read_dynamic_symbols(data: bytes) -> DynamicSymbols:
    """Return the dynamic symbols of a shared library, or no symbols if the data is not a shared library.

    Example:
        >>> read_dynamic_symbols(Path("vec.so").read_bytes()).undefined
        ('TVMFFIErrorSetRaisedFromCStr', …)
    """
    try:
        symbols = ElfFile(data).symbols(SHT_DYNSYM)
    except ElfError:
        return DynamicSymbols()
    return DynamicSymbols(
        defined=tuple(symbol.name for symbol in symbols if symbol.section and symbol.name),
        undefined=tuple(symbol.name for symbol in symbols if not symbol.section and symbol.name),
    )


# ---- writing -----------------------------------------------------------------------------------------------------


def edit_symbols(data: bytes, edit: Callable[[Symbol], Symbol]) -> bytes:
    """Return an ELF file with each symbol replaced by `edit(symbol)`. Names and order of the symbols do not change."""
    file = ElfFile(data)
    symbols = file.symbols()
    table = next(section for section in file.sections if section.type == SHT_SYMTAB)
    rows = zip(_SYMBOL.iter_unpack(table.data), map(edit, symbols), strict=True)
    edited = b"".join(_SYMBOL.pack(name, *symbol[1:]) for (name, *_), symbol in rows)
    return data[: table.offset] + edited + data[table.offset + table.size :]


def replace_symbols(sections: Sequence[Section], symbols: Sequence[Symbol]) -> list[Section]:
    """Return the sections with `symbols` as the symbol table. The local symbols must come first, as ELF requires."""
    index, table = next((index, section) for index, section in enumerate(sections) if section.type == SHT_SYMTAB)
    strings, offsets = _add_strings(sections[table.link].data, [symbol.name for symbol in symbols])
    rows = b"".join(_SYMBOL.pack(offsets[symbol.name], *symbol[1:]) for symbol in symbols)
    first_global = sum(symbol.binding == STB_LOCAL for symbol in symbols)
    edited = list(sections)
    edited[index] = table._replace(data=rows, info=first_global)
    edited[table.link] = edited[table.link]._replace(data=strings)
    return edited


def write_elf(header: Header, sections: Sequence[Section]) -> bytes:
    """Return an ELF file with these sections and no segments. The sections' offsets and sizes are computed."""
    strings, name_offsets = _add_strings(sections[header.section_names].data, [section.name for section in sections])
    out = bytearray(_HEADER.size)
    rows = b""
    for index, section in enumerate(sections):
        if section.alignment > _MAX_ALIGNMENT:
            raise ElfError(f"section {section.name!r} is aligned to {section.alignment} bytes")
        data = strings if index == header.section_names else section.data
        out += bytes(-len(out) % max(section.alignment, 1))
        size = section.size if section.type in (SHT_NULL, SHT_NOBITS) else len(data)
        row = section._replace(offset=len(out) if index else 0, size=size)
        rows += _SECTION.pack(name_offsets[section.name], *row[1:-1])
        out += data
    out += bytes(-len(out) % 8)
    header = header._replace(section_table=len(out), section_count=len(sections))
    out[: _HEADER.size] = _HEADER.pack(*header)
    return bytes(out) + rows


def _add_strings(table: bytes | memoryview, strings: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """Add missing strings to a string table. Return the table, and a dictionary from each string to its offset."""
    extended, offsets, position = bytearray(table or b"\0"), dict[bytes, int](), 0
    for text in bytes(extended).split(b"\0")[:-1]:
        offsets[text] = position
        position += len(text) + 1
    encoded = {string: string.encode(errors="surrogateescape") for string in strings}
    for text in encoded.values():
        if text not in offsets:
            offsets[text] = len(extended)
            extended += text + b"\0"
    return bytes(extended), {string: offsets[text] for string, text in encoded.items()}
