"""Writes and checks fatbins: cubins and PTX for several architectures in one file, as nvcc writes them."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from jitload.errors import LoadError
from jitload.toolchain.arch import capability_of, is_ptx

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


def check_is_whole(data: bytes, name: str) -> None:
    """Raise LoadError if a fatbin is cut off or has no image. `name` is for the message."""
    _, _, start, size = _HEADER.unpack_from(data.ljust(_HEADER.size, b"\0"))
    if size == 0 or start < _HEADER.size or start + size > len(data):
        problem = f"its header states {start + size} bytes, but it has {len(data)}" if size else "it has no image"
        raise LoadError(f"{name}: this fatbin is damaged or cut off ({problem}). Compile it again.")
