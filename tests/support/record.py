"""Reads a library's record."""

import ctypes
import struct
from typing import Any

from jitload.codegen.record import Record, layout


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
        structure = layout(name).from_buffer_copy(self.data, offset)
        values = ((member, getattr(structure, member)) for member, _ in layout(name)._fields_)
        return {member: tuple(value) if isinstance(value, ctypes.Array) else value for member, value in values}

    def text(self, offset: int) -> str:
        """Return the C string at an offset."""
        return self.data[offset : self.data.index(b"\0", offset)].decode()

    @property
    def module(self) -> dict[str, Any]:
        """The members of the library's module."""
        return self.structure("module", ctypes.sizeof(layout("record")))

    def kernels(self) -> list[dict[str, Any]]:
        """Return the members of the library's kernels."""
        size = ctypes.sizeof(layout("kernel"))
        start = self.module["kernels"]
        return [self.structure("kernel", start + i * size) for i in range(self.module["kernel_count"])]
