"""Compares the members of ctypes structures with a kernel's. The library calls this (`runtime/core/arguments.cc`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

_PART = re.compile(r"(.)(\d+)\*(\d+)@(\d+)((?:/\d+)*)")
_NAMES = {"f": "a float", "b": "a number"}
_AS_IN_SOURCE = "declare its members as in the C++ source, or pass bytes, which are not checked"


class _Numbers(NamedTuple):
    """Consecutive numbers in a structure, one part of `Parameter.layout`: `f4*2@8`, or `f4*6@8/12` with rows' sizes.

    The kinds are `f` (float), `r` (bfloat16), `i` and `u` (integers, bool, pointers), `b` (bytes of any meaning) and
    `?` (padding, or bytes whose meaning is not known).
    """

    kind: str
    size: int
    bytes: range
    rows: tuple[int, ...]

    @classmethod
    def of(cls, kind: str, size: str, count: str, offset: str, rows: str) -> _Numbers:
        begin, end = int(offset), int(offset) + int(size) * int(count)
        return cls(kind, int(size), range(begin, end), tuple(map(int, rows.split("/")[1:])))

    @property
    def is_comparable(self) -> bool:
        """Whether the meaning of these bytes is known, and ctypes has a type for them."""
        return self.kind not in "b?r" and not (self.kind == "f" and self.size < 4)


class _Member(NamedTuple):
    """A number in a ctypes structure (`f`, `i` or `b`), or a row of an array of several dimensions (`row`)."""

    kind: str
    offset: int
    size: int


def find_difference(type_: Any, size: int, parameter_type: str, layout: str | None) -> str | None:
    """Return how a ctypes type differs from a structure of this layout, for an error message, or None.

    Other types, such as ctypes arrays of bytes, have no members to compare.
    """
    if not _has_members(type_):
        return None
    numbers = [_Numbers.of(*part) for part in _PART.findall(layout or f"?{size}*1@0")]
    covered: set[int] = set()
    for member in _members(type_, 0, size):
        if member.kind == "swapped":
            return f"has bytes in the other order; {_AS_IN_SOURCE}"
        end = member.offset + member.size
        overlapping = (part for part in numbers if member.offset < part.bytes.stop and end > part.bytes.start)
        for difference in filter(None, (_compare(member, part, parameter_type) for part in overlapping)):
            return difference
        covered.update(range(member.offset, end))
    missing = (part for part in numbers if part.is_comparable and not covered.issuperset(part.bytes))
    part = next(missing, None)
    return part and f"has no member for {_name(part.kind, part.size)} at byte {part.bytes.start}; {_AS_IN_SOURCE}"


def _compare(member: _Member, numbers: _Numbers, parameter_type: str) -> str | None:
    if member.kind == "row":
        if not numbers.rows or member.size in numbers.rows:
            return None
        has = f"has rows of {member.size} bytes in the array at byte {numbers.bytes.start}"
        return f"{has}, where {parameter_type} has other rows; {_AS_IN_SOURCE}"
    has = f"has {_name(member.kind, member.size)} at byte {member.offset}"
    if numbers.kind == "?" and member[::2] != ("i", 1):
        return (
            f"{has}, where jitload knows no member of {parameter_type}; pass bytes, bytes(structure), which are not "
            f"checked, or declare bytes there: c_ubyte * {len(numbers.bytes)}"
        )
    is_same = (member.kind == "f") == (numbers.kind == "f") and member.size == numbers.size
    if not numbers.is_comparable or (is_same and (member.offset - numbers.bytes.start) % member.size == 0):
        return None
    kind = _NAMES.get(numbers.kind, "an integer")
    return f"{has}, where {parameter_type} has {kind} of {numbers.size}; {_AS_IN_SOURCE}"


def _name(kind: str, size: int) -> str:
    return f"{_NAMES.get(kind, 'an integer')} of {size} byte{'' if size == 1 else 's'}"


def _has_members(type_: Any) -> bool:
    if hasattr(type_, "_length_"):
        return _letter(type_._type_) not in ("b", "B", "c")
    return hasattr(type_, "_fields_") or _letter(type_) != ""


def _letter(type_: Any) -> str:
    """Return the letter of a simple ctypes type. Return "" for other types."""
    letter = getattr(type_, "_type_", "")
    return letter if isinstance(letter, str) else ""


def _members(type_: Any, offset: int, size: int) -> Iterator[_Member]:
    if hasattr(type_, "_swappedbytes_"):
        yield _Member("swapped", offset, size)
    elif hasattr(type_, "_fields_"):
        for class_ in reversed(type_.__mro__):
            for name, field_type, *bits in vars(class_).get("_fields_", ()):
                if not bits:  # a bit field has no byte offset
                    field = getattr(class_, name)
                    yield from _members(field_type, offset + field.offset, field.size)
    elif hasattr(type_, "_length_"):
        step = size // max(type_._length_, 1)
        for begin in range(offset, offset + step * type_._length_, max(step, 1)):
            if hasattr(type_._type_, "_length_"):
                yield _Member("row", begin, step)
            yield from _members(type_._type_, begin, step)
    else:  # a number or a pointer
        yield _Member({"f": "f", "d": "f", "g": "b"}.get(_letter(type_), "i"), offset, size)
