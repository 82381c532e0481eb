"""ELF files are read without copying them, and damage to them is named."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from support.program import CUBIN

from jitload.elf.file import ElfError, ElfFile, edit_symbols, read_dynamic_symbols, write_elf

DATA = CUBIN.read_bytes()
SECTION_TABLE = struct.unpack_from("<Q", DATA, 40)[0]


def test_sections_are_views_of_the_file():
    """A hostile file whose sections all cover the whole file takes no more memory than the file itself."""
    names = b"\0"
    row = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 0, 1 << 20, 0, 0, 1, 0)
    count = 10_000
    table = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, 1, 0, 0, 1, 0) + row * (count - 1)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1", 1, 62, 1, 0, 0, 65, 0, 64, 0, 0, 64, count, 0)
    data = (header + names + table).ljust(1 << 20, b"\0")
    tracemalloc.start()
    try:
        file = ElfFile(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(file.sections) == count
    assert peak < 16 << 20


DAMAGE = [
    (0, b"MZ", "it begins with b'MZ"),
    (4, b"\1", r"it begins with b'\\x7fELF\\x01"),
    (32, b"\xff" * 8, "the table of segments should end at byte"),
    (40, b"\xff" * 8, "the table of sections should end at byte"),
    (58, b"\x20\0", "it has no table of sections"),
    (60, b"\0\0", "it has no table of sections"),
    (62, b"\xff\xff", "its section names are missing"),
    (62, b"\0\0", "its section names are missing"),
    (SECTION_TABLE + 64, b"\xff\xff\xff\0", "a name lies outside its table"),
    (SECTION_TABLE + 2 * 64 + 32, b"\xff" * 8, r"section '\.\w+' should end at byte"),
]


@pytest.mark.parametrize(("offset", "patch", "message"), DAMAGE)
def test_damage_is_named(offset, patch, message):
    data = DATA[:offset] + patch + DATA[offset + len(patch) :]
    with pytest.raises(ElfError, match=f"^{message}"):
        ElfFile(data)


@pytest.mark.parametrize("length", [0, 5, 63])
def test_a_file_shorter_than_its_header(length):
    with pytest.raises(ElfError, match="it is cut off after 63 bytes" if length == 63 else "it begins with"):
        ElfFile(DATA[:length])


def test_symbols_without_names_are_damage():
    table = next(index for index, section in enumerate(ElfFile(DATA).sections) if section.type == 2)
    link = SECTION_TABLE + 64 * table + 40
    for index in (0, table, 60_000):
        with pytest.raises(ElfError, match="the names of its symbols are missing"):
            ElfFile(DATA[:link] + struct.pack("<I", index) + DATA[link + 4 :]).symbols()


def test_edited_symbols_are_all_that_changes():
    assert edit_symbols(DATA, lambda symbol: symbol) == DATA
    edited = edit_symbols(DATA, lambda symbol: symbol._replace(value=symbol.value + 1))
    assert len(edited) == len(DATA)
    before, after = ElfFile(DATA).symbols(), ElfFile(edited).symbols()
    assert [symbol._replace(value=symbol.value - 1) for symbol in after] == before


def test_what_is_written_is_read_again():
    file = ElfFile(DATA)
    again = ElfFile(write_elf(file.header._replace(segment_table=0, segment_count=0), file.sections))
    assert [section._replace(offset=0) for section in again.sections] == [
        section._replace(offset=0) for section in file.sections
    ]
    with pytest.raises(ElfError, match=r"section '\.\w+' is aligned to 18446744073709551615 bytes"):
        write_elf(file.header, [file.sections[0], file.sections[1]._replace(alignment=2**64 - 1), *file.sections[2:]])


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", DATA, DATA[:100]])
def test_other_files_have_no_dynamic_symbols(data):
    assert read_dynamic_symbols(data) == ((), ())


def test_dynamic_symbols_of_a_library():
    library = next(iter(sorted(Path("/lib").glob("*-linux-gnu/libm.so.6"))), None)
    if library is None:
        pytest.skip("there is no libm")
    symbols = read_dynamic_symbols(library.read_bytes())
    assert "cos" in symbols.defined
    assert "cos" not in symbols.undefined
    assert read_dynamic_symbols(library.read_bytes()[:-1]) == ((), ())
