"""Reads the members of structures that are passed by value, and the types of device variables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jitload.cpptext.structures import find_declarations
from jitload.model import Variable
from jitload.signature.demangle import demangle, split_top_level
from jitload.signature.types import describe_type, scalars_in

_MAX_ELEMENTS = 64  # of an array of structures; in a longer one, the members are not compared


class Member(NamedTuple):
    """A member of a structure, as the compiler states it."""

    offset: int
    size: int
    type: str


class Layout(NamedTuple):
    """A structure and its members.

    For a device variable the structure is `void`. The only member has the variable's type, and its offset is the
    variable's index among those in the source.
    """

    structure: str
    members: tuple[Member, ...]


def read_layouts(lowered: Iterable[str]) -> tuple[Layout, ...]:
    """Read the lowered names of layout expressions (see `probe.layout_expressions`); other names are ignored."""
    readable = (demangle(symbol) or "" for symbol in lowered)
    return tuple(_read_layout(text) for text in readable if text.startswith("void __jitload_members<"))


def _read_layout(readable: str) -> Layout:
    name, *fields = split_top_level(readable[readable.index("<") + 1 : readable.rindex(">")], ",")
    members = (split_top_level(field.strip().removeprefix("__jitload_field<")[:-1], ",") for field in fields)
    return Layout(
        name, tuple(Member(int(offset[:-2]), int(size.strip()[:-2]), type_.strip()) for offset, size, type_ in members)
    )


def describe_layouts(layouts: Sequence[Layout]) -> dict[str, str]:
    """Return the layout of each structure as `Parameter.layout` has it."""
    members = {layout.structure: layout.members for layout in layouts if layout.structure != "void"}
    return {name: ";".join(_runs(Member(0, 0, name), members)) for name in members}


def _runs(member: Member, structures: Mapping[str, Sequence[Member]]) -> Iterator[str]:
    """Yield the numbers in a member: `f4*2@8` is two floats of four bytes at byte 8."""
    array = re.fullmatch(r"(.*?) ?((?:\[\d+\])+)", member.type)
    element = array[1] if array else member.type
    count = math.prod(map(int, re.findall(r"\d+", array[2]))) if array else 1
    if scalars := scalars_in(element):
        yield f"{scalars[0]}{scalars[1]}*{scalars[2] * count}@{member.offset}"
    elif element in structures and count <= _MAX_ELEMENTS:
        for index in range(count):
            start = member.offset + index * (member.size // count)
            for inner in structures[element]:
                yield from _runs(inner._replace(offset=start + inner.offset), structures)
    else:
        yield f"b{member.size}*1@{member.offset}"


def typed_variables(
    variables: tuple[Variable, ...], layouts: Sequence[Layout], pieces: tuple[str, ...]
) -> tuple[Variable, ...]:
    """Return the variables with the dtypes of their elements, if the compiler reported their types.

    Args:
        variables: The variables of a cubin or an object file.
        layouts: The layouts that the compiler reported, with those of variables.
        pieces: The texts of the source.
    """
    declared = [layout.members[0] for layout in layouts if layout.structure == "void"]
    if not declared:
        return variables
    names = find_declarations(pieces).variables
    types = {names[member.offset]: member.type for member in declared}
    return tuple(replace(variable, dtype=_element_dtype(types.get(variable.name, ""))) for variable in variables)


def _element_dtype(type_: str) -> str | None:
    """Return the dtype of a variable's elements; None accepts any."""
    return describe_type(re.sub(r" ?(?:\[\d+\])+$", "", type_) + "*").dtype if type_ else None
