"""Writes a library's record: the C structures that describe its kernels, as bytes.

The runtime reads the record where it lies: in a library, which embeds it, or in memory. The structures and constants
are read from the headers in `runtime/jitload/`. A change there needs a new `JITLOAD_ABI`.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitload.expressions.compiler import Op

_HEADERS = Path(__file__).parents[1] / "runtime" / "jitload"
_MAGIC = b"jitload"
_IMAGE_ALIGNMENT = 64
_ENUMERATION = re.compile(r"enum \{(.*?)\};", re.DOTALL)
_ENUMERATOR = re.compile(r"JITLOAD_(\w+)(?: = (\d+))?(?=,|\s*$)")
_STRUCTURE = re.compile(r"typedef struct jitload_(\w+) \{(.*?)\} jitload_\w+;", re.DOTALL)
_POINTER_NAME = re.compile(r"\w+(?=\)\()|\w+$")  # of a function, or of a value
_MEMBER = re.compile(r"(\w+) (\w+)(?:\[(\w+)\])?")  # of another type: the type, the name, and the length of an array


class Address(NamedTuple):
    """An address that only the wrapper knows, as a C expression."""

    expression: str


class Struct(NamedTuple):
    """A C structure: its name, and its members. Members that are left out are 0.

    Numbers, tuples of numbers and the record's `magic` stand in the structure itself. For a pointer, a member is what
    it points to: a string, an image's bytes, a structure, an array of structures or strings, an `Address` or `MODULE`.
    None and an empty array are null pointers. If the structure has a member for the length of an array, such as
    `param_count` of `params`, it is set.
    """

    name: str
    members: Mapping[str, object]


MODULE = object()  # a pointer to the module of the record


class Record(NamedTuple):
    """A record's bytes, and the C expressions of the addresses that it needs, in the order of their numbers."""

    data: bytes
    addresses: tuple[str, ...]


def ops_array(program: Sequence[Op]) -> list[Struct]:
    """Return the structures of a program for the evaluator, with its end."""
    return [
        Struct("op", {"code": constant(f"op_{op.name}"), "operand": op.operand, "value": op.value})
        for op in (*program, Op("END"))
    ]


def flags_of(names: Iterable[str]) -> int:
    """Return the number in which the flags with these names are set."""
    return sum(map(constant, dict.fromkeys(names)))


class RecordWriter:
    """Writes the record of a module. Structures are aligned to 8 bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.strings: dict[str, int] = {}
        self.pointers: list[int] = []
        self.externals: list[int] = []
        self.addresses: list[str] = []

    def write(self, module: Struct) -> Record:
        """Return the record of a module."""
        header_size = layout("record").module.offset
        self.data += bytes(header_size)
        self._array([module])
        rows = (*self.pointers, *self.externals)
        tables = self._append(struct.pack(f"<{len(rows)}I", *rows))
        facts = {
            "magic": _MAGIC,
            "abi": constant("abi"),
            "pointer_count": len(self.pointers),
            "external_count": len(self.externals),
            "size": len(self.data),
            "pointers": tables,
            "externals": tables + 4 * len(self.pointers),
        }
        self.data[:header_size] = _pack("record", facts)[:header_size]
        return Record(bytes(self.data), tuple(self.addresses))

    def _append(self, data: bytes) -> int:
        self.data += bytes(-len(self.data) % 8)
        offset = len(self.data)
        self.data += data
        return offset

    def _array(self, items: Sequence[Struct]) -> int:
        """Append an array of structures, and then all that they point to. Return the offset of the array."""
        name, size = items[0].name, ctypes.sizeof(layout(items[0].name))
        pointers = {member for member, kind in layout(name)._fields_ if kind is _POINTER}
        numbers = ({m: value for m, value in _with_counts(item).items() if m not in pointers} for item in items)
        offset = self._append(b"".join(_pack(name, members) for members in numbers))
        for number, item in enumerate(items):
            for member, value in item.members.items():
                if member in pointers:
                    self._point(offset + number * size + getattr(layout(name), member).offset, value)
        return offset

    def _point(self, offset: int, value: object) -> None:
        """Store a pointer to a value, which is appended unless it is there already."""
        if isinstance(value, Address):
            if value.expression not in self.addresses:
                self.addresses.append(value.expression)
            self.externals.append(offset)
            struct.pack_into("<Q", self.data, offset, self.addresses.index(value.expression))
        elif value is not None and value not in ((), []):
            target = self._target(value)
            self.pointers.append(offset)
            struct.pack_into("<Q", self.data, offset, target)

    def _target(self, value: object) -> int:
        """Append a value unless it is there already. Return its offset."""
        if value is MODULE:
            return int(layout("record").module.offset)
        if isinstance(value, str):
            if value not in self.strings:
                self.strings[value] = len(self.data)
                self.data += value.encode() + b"\0"
            return self.strings[value]
        if isinstance(value, bytes):  # an image, and a NUL, which ends PTX
            self.data += bytes(-len(self.data) % _IMAGE_ALIGNMENT)
            return self._append(value + b"\0")
        if isinstance(value, Struct):
            return self._array([value])
        assert isinstance(value, Sequence)
        if isinstance(value[0], Struct):
            return self._array(value)
        offset = self._append(bytes(8 * len(value)))  # an array of pointers
        for number, item in enumerate(value):
            self._point(offset + 8 * number, item)
        return offset


# ---- structures of C -------------------------------------------------------------------------------------------------

_POINTER = ctypes.c_uint64
_TYPES: dict[str, Any] = {
    "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint16_t": ctypes.c_uint16,
    "uint8_t": ctypes.c_uint8, "char": ctypes.c_char,
}  # fmt: skip


def constant(name: str) -> int:
    """Return a constant of the headers. `on_cpu` means `JITLOAD_ON_CPU`."""
    return _declarations()[0][name.upper()]


@functools.cache
def layout(name: str) -> Any:
    """Return a structure of the headers as C's compilers lay it out on 64-bit machines."""
    constants, structures = _declarations()
    fields: list[tuple[str, Any]] = []
    for declaration in filter(None, map(str.strip, structures[name].split(";"))):
        if "*" in declaration:
            fields.append((_POINTER_NAME.findall(declaration)[0], _POINTER))
            continue
        member = _MEMBER.fullmatch(declaration)
        assert member is not None, declaration
        kind = _TYPES.get(member[1]) or layout(member[1].removeprefix("jitload_"))
        length = member[3] and (constants.get(member[3].removeprefix("JITLOAD_")) or int(member[3]))
        fields.append((member[2], kind * length if length else kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


@functools.cache
def _declarations() -> tuple[dict[str, int], dict[str, str]]:
    """Return the constants of the headers without their prefix, and the members of the structures as texts."""
    text = "".join((_HEADERS / name).read_text("utf-8") for name in ("record.h", "expression.h", "triton.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    constants: dict[str, int] = {}
    for enumeration in _ENUMERATION.findall(text):
        number = -1
        for name, value in _ENUMERATOR.findall(enumeration):
            constants[name] = number = int(value) if value else number + 1
    return constants, dict(_STRUCTURE.findall(text))


def _with_counts(item: Struct) -> dict[str, object]:
    """Return the members of a structure, with the lengths of its arrays."""
    arrays = {f"{m.removesuffix('s')}_count": value for m, value in item.members.items() if isinstance(value, list)}
    return {**{name: len(array) for name, array in arrays.items() if hasattr(layout(item.name), name)}, **item.members}


def _pack(name: str, members: Mapping[str, object]) -> bytes:
    """Return the bytes of a structure. Members that are left out are 0."""
    structure = layout(name)()
    for member, value in members.items():
        setattr(structure, member, value)
        stored = getattr(structure, member)
        if value != (tuple(stored) if isinstance(value, tuple) else stored):  # `ctypes` truncates integers
            raise OverflowError(f"{name}.{member} cannot be {value!r}")
    return bytes(structure)
