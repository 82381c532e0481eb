"""Read the architecture of a cubin, its kernels with the sizes of their parameters, and its variables."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from math import prod

from jitload.elf import file as elf
from jitload.elf.file import ElfError, ElfFile, Header, Section, Symbol
from jitload.errors import LoadError
from jitload.model import Cubin, Kernel, Parameter, Variable, untyped_parameters

_STO_CUDA_ENTRY = 0x10  # a flag in `Symbol.other` of a kernel

# Attributes of `.nv.info`, as cuobjdump names them. KPARAM_INFO_V2 describes a parameter whose size does not fit 14
# bits.
_MAX_THREADS, _REQNTID, _FRAME_SIZE, _MIN_STACK_SIZE = 0x05, 0x10, 0x11, 0x12
_KPARAM_INFO, _REGCOUNT, _KPARAM_INFO_V2, _NUM_BARRIERS = 0x17, 0x2F, 0x45, 0x4C
_FORMAT_SIZED = 4
_COMPAT_ARCH_SPECIFIC = 0x09  # an attribute in `.nv.compat`

_VARIABLE_SECTIONS = (".nv.global", ".nv.global.init", ".nv.constant3")
# Prefixes of the names of format strings, of libdevice's tables, and of constants in jitload's standard headers. NVRTC
# makes variables of these constants if host code is left out.
_COMPILER_NAMES = ("$", ".", "__cudart_", "_ZSt", "_ZNSt")
_DEFAULT_MAX_THREADS = 1024
_FIRST_SM_WITH_RESERVE, _RESERVED_SHARED_BYTES = 90, 1024
_UNKNOWN_STACK_SIZE = 0xFFFFFFFF
_ABI_OF_CUDA_13 = 8


def read_cubin(
    data: bytes | bytearray | memoryview, *, name: str = "cubin", spill_bytes: Mapping[str, int] | None = None
) -> Cubin:
    """Return a cubin with its architecture, kernels and variables. The names and types of parameters are not known.

    The kernels are in the order in which the compiler met them, with template instances last. The name of a kernel or
    a variable is its symbol. `spill_bytes` maps symbols of kernels to the bytes that a thread spills. A cubin does not
    contain these numbers.

    Raises:
        LoadError: The bytes are not a linked CUDA cubin; the message says what they are.

    Example:
        >>> [(p.offset, p.size) for p in read_cubin(open("scale.cubin", "rb").read()).kernels[0].parameters]
        [(0, 8), (8, 4)]
    """
    if problem := _find_problem(data):
        raise LoadError(f"{name}: {problem}")
    try:
        file = ElfFile(bytes(data))
        if problem := _find_elf_problem(file.header):
            raise LoadError(f"{name}: {problem}")
        return _CubinReader(bytes(data), file, spill_bytes or {}).read()
    except (ElfError, struct.error, UnicodeError) as error:
        raise LoadError(f"{name}: this cubin is damaged: {error}. Compile it again.") from error


def is_unknown_format(data: bytes) -> bool:
    """Return whether the format of the data is unknown. For empty data, return False.

    The known formats are ELF, fatbins, LLVM IR, LTO IR, PTX and CUDA source.
    """
    return bool(data) and data[:4] != b"\x7fELF" and _recognize(data[:4096]) is None


# Other files that users pass by mistake: a pattern for the first bytes, and the error message.
_FORMATS = (
    (
        rb"\A\x50\xed\x55\xba",
        "these bytes are a fatbin, not a cubin: take the cubin out with compile_cubin(fatbin, arch='sm_90a').",
    ),
    (
        rb"\A(?:BC\xc0\xde|\xed\x43\x4e\x7f)",
        "these bytes are LLVM or LTO IR, not a cubin: compile LTO IR with compile_cubin(data).",
    ),
    (rb"^\s*\.version\s+\d", "these bytes are PTX: compile it with compile_cubin(ptx), and use the result."),
    (
        rb"__global__|#include",
        "these bytes are CUDA source, not a cubin: compile them first, with `jitload.compile_cubin`.",
    ),
)


def _find_problem(data: bytes | bytearray | memoryview) -> str | None:
    """Return the reason why the data is not an ELF file, or None."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return f"a cubin must be bytes, got {type(data).__name__}."
    head = bytes(data[:4096])
    if not head:
        return "the cubin is empty. Was the file written completely?"
    if head[:4] != b"\x7fELF":
        start = f"these bytes are not a cubin: they begin with {head[:8]!r} instead of an ELF header."
        return _recognize(head) or start
    return None


def _find_elf_problem(header: Header) -> str | None:
    if header.machine != elf.EM_CUDA:
        return f"this ELF file is for machine {header.machine}, so it is not a cubin. It may be a host library."
    if header.type != elf.ET_EXEC:
        return (
            "this is a relocatable CUDA object, not a linked cubin: compile without -dc/-rdc, or link it with nvlink."
        )
    return None


def _recognize(head: bytes) -> str | None:
    return next((message for pattern, message in _FORMATS if re.search(pattern, head, re.MULTILINE)), None)


class _CubinReader:
    """Reads a cubin. Raises ElfError, struct.error or UnicodeError if the cubin is damaged."""

    def __init__(self, data: bytes, file: ElfFile, spill_bytes: Mapping[str, int]) -> None:
        self.data = data
        self.file = file
        self.symbols = self.file.symbols()
        self.sections = {section.name: section for section in self.file.sections}
        self.spill_bytes = spill_bytes
        "".join([*self.sections, *(symbol.name for symbol in self.symbols)]).encode()  # raises UnicodeError on damage
        self.sm, self.suffix = self.read_arch()
        # For each attribute, a dict from the index of a function's symbol to the attribute's value for that function.
        self.function_attributes: dict[int, dict[int, int]] = {_REGCOUNT: {}, _FRAME_SIZE: {}, _MIN_STACK_SIZE: {}}
        for attribute, value in _read_attributes(self.sections.get(".nv.info")):
            if attribute in self.function_attributes:
                symbol_index, number = struct.unpack_from("<II", value)
                self.function_attributes[attribute][symbol_index] = number

    def read(self) -> Cubin:
        sections = self.file.sections
        defined = [(index, symbol) for index, symbol in enumerate(self.symbols) if 0 < symbol.section < len(sections)]
        entries = [pair for pair in defined if pair[1].type == elf.STT_FUNC and pair[1].other & _STO_CUDA_ENTRY]
        objects = [symbol for _, symbol in defined if symbol.type == elf.STT_OBJECT]
        kernels = [(symbol.section, self.read_kernel(index, symbol)) for index, symbol in entries]
        # ptxas (12.4 to 13.5) writes the code of the kernels in the reverse of the order in which it met them.
        kernels.sort(key=lambda kernel: kernel[0], reverse=True)
        variables = tuple(
            Variable(name=symbol.name, symbol=symbol.name, size=symbol.size)
            for symbol in objects
            if sections[symbol.section].name in _VARIABLE_SECTIONS and not symbol.name.startswith(_COMPILER_NAMES)
        )
        arch = f"sm_{self.sm}{self.suffix}"
        return Cubin(data=self.data, arch=arch, kernels=tuple(kernel for _, kernel in kernels), variables=variables)

    def read_arch(self) -> tuple[int, str]:
        """Return the architecture's number and suffix, such as (90, "a"). Their place varies with CUDA's version."""
        header = self.file.header
        if header.abi_version < _ABI_OF_CUDA_13:  # the format of CUDA up to 12.x for architectures up to sm_90
            return header.flags & 0xFF, "a" if header.flags & 0x800 else ""
        number = header.flags >> 8 & 0xFF
        # The flags of CUDA 13 have no bit for the suffix `a`, and those of no version have one for `f`. The note with
        # ptxas's arguments has both suffixes.
        note = self.sections.get(".note.nv.tkinfo")
        if note and (match := re.search(rb"\bsm_%d([af]?)\b" % number, note.data)):
            return number, match[1].decode()
        compat = dict(_read_attributes(self.sections.get(".nv.compat")))
        return number, "a" if header.flags & 0x8 or any(compat.get(_COMPAT_ARCH_SPECIFIC, b"")) else ""

    def read_kernel(self, index: int, symbol: Symbol) -> Kernel:
        info = self.sections.get(f".nv.info.{symbol.name}")
        if info is None:
            raise ElfError(f"kernel {symbol.name!r} has no section '.nv.info'")
        parameters, max_threads, barriers = _read_launch_attributes(symbol.name, info)
        text = self.file.sections[symbol.section]
        local_bytes = self.read_local_bytes(index)
        return Kernel(
            name=symbol.name,
            symbol=symbol.name,
            parameters=parameters,
            registers=self.function_attributes[_REGCOUNT].get(index, text.info >> 24),  # up to CUDA 12, in `info`
            shared_bytes=self.read_shared_bytes(symbol.name),
            local_bytes=local_bytes,
            max_threads=max_threads,
            spill_bytes=self.spill_bytes.get(symbol.name, None if local_bytes else 0),
            barriers=text.flags >> 20 & 0x7F if barriers is None else barriers,  # up to CUDA 12, in `flags`
        )

    def read_shared_bytes(self, kernel: str) -> int:
        section = self.sections.get(f".nv.shared.{kernel}")
        if section is None:
            return 0
        # From sm_90 on, the section begins with bytes for the driver. Like `ptxas -v`, do not count these.
        return max(section.size - (_RESERVED_SHARED_BYTES if self.sm >= _FIRST_SM_WITH_RESERVE else 0), 0)

    def read_local_bytes(self, index: int) -> int:
        """Return the bytes of stack that a thread of a kernel needs.

        The stack of called functions is included, unless one of them is recursive.
        """
        frame = self.function_attributes[_FRAME_SIZE].get(index, 0)
        stack = self.function_attributes[_MIN_STACK_SIZE].get(index, frame)
        return frame if stack == _UNKNOWN_STACK_SIZE else stack


def _read_attributes(info: Section | None) -> Iterator[tuple[int, memoryview]]:
    """Yield a (number, value) pair for each attribute of a section such as `.nv.info`."""
    data, position = memoryview(info.data if info else b""), 0
    while position + 4 <= len(data):
        value_format, attribute, value = struct.unpack_from("<BBH", data, position)
        if value_format != _FORMAT_SIZED:  # the attribute's header contains the value
            yield attribute, data[position + 2 : position + 4]
            value = 0
        position += 4
        if position + value > len(data):
            raise ElfError(f"an attribute ends at byte {position + value}, but its section has {len(data)} bytes")
        if value_format == _FORMAT_SIZED:
            yield attribute, data[position : position + value]
        position += value


def _read_launch_attributes(kernel: str, info: Section) -> tuple[tuple[Parameter, ...], int, int | None]:
    """Return the parameters of a kernel, its maximum number of threads per block, and its number of barriers."""
    slots: dict[int, tuple[int, int]] = {}
    max_threads, barriers = _DEFAULT_MAX_THREADS, None
    for attribute, value in _read_attributes(info):
        if attribute == _KPARAM_INFO:
            _, ordinal, offset, packed = struct.unpack_from("<IHHI", value)
            slots[ordinal] = offset, packed >> 18
        elif attribute == _KPARAM_INFO_V2:
            _, ordinal, offset, size = struct.unpack_from("<IHHH", value)
            slots[ordinal] = offset, size
        elif attribute in (_MAX_THREADS, _REQNTID):
            max_threads = prod(struct.unpack_from("<III", value))
        elif attribute == _NUM_BARRIERS:
            barriers = value[0]
    if sorted(slots) != list(range(len(slots))):
        raise ElfError(f"the parameters of kernel {kernel!r} have gaps in their numbers: {sorted(slots)}")
    return untyped_parameters(slot for _, slot in sorted(slots.items())), max_threads, barriers
