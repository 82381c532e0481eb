"""Reads a library's record, and shows it as text."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from jitload.codegen.record import Record, layout
from jitload.expressions.compiler import OP_NAMES

# The structures that pointers point to, each with the member that counts them. None stands for one structure.
_ARRAYS = {
    ("module", "images"): ("image", "image_count"),
    ("module", "kernels"): ("kernel", "kernel_count"),
    ("kernel", "params"): ("param", "param_count"),
    ("kernel", "attributes"): ("attribute", "attribute_count"),
    ("kernel", "maps"): ("tensor_map", "map_count"),
    ("kernel", "triton"): ("triton", None),
    ("triton", "assumptions"): ("assumption", "assumption_count"),
    ("triton", "bindings"): ("binding", "binding_count"),
    ("triton", "descriptors"): ("descriptor_spec", "descriptor_count"),
    ("descriptor_spec", "map"): ("tensor_map", None),
}
_TEXTS = ("name", "symbol", "description", "type", "layout", "metadata", "doc")


class Reader:
    """A record in memory. Pointers are distances from its start."""

    def __init__(self, record: Record) -> None:
        self.data, self.addresses = record
        header = self.structure("record", 0)
        self.header = header
        counts = header["pointer_count"], header["external_count"]
        self.pointers = {*struct.unpack_from(f"<{counts[0]}I", self.data, header["pointers"])}
        self.externals = {*struct.unpack_from(f"<{counts[1]}I", self.data, header["externals"])}

    def structure(self, name: str, offset: int) -> dict[str, Any]:
        """Return the members of a structure."""
        form = layout(name)
        values = {}
        for member, code in form.formats.items():
            value = struct.unpack_from("<" + code.replace("p", "Q"), self.data, offset + form.offsets[member])
            values[member] = value[0] if len(value) == 1 else value
        return values

    def text(self, offset: int) -> str:
        """Return the C string at an offset."""
        return self.data[offset : self.data.index(b"\0", offset)].decode()

    @property
    def module(self) -> dict[str, Any]:
        """The members of the library's module."""
        return self.structure("module", layout("record").size)

    def kernels(self) -> list[dict[str, Any]]:
        """Return the members of the library's kernels."""
        size = layout("kernel").size
        start = self.module["kernels"]
        return [self.structure("kernel", start + i * size) for i in range(self.module["kernel_count"])]

    def program(self, offset: int) -> str:
        """Return the steps of a kernel's launch expressions."""
        steps = []
        for number in range(10_000):
            op = self.structure("op", offset + number * layout("op").size)
            steps.append(" ".join(map(str, filter(None, (OP_NAMES[op["code"]], op["operand"], op["value"])))))
            if steps[-1] == "END":
                break
        return ", ".join(steps)


def show_record(record: Record) -> str:
    """Return a record as text, one member a line. Members that are 0 are left out."""
    reader = Reader(record)
    assert reader.header["size"] == len(record.data)
    return "\n".join(_lines(reader, "module", layout("record").size, "")) + "\n"


def _lines(reader: Reader, name: str, offset: int, indent: str) -> Iterator[str]:
    values = reader.structure(name, offset)
    for member, value in values.items():
        place = offset + layout(name).offsets[member]
        if place in reader.externals:
            yield f"{indent}{member}: {reader.addresses[value]}"
        elif not value:
            continue
        elif member in _TEXTS and layout(name).formats[member] == "p":
            yield f"{indent}{member}: {reader.text(value)!r}"
        elif (name, member) == ("kernel", "plan"):
            yield f"{indent}plan: {reader.program(value)}"
        elif (name, member) == ("kernel", "expressions"):
            count = sum(step.startswith(("STORE", "SET")) for step in reader.program(values["plan"]).split(", "))
            texts = struct.unpack_from(f"<{count}Q", reader.data, value)
            yield from (f"{indent}expression: {reader.text(text)}" for text in texts)
        elif (name, member) in _ARRAYS:
            kind, counter = _ARRAYS[name, member]
            for number in range(values[counter] if counter else 1):
                yield f"{indent}{kind}:"
                yield from _lines(reader, kind, value + number * layout(kind).size, indent + "  ")
        elif layout(name).formats[member] != "p":
            yield f"{indent}{member}: {value}"
