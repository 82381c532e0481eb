"""Read and write fatbins: cubins and PTX for several architectures in one file, as nvcc writes them."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from jitload.elf.cubin import read_cubin
from jitload.errors import LoadError
from jitload.toolchain.arch import capability_of, is_ptx, runs_on

_MAGIC = b"\x50\xed\x55\xba"
_HEADER = struct.Struct("<4sHHQ")  # magic, version, size of the header, size of all entries
# kind, version, size of the entry's header, size of its payload, compressed size, options, minor, major, architecture,
# flags
_ENTRY = struct.Struct("<HHIQIIHHI8xQ")
_PTX, _ELF = 1, 2
_ENTRY_VERSION, _ENTRY_SIZE = 0x101, 64
_OPTIONS = struct.pack("<QQ", _ENTRY_SIZE + 8, 0)  # after the header of PTX: where its options begin, and no options
_PTX_VERSION = re.compile(rb"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_FLAGS_LINUX_64 = 0x11
_SUFFIX_FLAGS = {"": 0, "a": 1 << 20, "f": 1 << 21}
_FIRST_SM_WITH_MORE_FIELDS = 100


class FatbinEntry(NamedTuple):
    """One image of a fatbin: a cubin, or PTX.

    Attributes:
        arch: The architecture, such as `sm_90a` for a cubin, or `compute_90a` for PTX.
        code: The cubin or the PTX; empty if the image is compressed.
    """

    arch: str
    code: bytes = b""

    @property
    def is_ptx(self) -> bool:
        """Whether the image is PTX, not a cubin."""
        return is_ptx(self.arch)


def make_fatbin(images: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a fatbin, in the format that nvcc writes for architectures below sm_100.

    `images` are pairs of an architecture and its cubin, or its PTX for an architecture such as `compute_90`.

    Raises:
        LoadError: An image is for sm_100 or newer. Entries for such architectures have fields that jitload cannot
            write.
    """
    body = b"".join(_make_entry(arch, code) for arch, code in images)
    return _HEADER.pack(_MAGIC, 1, _HEADER.size, len(body)) + body


def _make_entry(arch: str, code: bytes) -> bytes:
    number, suffix = capability_of(arch)
    if number >= _FIRST_SM_WITH_MORE_FIELDS:
        raise LoadError(
            f"jitload cannot write a fatbin with code for {arch}, only nvcc can. Use nvcc, or write a cubin for "
            f"{arch} alone."
        )
    kind, options, (major, minor) = _ELF, b"", (1, 8)
    if is_ptx(arch):
        code = code.rstrip(b"\0") + b"\0"
        version = _PTX_VERSION.search(code)
        kind, options, (major, minor) = _PTX, _OPTIONS, (int(version[1]), int(version[2])) if version else (0, 0)
    payload = code + bytes(-len(code) % 8)
    size, at_options = _ENTRY_SIZE + len(options), _ENTRY_SIZE if options else 0
    flags = _FLAGS_LINUX_64 | _SUFFIX_FLAGS[suffix]
    head = _ENTRY.pack(kind, _ENTRY_VERSION, size, len(payload), 0, at_options, minor, major, number, flags)
    return head.ljust(_ENTRY_SIZE, b"\0") + options + payload


def is_fatbin(data: bytes) -> bool:
    """Return whether the bytes begin like a fatbin."""
    return data[:4] == _MAGIC


def read_fatbin(data: bytes, *, name: str = "fatbin") -> tuple[FatbinEntry, ...]:
    """Return the images of a fatbin.

    Raises:
        LoadError: The fatbin or one of its cubins is damaged or cut off, or the fatbin has no image.
    """
    try:
        return _read_entries(data, name)
    except (struct.error, ValueError) as error:
        raise LoadError(f"{name}: this fatbin is damaged or cut off ({error}). Compile it again.") from error


def select_image(entries: Sequence[FatbinEntry], arch: str, *, is_ptx: bool) -> bytes:
    """Return the cubin that the driver would choose for an architecture, or b"" if no cubin runs on it.

    If `is_ptx` is true, return the newest PTX that can be compiled for the architecture instead.
    """
    images = [e for e in entries if e.code and e.is_ptx is is_ptx and runs_on(e.arch, arch)]
    return max(images, key=_specificity).code if images else b""


def _specificity(entry: FatbinEntry) -> tuple[int, int]:
    number, suffix = capability_of(entry.arch)
    return number, ("", "f", "a").index(suffix)


def _read_entries(data: bytes, name: str) -> tuple[FatbinEntry, ...]:
    _, _, position, size = _HEADER.unpack_from(data)
    end = position + size
    if position < _HEADER.size or end > len(data):
        raise ValueError(f"its header states {end} bytes, but it has {len(data)}")
    entries = []
    while position < end:
        kind, _, header_size, size, compressed_size, *_, number, flags = _ENTRY.unpack_from(data, position)
        arch = f"{number}{next((suffix for suffix, flag in _SUFFIX_FLAGS.items() if flags & flag), '')}"
        start, position = position + header_size, position + header_size + size
        if header_size < _ENTRY.size or position > end:
            raise ValueError(f"the header of the image at byte {start} is wrong")
        payload = data[start:position]
        if kind == _ELF and payload[:4] == b"\x7fELF":
            entries.append(FatbinEntry(arch=read_cubin(payload, name=name).arch, code=payload))
        elif kind == _ELF:
            entries.append(FatbinEntry(arch=f"sm_{arch}"))
        elif kind == _PTX:
            entries.append(FatbinEntry(arch=f"compute_{arch}", code=b"" if compressed_size else payload.rstrip(b"\0")))
    if not entries:
        raise ValueError("it has no image")
    return tuple(entries)
