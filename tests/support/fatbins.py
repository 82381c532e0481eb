"""Fatbins as nvcc writes them."""

import struct

from jitload.cuda.fatbin import read_fatbin
from jitload.elf.cubin import read_cubin


def symbols_in(fatbin: bytes) -> list[tuple[str, list[str]]]:
    """Return the architecture and the symbols of the kernels for each cubin that is not compressed."""
    entries = (entry for entry in read_fatbin(fatbin) if entry.code and not entry.is_ptx)
    return [(entry.arch, [kernel.symbol for kernel in read_cubin(entry.code).kernels]) for entry in entries]


def fatbin_of(*images: tuple[int, int, bytes] | tuple[int, int, bytes, int]) -> bytes:
    """Return a fatbin of images: their kind (1 is PTX, 2 is a cubin), architecture, bytes and, if not 0, flags."""
    parts = []
    for kind, sm, data, *flags in images:
        padded = data + bytes(-len(data) % 8)
        header = struct.pack("<HHIQIIHHI8xQ", kind, 0x101, 64, len(padded), 0, 0, 8, 1, sm, *flags or (0,))
        parts.append(header.ljust(64, b"\0") + padded)
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
