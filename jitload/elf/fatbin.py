"""Fatbin bytes in, what is in them out, and back: machine code and PTX for several architectures, as nvcc has it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from jitload.arch import capability_of
from jitload.elf.cubin import read_image
from jitload.errors import LoadError

_MAGIC = b"\x50\xed\x55\xba"
_HEADER = struct.Struct("<4sHHQ")  # magic, version, its own size, the size of what follows
# Of an image: kind, version, its own size, the payload's, its compressed size, options, minor, major, architecture.
_ENTRY = struct.Struct("<HHIQIIHHI")
_PTX, _ELF = 1, 2
_ENTRY_VERSION, _ENTRY_SIZE = 0x101, 64
_FLAGS, _ACCELERATED = 0x11, 0x100000  # 64-bit code for Linux; for one architecture alone, as sm_90a
_FIRST_WITH_MORE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FatbinEntry:
    """One image of a fatbin: `sm_90` or `compute_90`; its code or PTX and its kernels where it is not compressed."""

    arch: str
    kernels: tuple[str, ...] = ()
    code: bytes = b""


def make_fatbin(cubins: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a fatbin of cubins and the architectures that they are for, as nvcc writes it for those below sm_100.

    Raises:
        LoadError: One is for a newer architecture, whose images have facts beside them that are not known here.
    """
    images = []
    for arch, code in cubins:
        number, suffix = capability_of(arch)
        if number >= _FIRST_WITH_MORE:
            raise LoadError(f"a fatbin with code for {arch} takes nvcc; without it, compile to one cubin for {arch}.")
        padded = code + bytes(-len(code) % 8)
        head = _ENTRY.pack(_ELF, _ENTRY_VERSION, _ENTRY_SIZE, len(padded), 0, 0, 8, 1, number)
        flags = _FLAGS | (_ACCELERATED if suffix else 0)
        images.append(head + bytes(8) + flags.to_bytes(8, "little") + bytes(16) + padded)
    body = b"".join(images)
    return _HEADER.pack(_MAGIC, 1, _HEADER.size, len(body)) + body


def is_fatbin(data: bytes) -> bool:
    """Tell whether bytes begin as a fatbin does."""
    return data[:4] == _MAGIC


def read_fatbin(data: bytes, *, name: str = "fatbin") -> tuple[FatbinEntry, ...]:
    """Read what images a fatbin has.

    Args:
        data: Its bytes.
        name: What to call it in an error.

    Raises:
        LoadError: It is damaged, cut off or empty, or a cubin in it is.
    """
    try:
        return _read_entries(data, name)
    except (struct.error, ValueError) as error:
        raise LoadError(f"{name}: this fatbin is damaged or cut off ({error}). Compile it again.") from error


def cubin_for(entries: Sequence[FatbinEntry], arch: str) -> bytes:
    """Return the machine code that the driver would take on an architecture, or nothing; the closest of several."""
    fitting = [entry for entry in entries if entry.code and entry.arch[:3] == "sm_" and _runs_on(entry.arch, arch)]
    return max(fitting, key=lambda entry: capability_of(entry.arch)).code if fitting else b""


def ptx_for(entries: Sequence[FatbinEntry], arch: str) -> bytes:
    """Return the PTX to compile for an architecture, or nothing; the newest of several."""
    texts = {int(entry.arch.partition("_")[2]): entry.code for entry in entries if entry.arch[:3] == "com"}
    fitting = [number for number, text in texts.items() if text and number <= capability_of(arch)[0]]
    return texts[max(fitting)] if fitting else b""


def _runs_on(made_for: str, arch: str) -> bool:
    (number, suffix), (wanted, _) = capability_of(made_for), capability_of(arch)
    if suffix == "a":
        return made_for == arch
    return number // 10 == wanted // 10 and number <= wanted


def _read_entries(data: bytes, name: str) -> tuple[FatbinEntry, ...]:
    _, _, at, size = _HEADER.unpack_from(data)
    end = at + size
    if at < _HEADER.size or end > len(data):
        raise ValueError(f"its header speaks of {end} bytes, and it has {len(data)}")
    entries = []
    while at < end:
        kind, _, header, size, packed, *_, sm = _ENTRY.unpack_from(data, at)
        payload, at = data[at + header : at + header + size], at + header + size
        if header < _ENTRY.size or at > end:
            raise ValueError(f"an image ends at {at}, and they all at {end}")
        if kind == _ELF and payload[:4] == b"\x7fELF":
            image = read_image(payload, name=name)
            kernels = tuple(kernel.symbol for kernel in image.kernels)
            entries.append(FatbinEntry(arch=image.arch, kernels=kernels, code=payload))
        elif kind == _ELF:
            entries.append(FatbinEntry(arch=f"sm_{sm}"))
        elif kind == _PTX:
            entries.append(FatbinEntry(arch=f"compute_{sm}", code=b"" if packed else payload.rstrip(b"\0")))
    if not entries:
        raise ValueError("it has no image")
    return tuple(entries)
