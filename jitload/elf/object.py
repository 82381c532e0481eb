"""A compiler's object file and bytes in, an object file with the bytes behind symbols of its own out.

The file is edited here: an assembler with `.incbin` and `ld -r` would do all but make the symbols local, and that takes
binutils' objcopy, which many machines with a compiler have not got. So nothing but Python is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jitload.errors import LoadError

PREFIX = "__tvm_ffi__cubin_"

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ET_REL, _EM_CUDA = 1, 190
_KINDS = {2: "a program", 3: "a shared library", 4: "a core dump"}
_FIRST_RESERVED = 0xFF00  # indices of sections from here on mean something else

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL, _SHT_GROUP = 1, 2, 4, 8, 9, 17
_SHT_LLVM_ADDRSIG, _SHT_LLVM_CALL_GRAPH_PROFILE = 0x6FFF4C03, 0x6FFF4C09
_SHF_ALLOC = 2
_STT_OBJECT, _STT_NOTYPE = 1, 0  # of a local symbol: the binding, in the upper half, is 0
_ALIGNMENT, _MOST_ALIGNED = 16, 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    name: str
    row: tuple[int, ...]  # name, type, flags, address, offset, size, link, info, alignment, size of an entry
    data: bytes

    @property
    def type(self) -> int:
        return self.row[1]

    @property
    def link(self) -> int:
        return self.row[6]

    def with_fields(self, **fields: int) -> _Section:
        places = {"name_at": 0, "offset": 4, "size": 5, "link": 6, "info": 7}
        row = list(self.row)
        for field, value in fields.items():
            row[places[field]] = value
        return replace(self, row=tuple(row))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile:
    """A relocatable ELF file, taken apart.

    Attributes:
        path: What messages call it.
        header: The fields of the ELF header.
        sections: The sections in order, the empty first one among them.
        symbols: The table of symbols: name, and the fields behind it.
    """

    path: str
    header: tuple[bytes | int, ...]
    sections: tuple[_Section, ...]
    symbols: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The cubins that the code asks for and the file has not got: the names in `TVM_FFI_EMBED_CUBIN(…)`."""
        missing = {name.removeprefix(PREFIX) for name in self._cubin_symbols(is_defined=False)}
        present = {name.removeprefix(PREFIX) for name in self._cubin_symbols(is_defined=True)}
        ends = {f"{name}_end" for name in missing | present}
        return tuple(sorted(missing - ends))

    def _cubin_symbols(self, *, is_defined: bool) -> list[str]:
        return [name for name, row in self.symbols if name.startswith(PREFIX) and bool(row[2]) == is_defined]


def read_object(data: bytes, *, path: str) -> ObjectFile:
    """Take an object file apart.

    Raises:
        LoadError: It is none, or one that cannot be edited; the message says what it is.
    """
    if problem := _foreign(data):
        raise LoadError(f"{path} {problem}")
    try:
        header = _HEADER.unpack_from(data)
        sections = _read_sections(data, header)
        tables = [section for section in sections if section.type == _SHT_SYMTAB]
        if len(tables) != 1:
            raise LoadError(f"{path} has no table of symbols: was it stripped? Compile it again.")
        names = sections[tables[0].link].data
        symbols = tuple((_string(names, row[0]), row[1:]) for row in _SYMBOL.iter_unpack(tables[0].data))
    except (struct.error, IndexError, ValueError) as error:
        raise LoadError(f"{path} is damaged or cut off. Compile it again.") from error
    if any(section.name.startswith(".gnu.lto_") for section in sections):
        raise LoadError(f"{path} {_LTO}")
    return ObjectFile(path=path, header=header, sections=sections, symbols=symbols)


_LTO = "was compiled with -flto, and there is no machine code in it yet. Compile this file with -fno-lto."
_OTHERS = (
    (b"BC\xc0\xde", _LTO),
    (b"!<arch>", "is a static library, not an object file: take the object out with `ar x`."),
    (b"\xcf\xfa\xed\xfe", "is an object file of macOS; cubins are embedded on Linux only."),
)


def _foreign(data: bytes) -> str | None:
    """Say what the bytes are when they are no object file for a 64-bit little-endian machine."""
    if data[:4] != b"\x7fELF":
        known = (problem for start, problem in _OTHERS if data.startswith(start))
        return next(known, f"is no object file: it begins with {data[:8]!r} instead of an ELF header.")
    if len(data) < _HEADER.size:
        return "is damaged or cut off. Compile it again."
    if data[4:6] != b"\x02\x01":
        return "is an object file for a machine that is not 64-bit little endian; there is no CUDA for it."
    kind, machine = struct.unpack_from("<HH", data, 16)
    if machine == _EM_CUDA:
        return "is CUDA machine code; --input-obj is the object of the C++ that has TVM_FFI_EMBED_CUBIN(name)."
    if kind != _ET_REL:
        return f"is {_KINDS.get(kind, 'an ELF file of an unknown kind')}, not an object file: compile with -c."
    return None


def _read_sections(data: bytes, header: tuple[int, ...]) -> tuple[_Section, ...]:
    table, count, names_index = header[6], header[12], header[13]
    if table + count * _SECTION.size > len(data) or not count:  # none: the number is elsewhere, or there are none
        raise ValueError
    rows = [_SECTION.unpack_from(data, table + at * _SECTION.size) for at in range(count)]
    bodies = [b"" if row[1] in (0, _SHT_NOBITS) else _cut(data, row[4], row[5]) for row in rows]
    names = bodies[names_index]
    if any(row[8] > _MOST_ALIGNED for row in rows):
        raise ValueError
    return tuple(
        _Section(name=_string(names, row[0]), row=row, data=body) for row, body in zip(rows, bodies, strict=True)
    )


def _cut(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ValueError
    return data[offset : offset + size]


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode(errors="surrogateescape")


# ---- what is added ---------------------------------------------------------------------------------------------


def embed_bytes(file: ObjectFile, name: str, image: bytes) -> bytes:
    """Return the object file with an image behind `__tvm_ffi__cubin_<name>`, ended by `…_end` and a zero byte.

    Both symbols are local: nothing outside of the object sees them, and another object may use the same name.

    Raises:
        LoadError: It has the name already, or tables that cannot be rewritten.
    """
    symbols = (f"{PREFIX}{name}", f"{PREFIX}{name}_end")
    defined = {found for found, row in file.symbols if row[2]}
    if taken := next((symbol for symbol in symbols if symbol in defined), None):
        raise LoadError(f"{file.path} has {taken} already: embed into the object as the compiler wrote it.")
    if len(file.sections) + 2 >= _FIRST_RESERVED:
        raise LoadError(f"{file.path} has {len(file.sections)} sections, more than can be rewritten.")
    home = len(file.sections)
    places = {symbols[0]: (_STT_OBJECT, 0, home, 0, len(image)), symbols[1]: (_STT_NOTYPE, 0, home, len(image), 0)}
    table, numbers, first_global = _order_symbols(file.symbols, places)
    try:
        renumbered = [*_renumber(file, numbers)]
    except (KeyError, struct.error) as error:  # it speaks of symbols that it has not got, or in half a row
        raise LoadError(f"{file.path} is damaged or cut off. Compile it again.") from error
    sections = [*renumbered, _section(f".rodata.{symbols[0]}", image + b"\0", _SHF_ALLOC, _ALIGNMENT)]
    if not any(section.name == ".note.GNU-stack" for section in sections):
        sections.append(_section(".note.GNU-stack", b"", 0, 1))  # without it the linker makes the stack executable
    return _write(file, _with_tables(sections, table, first_global))


def _section(name: str, data: bytes, flags: int, alignment: int) -> _Section:
    return _Section(name=name, row=(0, _SHT_PROGBITS, flags, 0, 0, len(data), 0, 0, alignment, 0), data=data)


_Symbols = Sequence[tuple[str, tuple[int, ...]]]


def _order_symbols(symbols: _Symbols, places: Mapping[str, tuple[int, ...]]) -> tuple[_Symbols, dict[int, int], int]:
    """Return the symbols with those at `places` made local, each old index's new one, and the first global's.

    The local ones come first in an ELF file, so that others move.
    """
    numbered = list(enumerate(symbols))
    ours = [(at, name) for at, (name, _) in numbered if name in places]
    added = [(-1, name) for name in places if name not in {name for _, name in ours}]
    local = [(at, symbol) for at, symbol in numbered if symbol[1][0] >> 4 == 0 and symbol[0] not in places]
    others = [(at, symbol) for at, symbol in numbered if symbol[1][0] >> 4 != 0 and symbol[0] not in places]
    placed = [(at, (name, places[name])) for at, name in (*ours, *added)]
    order = [*local, *placed, *others]
    numbers = {old: new for new, (old, _) in enumerate(order)}
    return [symbol for _, symbol in order], numbers, len(local) + len(placed)


def _renumber(file: ObjectFile, numbers: Mapping[int, int]) -> Iterable[_Section]:
    """Yield the sections, with the new indices of symbols in those that have any."""
    symtab = next(at for at, section in enumerate(file.sections) if section.type == _SHT_SYMTAB)
    for section in file.sections:
        if section.link != symtab:
            yield section
        elif section.type in (_SHT_RELA, _SHT_REL):
            yield replace(section, data=_renumber_relocations(section, numbers))
        elif section.type == _SHT_GROUP:
            yield section.with_fields(info=numbers[section.row[7]])
        elif section.type == _SHT_LLVM_ADDRSIG:
            yield section.with_fields(link=0)  # which tells linkers that it is out of date
        elif section.type == _SHT_LLVM_CALL_GRAPH_PROFILE:
            yield section
        else:
            raise LoadError(f"{file.path}: section {section.name!r} speaks of symbols in a way that is not known here.")


def _renumber_relocations(section: _Section, numbers: Mapping[int, int]) -> bytes:
    data = bytearray(section.data)
    for at in range(0, len(data), 24 if section.type == _SHT_RELA else 16):
        (symbol,) = struct.unpack_from("<I", data, at + 12)
        struct.pack_into("<I", data, at + 12, numbers[symbol])
    return bytes(data)


def _with_tables(sections: Sequence[_Section], symbols: _Symbols, first_global: int) -> list[_Section]:
    """Return the sections with the symbols, and their names, in place of the old ones."""
    symtab = next(section for section in sections if section.type == _SHT_SYMTAB)
    strtab = sections[symtab.link]
    names, at = _string_table([name for name, _ in symbols], strtab.data)
    rows = b"".join(_SYMBOL.pack(at[name], *row) for name, row in symbols)
    new = {
        id(symtab): replace(symtab, data=rows).with_fields(info=first_global),
        id(strtab): replace(strtab, data=names),
    }
    return [new.get(id(section), section) for section in sections]


def _string_table(wanted: Iterable[str], start: bytes) -> tuple[bytes, dict[str, int]]:
    """Return a table of strings that begins with another one, and where each name is in it."""
    table, places = bytearray(start or b"\0"), dict[str, int]()
    known = {piece: at for at, piece in _pieces(bytes(table))}
    for name in wanted:
        text = name.encode(errors="surrogateescape")
        if text not in known:
            known[text] = len(table)
            table += text + b"\0"
        places[name] = known[text]
    return bytes(table), places


def _pieces(table: bytes) -> Iterable[tuple[int, bytes]]:
    at = 0
    for piece in table.split(b"\0")[:-1]:
        yield at, piece
        at += len(piece) + 1


def _write(file: ObjectFile, sections: Sequence[_Section]) -> bytes:
    """Return the bytes of a file with these sections."""
    names_index = file.header[13]
    assert isinstance(names_index, int)
    names, places = _string_table([section.name for section in sections], sections[names_index].data)
    out = bytearray(_HEADER.size)
    rows = b""
    for at, section in enumerate(sections):
        data = names if at == names_index else section.data
        out += bytes(-len(out) % max(section.row[8], 1))
        size = len(data) if section.type not in (0, _SHT_NOBITS) else section.row[5]
        placed = section.with_fields(name_at=places[section.name], offset=len(out) if at else 0, size=size)
        rows += _SECTION.pack(*placed.row)
        out += data
    out += bytes(-len(out) % 8)
    header = [*file.header]
    header[6], header[12] = len(out), len(sections)
    out[: _HEADER.size] = _HEADER.pack(*header)
    return bytes(out) + rows
