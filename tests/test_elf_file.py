"""ELF files are read without copying them; other files have no dynamic symbols."""

import struct
import tracemalloc

import pytest
from support.program import CUBIN

from jitload.elf.file import ElfFile, read_dynamic_symbols

DATA = CUBIN.read_bytes()


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


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", DATA, DATA[:100]])
def test_other_files_have_no_dynamic_symbols(data):
    assert read_dynamic_symbols(data) == ((), ())
