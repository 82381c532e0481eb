"""Object files that are damaged: `embed_cubin` says so, and raises nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from test_embed_cubin import CUBIN, compile_c

from jitload.errors import JitLoadError
from jitload.utils.embed_cubin import embed_cubin


def test_damaged_objects_raise_nothing_else(tmp_path: Path) -> None:
    """Bytes of the header and of the tables, one after the other."""
    source = compile_c(tmp_path, "k")
    data = source.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 40)
    for at in (*range(64), *range(table, len(data), 3)):
        source.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        try:
            embed_cubin(CUBIN, source, tmp_path / "out.o", "k")
        except JitLoadError as error:
            assert str(source) in str(error)


def test_relocations_of_symbols_that_are_not_there_are_damage(tmp_path: Path) -> None:
    """A section whose kind is changed into one that lists symbols: its bytes are no symbols' numbers."""
    source = compile_c(tmp_path, "k")
    data = bytearray(source.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 40)
    count = struct.unpack_from("<H", data, 60)[0]
    kinds = [struct.unpack_from("<I", data, table + 64 * at + 4)[0] for at in range(count)]
    at = next(
        at for at in range(count) if kinds[at] == 1 and struct.unpack_from("<Q", data, table + 64 * at + 32)[0] >= 16
    )
    struct.pack_into("<I", data, table + 64 * at + 4, 9)  # SHT_REL
    struct.pack_into("<I", data, table + 64 * at + 40, kinds.index(2))
    source.write_bytes(bytes(data))
    with pytest.raises(JitLoadError, match="damaged"):
        embed_cubin(CUBIN, source, tmp_path / "out.o", "k")
