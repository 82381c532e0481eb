"""Fatbins as nvcc writes them."""

import struct
from collections.abc import Iterator

from jitload.elf.cubin import read_image

_ENTRY = struct.Struct("<HHIQIIHHI8xQ")


def read_fatbin(fatbin: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the architecture and the code of each image, as `make_fatbin` gets them."""
    position = 16
    while position < len(fatbin):
        kind, _, header_size, size, *_, number, flags = _ENTRY.unpack_from(fatbin, position)
        suffix = "a" if flags & 1 << 20 else "f" if flags & 1 << 21 else ""
        code = fatbin[position + header_size : position + header_size + size]
        yield f"{'compute' if kind == 1 else 'sm'}_{number}{suffix}", code
        position += header_size + size


def symbols_in(fatbin: bytes) -> list[tuple[str, list[str]]]:
    """Return the architecture and the symbols of the kernels for each cubin that is not compressed."""
    cubins = [(arch, code) for arch, code in read_fatbin(fatbin) if code.startswith(b"\x7fELF")]
    return [(arch, [kernel.symbol for kernel in read_image(code).kernels]) for arch, code in cubins]


def fatbin_of(*images: tuple[int, int, bytes] | tuple[int, int, bytes, int]) -> bytes:
    """Return a fatbin of images: their kind (1 is PTX, 2 is a cubin), architecture, bytes and, if not 0, flags."""
    parts = []
    for kind, sm, data, *flags in images:
        padded = data + bytes(-len(data) % 8)
        header = _ENTRY.pack(kind, 0x101, 64, len(padded), 0, 0, 8, 1, sm, *flags or (0,))
        parts.append(header.ljust(64, b"\0") + padded)
    body = b"".join(parts)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
