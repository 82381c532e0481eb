"""Fatbins as nvcc writes them."""

from __future__ import annotations

import struct


def fatbin_of(*images: tuple[int, int, bytes]) -> bytes:
    """Return a fatbin of images: their kind (1 is PTX, 2 is a cubin), architecture and bytes."""
    parts = []
    for kind, sm, data in images:
        padded = data + bytes(-len(data) % 8)
        header = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(padded), 0, 0, 8, 1, sm)
        parts.append(header.ljust(64, b"\0") + padded)
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
