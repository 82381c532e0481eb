"""Cubin bytes in, kernels with their parameter sizes out."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from jitload.device.demangle import demangle
from jitload.elf.file import (
    HEADER,
    STT_FUNC,
    STT_OBJECT,
    DamageError,
    Section,
    Symbol,
    cut,
    read_sections,
    read_symbols,
)
from jitload.errors import LoadError
from jitload.model import Image, ImageKernel, ParameterSlot, Variable

_ET_EXEC, _EM_CUDA, _STO_CUDA_ENTRY = 2, 190, 0x10

# Attributes of `.nv.info`, by cuobjdump's names. KPARAM_INFO_V2 is written for sizes that 14 bits cannot hold.
_MAX_THREADS, _REQNTID, _FRAME_SIZE, _MIN_STACK_SIZE = 0x05, 0x10, 0x11, 0x12
_KPARAM_INFO, _REGCOUNT, _KPARAM_INFO_V2 = 0x17, 0x2F, 0x45
_FORMAT_SIZED = 4
_COMPAT_ARCH_SPECIFIC = 0x09  # in `.nv.compat`

_VARIABLE_SECTIONS = (".nv.global", ".nv.global.init", ".nv.constant3")
_COMPILER_NAMES = ("$", ".", "__cudart_")  # format strings and libdevice's tables
_DEFAULT_MAX_THREADS = 1024
_FIRST_SM_WITH_RESERVE, _RESERVED_SHARED_BYTES = 90, 1024
_NO_STACK_SIZE = 0xFFFFFFFF
_ABI_OF_13 = 8


def read_image(data: bytes | bytearray | memoryview, *, name: str = "cubin") -> Image:
    """Read what a cubin says of its architecture, its kernels and its variables.

    Args:
        data: The bytes of one cubin.
        name: What to call them in an error.

    Returns:
        The image; kernels in the order in which the compiler met them, template instances last.

    Raises:
        LoadError: The bytes are no linked CUDA cubin; the message says what they are.

    Example:
        >>> read_image(open("scale.cubin", "rb").read()).kernels[0].slots
        (ParameterSlot(offset=0, size=8), ParameterSlot(offset=8, size=4))
    """
    if problem := _foreign_format(data):
        raise LoadError(f"{name}: {problem}")
    try:
        return _read_elf(bytes(data))
    except DamageError as error:
        raise LoadError(f"{name}: this cubin is damaged: {error}. Compile it again.") from None
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise LoadError(f"{name}: this cubin is damaged or cut off ({error}). Compile it again.") from error


def is_unknown(data: bytes) -> bool:
    """Tell whether bytes are nothing that `read_image` has a name for."""
    return bool(data) and data[:4] != b"\x7fELF" and _format_of(data[:4096]) is None


# What else people have in hand: how it begins, or what it holds.
_FORMATS = (
    (
        rb"\A\x50\xed\x55\xba",
        "these bytes are a fatbin, not a cubin: take the cubin out with compile_cubin(fatbin, arch='sm_90a').",
    ),
    (
        rb"\A\xb1\x43\x62\x46",
        "these bytes are a fatbin's wrapper, not a cubin: give the fatbin to compile_cubin(fatbin, arch='sm_90a').",
    ),
    (
        rb"\A(?:BC\xc0\xde|\xed\x43\x4e\x7f)",
        "these bytes are LLVM or LTO IR, not a cubin: compile LTO IR with compile_cubin(data).",
    ),
    (rb"^\s*\.version\s+\d", "these bytes are PTX: compile it with compile_cubin(ptx), and take what that returns."),
    (
        rb"__global__|#include",
        "these bytes are CUDA source text, not a cubin: compile them first, with `jitload.compile_cubin`.",
    ),
)
_MACHINES = {62: "x86-64", 183: "aarch64", 224: "AMD's GPUs"}


def _foreign_format(data: bytes | bytearray | memoryview) -> str | None:
    """Say what the bytes are when they are no linked 64-bit CUDA ELF."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return f"a cubin is bytes, and this is {type(data).__name__}."
    head = bytes(data[:4096])
    if not head:
        return "these are no bytes at all. Was the file written to its end?"
    if head[:4] != b"\x7fELF":
        return _name_format(head)
    if len(head) < HEADER.size:
        return f"this ELF is cut off after {len(head)} bytes. Compile it again."
    return _foreign_elf(head)


def _foreign_elf(head: bytes) -> str | None:
    if head[4:6] != b"\x02\x01":
        return "this ELF is not 64-bit little endian, so it is no cubin."
    kind, machine = struct.unpack_from("<HH", head, 16)
    if machine != _EM_CUDA:
        whose = f" ({_MACHINES[machine]})" if machine in _MACHINES else ""
        return f"this ELF is for machine {machine}{whose}, not a CUDA cubin (190): a host library or object file?"
    if kind != _ET_EXEC:
        return (
            "this is a relocatable CUDA object, not a linked cubin: compile without -dc/-rdc, or link it with nvlink."
        )
    return None


def _format_of(head: bytes) -> str | None:
    return next((words for pattern, words in _FORMATS if re.search(pattern, head, re.MULTILINE)), None)


def _name_format(head: bytes) -> str:
    return _format_of(head) or f"these bytes are not a cubin: they begin with {head[:8]!r} instead of an ELF header."


@dataclass(frozen=True, slots=True)
class _Entry:
    """A kernel's symbol and its number, its code, and the number of the architecture."""

    index: int
    symbol: Symbol
    text: Section
    sm: int


def _read_elf(data: bytes) -> Image:
    sections = read_sections(data)
    by_name = {section.name: section for section in sections}
    symbols = read_symbols(sections)
    stated = _read_stated(by_name.get(".nv.info"))
    sm, suffix = _read_arch(data, by_name)
    entries = [
        _Entry(index, s, sections[s.section], sm)
        for index, s in enumerate(symbols)
        if s.kind == STT_FUNC and s.other & _STO_CUDA_ENTRY and 0 < s.section < len(sections)
    ]
    # ptxas lays the code out in the reverse of the order in which it met the kernels (12.4 to 13.5).
    in_order = sorted(entries, key=lambda entry: entry.symbol.section, reverse=True)
    return Image(
        arch=f"sm_{sm}{suffix}",
        kernels=tuple(_read_kernel(entry, by_name, stated) for entry in in_order),
        variables=tuple(_read_variables(symbols, sections)),
    )


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the value of each attribute of a `.nv.info` section."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _FORMAT_SIZED:
            continue  # the value is in the header itself; none that we read has this form
        yield attribute, cut(info, at, value, "an attribute of '.nv.info'")
        at += value


def _read_stated(info: Section | None) -> Mapping[int, Mapping[int, int]]:
    """Read what the image's `.nv.info` states of each function: attribute, then symbol index, to value."""
    stated: dict[int, dict[int, int]] = {_REGCOUNT: {}, _FRAME_SIZE: {}, _MIN_STACK_SIZE: {}}
    for attribute, value in _attributes(info.data if info else b""):
        if attribute in stated:
            symbol_index, number = struct.unpack_from("<II", value)
            stated[attribute][symbol_index] = number
    return stated


def _read_kernel(entry: _Entry, by_name: Mapping[str, Section], stated: Mapping[int, Mapping[int, int]]) -> ImageKernel:
    symbol = entry.symbol
    info = by_name.get(f".nv.info.{symbol.name}")
    if info is None:
        raise DamageError(f"kernel {symbol.name!r} has no section '.nv.info'")
    slots, max_threads = _read_launch_facts(symbol.name, info)
    return ImageKernel(
        symbol=symbol.name,
        slots=slots,
        registers=stated[_REGCOUNT].get(entry.index, entry.text.info >> 24),  # ABI 7 keeps them in sh_info as well
        shared_bytes=_read_shared_bytes(symbol.name, by_name, entry.sm),
        local_bytes=_read_local_bytes(entry.index, stated),
        max_threads=max_threads,
    )


def _read_launch_facts(kernel: str, info: Section) -> tuple[tuple[ParameterSlot, ...], int]:
    slots: dict[int, ParameterSlot] = {}
    max_threads = _DEFAULT_MAX_THREADS
    for attribute, value in _attributes(info.data):
        if attribute == _KPARAM_INFO:
            _index, ordinal, offset, packed = struct.unpack_from("<IHHI", value)
            slots[ordinal] = ParameterSlot(offset=offset, size=packed >> 18)
        elif attribute == _KPARAM_INFO_V2:
            _index, ordinal, offset, size = struct.unpack_from("<IHHH", value)
            slots[ordinal] = ParameterSlot(offset=offset, size=size)
        elif attribute in (_MAX_THREADS, _REQNTID):
            max_threads = prod(struct.unpack_from("<III", value))
    if sorted(slots) != list(range(len(slots))):
        raise DamageError(f"kernel {kernel!r} has parameters {sorted(slots)}")
    return tuple(slots[ordinal] for ordinal in range(len(slots))), max_threads


def _read_shared_bytes(kernel: str, by_name: Mapping[str, Section], sm: int) -> int:
    section = by_name.get(f".nv.shared.{kernel}")
    if section is None:
        return 0
    # From sm_90 on the section begins with what the driver keeps for itself; `ptxas -v` does not count it either.
    return max(section.size - (_RESERVED_SHARED_BYTES if sm >= _FIRST_SM_WITH_RESERVE else 0), 0)


def _read_local_bytes(symbol_index: int, stated: Mapping[int, Mapping[int, int]]) -> int:
    """Return the stack a thread needs with the functions it calls; with recursion, the kernel's own frame."""
    frame = stated[_FRAME_SIZE].get(symbol_index, 0)
    stack = stated[_MIN_STACK_SIZE].get(symbol_index, frame)
    return frame if stack == _NO_STACK_SIZE else stack


def _read_arch(data: bytes, by_name: Mapping[str, Section]) -> tuple[int, str]:
    """Return number and suffix of the architecture; where they are depends on who wrote the image."""
    flags, abi_version = HEADER.unpack_from(data)[7], data[8]
    if abi_version < _ABI_OF_13:  # up to 12.x and sm_90
        return flags & 0xFF, "a" if flags & 0x800 else ""
    number = flags >> 8 & 0xFF
    # 13.x has no bit for the suffix, and nobody has one for `f`: the note with ptxas's arguments has both.
    note = by_name.get(".note.nv.tkinfo")
    told = re.search(rb"\bsm_%d([af]?)\b" % number, note.data) if note else None
    if told:
        return number, told[1].decode()
    compat = dict(_compat_bytes(by_name.get(".nv.compat")))
    return number, "a" if flags & 0x8 or compat.get(_COMPAT_ARCH_SPECIFIC) else ""


def _compat_bytes(section: Section | None) -> Iterator[tuple[int, int]]:
    at, data = 0, section.data if section else b""
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        yield attribute, value
        at += 4 + (value if form == _FORMAT_SIZED else 0)


def _read_variables(symbols: list[Symbol], sections: list[Section]) -> Iterator[Variable]:
    for symbol in symbols:
        if symbol.kind != STT_OBJECT or not 0 < symbol.section < len(sections):
            continue
        if sections[symbol.section].name not in _VARIABLE_SECTIONS or symbol.name.startswith(_COMPILER_NAMES):
            continue
        yield Variable(name=demangle(symbol.name) or symbol.name, symbol=symbol.name, size=symbol.size)
