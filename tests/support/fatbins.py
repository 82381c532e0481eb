"""Fatbins as nvcc writes them."""

from __future__ import annotations

import struct


def fatbin_of(*images: tuple[int, int, bytes] | tuple[int, int, bytes, int]) -> bytes:
    """Return a fatbin of images: their kind (1 is PTX, 2 is a cubin), architecture, bytes and, if not 0, flags."""
    parts = []
    for kind, sm, data, *flags in images:
        padded = data + bytes(-len(data) % 8)
        header = struct.pack("<HHIQIIHHI8xQ", kind, 0x101, 64, len(padded), 0, 0, 8, 1, sm, *flags or (0,))
        parts.append(header.ljust(64, b"\0") + padded)
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
