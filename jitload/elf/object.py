"""Embed cubins in the object file of a C++ source that contains `TVM_FFI_EMBED_CUBIN(name)`.

An assembler with `.incbin` and `ld -r` could embed them, too, but making the symbols local requires binutils' objcopy,
which is missing on many machines that have a compiler. Editing the file requires only Python.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from jitload.elf import file as elf
from jitload.elf.file import ElfError, ElfFile, Section, Symbol, replace_symbols, write_elf
from jitload.errors import LoadError

_PREFIX = "__tvm_ffi__cubin_"

_SHN_LORESERVE = 0xFF00  # section indices from this number on have special meanings
_SHT_LLVM_ADDRSIG, _SHT_LLVM_CALL_GRAPH_PROFILE = 0x6FFF4C03, 0x6FFF4C09
_DAMAGED = "is damaged or cut off. Compile it again."


class ObjectFile:
    """An object file that cubins can be embedded in.

    Raises:
        LoadError: The data is not an object file, or cannot be edited. The message says what the data is.
    """

    def __init__(self, data: bytes, *, path: str) -> None:
        self._path = path
        if data.startswith(b"BC\xc0\xde"):
            raise LoadError(f"{path} {_LTO}")
        try:
            self._file = ElfFile(data)
            problem = _find_problem(self._file)
            self._symbols = [] if problem else self._file.symbols()
        except ElfError as error:
            raise LoadError(f"{path} is not a 64-bit little-endian object file: {error}. Compile it again.") from error
        if problem:
            raise LoadError(f"{path} {problem}")

    def missing_cubins(self) -> tuple[str, ...]:
        """Return the names in `TVM_FFI_EMBED_CUBIN(…)` whose cubins have not been embedded."""
        symbols = [symbol for symbol in self._symbols if symbol.name.startswith(_PREFIX)]
        names = {symbol.name.removeprefix(_PREFIX) for symbol in symbols}
        defined = {symbol.name.removeprefix(_PREFIX) for symbol in symbols if symbol.section}
        return tuple(sorted(names - defined - {f"{name}_end" for name in names}))

    def embed(self, name: str, cubin: bytes) -> bytes:
        """Return the object file with a cubin added.

        The cubin begins at the symbol `__tvm_ffi__cubin_<name>`, ends at `__tvm_ffi__cubin_<name>_end`, and is followed
        by a zero byte. Both symbols are local, so that other objects may use the same name.

        Raises:
            LoadError: The file already defines one of the symbols, or cannot be rewritten.
        """
        begin, end, index = f"{_PREFIX}{name}", f"{_PREFIX}{name}_end", len(self._file.sections)
        if defined := next((s.name for s in self._symbols if s.section and s.name in (begin, end)), None):
            raise LoadError(f"{self._path} already defines {defined}: embed into the object as the compiler wrote it.")
        if index + 2 >= _SHN_LORESERVE:
            raise LoadError(f"{self._path} has {index} sections, too many to be rewritten: split its source.")
        added = {
            begin: Symbol(begin, info=elf.STT_OBJECT, other=0, section=index, value=0, size=len(cubin)),
            end: Symbol(end, info=elf.STT_NOTYPE, other=0, section=index, value=len(cubin), size=0),
        }
        try:
            constants = Section(f".rodata.{begin}", elf.SHT_PROGBITS, elf.SHF_ALLOC, alignment=16, data=cubin + b"\0")
            sections = [*self._with_symbols(added), constants]
            if not any(section.name == ".note.GNU-stack" for section in sections):
                # Without this section the linker makes the stack executable.
                sections.append(Section(".note.GNU-stack", elf.SHT_PROGBITS))
            return write_elf(self._file.header, sections)
        except (KeyError, ElfError, struct.error) as error:
            raise LoadError(f"{self._path} {_DAMAGED}") from error

    def _with_symbols(self, added: Mapping[str, Symbol]) -> list[Section]:
        """Return the file's sections with symbols added to the symbol table, and all references to symbols updated."""
        existing = {symbol.name for symbol in self._symbols}
        symbols = [added.get(symbol.name, symbol) for symbol in self._symbols]
        symbols += [symbol for name, symbol in added.items() if name not in existing]
        order = sorted(range(len(symbols)), key=lambda index: symbols[index].binding != elf.STB_LOCAL)
        new_indices = {old: new for new, old in enumerate(order)}
        table = next(index for index, section in enumerate(self._file.sections) if section.type == elf.SHT_SYMTAB)
        sections = [
            self._renumber(section, new_indices) if section.link == table else section
            for section in self._file.sections
        ]
        return replace_symbols(sections, [symbols[index] for index in order])

    def _renumber(self, section: Section, new_indices: Mapping[int, int]) -> Section:
        """Return a section with new symbol indices. `new_indices` maps old indices to new ones.

        Raises:
            KeyError: The section refers to a symbol that does not exist.
            LoadError: The section is of an unknown type.
        """
        if section.type in (elf.SHT_RELA, elf.SHT_REL):
            row = elf.RELA if section.type == elf.SHT_RELA else elf.REL
            data = b"".join(
                row.pack(offset, type_, new_indices[symbol], *addend)
                for offset, type_, symbol, *addend in row.iter_unpack(section.data)
            )
            return section._replace(data=data)
        if section.type == elf.SHT_GROUP:
            return section._replace(info=new_indices[section.info])
        if section.type == _SHT_LLVM_ADDRSIG:
            return section._replace(link=0)  # a link of 0 tells linkers that the section is out of date
        if section.type == _SHT_LLVM_CALL_GRAPH_PROFILE:
            return section
        raise LoadError(f"{self._path}: section {section.name!r} refers to symbols in an unknown way.")


_LTO = "was compiled with -flto and holds no machine code yet. Compile this file with -fno-lto."


def _find_problem(file: ElfFile) -> str | None:
    """Return the reason why an ELF file is not an object file for CPUs that can be edited, or None."""
    if file.header.machine == elf.EM_CUDA:
        return "is CUDA machine code; --input-obj must be the object of the C++ that has TVM_FFI_EMBED_CUBIN(name)."
    if file.header.type != elf.ET_REL:
        return "is not an object file, but perhaps a program or a library: compile with -c."
    if sum(section.type == elf.SHT_SYMTAB for section in file.sections) != 1:
        return "has no table of symbols: was it stripped? Compile it again."
    return _LTO if any(section.name.startswith(".gnu.lto_") for section in file.sections) else None
