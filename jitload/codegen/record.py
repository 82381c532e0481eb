"""Writes a library's record: the C structures that describe its kernels, as bytes.

The runtime reads the record where it lies: in a library, which embeds it, or in memory. `STRUCTURES` and the constants
repeat `runtime/jitload/record.h`, `triton.h` and `expression.h`; a test compares them. A change needs a new `ABI`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jitload.expressions.compiler import OP_NAMES, Op

ABI = 8
MAGIC = b"jitload"
_IMAGE_ALIGNMENT = 64

# The members of each structure with their types, which `_TYPES` has, and for arrays the count.
STRUCTURES = {
    "record": "magic:8s abi:i pointer_count:i external_count:i size:i pointers:p externals:p",
    "module": "name:p images:p kernels:p variables:p description:p state:p image_count:i kernel_count:i has_cpu:i",
    "image": "capability:i suffix:i is_ptx:i group:i data:p",
    "variable": "name:p symbol:p on_cpu:p",
    "kernel": "name:p symbol:p module:p params:p plan:p expressions:p attributes:p index:i param_count:i "
    "argument_count:i flags:i attribute_count:i struct_bytes:i triton:p cpu:p separate:p cpu_mode:i max_threads:i "
    "metadata:p doc:p first_variant:i variant_count:i choice:p group:i host:p maps:p map_count:i bounds:p recent:p",
    "param": "name:p type:p argument:i size:I alignment:H kind:B flags:H dtype_code:B dtype_bits:B layout:p",
    "op": "code:i operand:i value:q",
    "attribute": "id:i value:i",
    "choice": "program:p expressions:p tables:p state:p key_count:i table_count:i takes_nearest:i",
    "table": "gpu:p rows:p row_count:i",
    "number": "value:q",
    "triton": "assumptions:p bindings:p descriptors:p assumption_count:i binding_count:i descriptor_count:i "
    "has_several_archs:i grid_multiplier:3i hidden_pointers:i scratch_bytes:q scratch_alignment:q",
    "assumption": "param:i kind:i value:q",
    "binding": "param:H part:B axis:B descriptor:H",
    "descriptor_spec": "param:i block:5I map:p",
    "tensor_map": "param:i tensor:i rank:i type:i swizzle:i promotion:i fill:i element_bytes:i is_fp4:i "
    "box:5I lower:5i upper:5i is_im2col:i cache:p",
}

KINDS = {name: number for number, name in enumerate(("pointer", "int", "uint", "float", "bool", "struct", "stream"))}
PARAM_FLAGS = {
    "nullable": 1, "raw": 2, "strided": 4, "complex": 8, "finite": 16, "described": 32, "on_cpu": 64, "addresses": 128,
    "host": 256,
}  # fmt: skip
KERNEL_FLAGS = {"has_grid": 1, "has_block": 2, "has_cluster": 4, "computes": 8, "dispatches": 16}
_OP_CODES = {name: number for number, name in enumerate(OP_NAMES)}
ASSUMPTIONS = {"multiple_of": 0, "equal_to": 1, "null": 2}
PARTS = {name: number for number, name in enumerate(("value", "map", "shape", "stride", "padding", "rounding"))}


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
        Struct("op", {"code": _OP_CODES[op.name], "operand": op.operand, "value": op.value})
        for op in (*program, Op("END"))
    ]


def flags_of(table: Mapping[str, int], names: Sequence[str]) -> int:
    """Return the number in which the flags with these names are set."""
    return sum(table[name] for name in dict.fromkeys(names))


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
        header_size = ctypes.sizeof(layout("record"))
        self.data += bytes(header_size)
        self._array([module])
        rows = (*self.pointers, *self.externals)
        tables = self._append(struct.pack(f"<{len(rows)}I", *rows))
        facts = {
            "magic": MAGIC,
            "abi": ABI,
            "pointer_count": len(self.pointers),
            "external_count": len(self.externals),
            "size": len(self.data),
            "pointers": tables,
            "externals": tables + 4 * len(self.pointers),
        }
        self.data[:header_size] = _pack("record", facts)
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
            return ctypes.sizeof(layout("record"))
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
    "p": _POINTER, "q": ctypes.c_int64, "i": ctypes.c_int32, "I": ctypes.c_uint32, "H": ctypes.c_uint16,
    "B": ctypes.c_uint8, "s": ctypes.c_char,
}  # fmt: skip


@functools.cache
def layout(name: str) -> Any:
    """Return a structure as C's compilers lay it out on 64-bit machines."""
    members = (member.split(":") for member in STRUCTURES[name].split())
    fields = [(member, _TYPES[code[-1]] * int(code[:-1]) if code[:-1] else _TYPES[code]) for member, code in members]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


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
