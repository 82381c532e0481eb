"""Reads the members of structures that are passed by value, and the types of device variables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jitload.cpptext.structures import find_declarations
from jitload.model import Variable
from jitload.signature.demangle import demangle, name_number, split_top_level
from jitload.signature.types import describe_type, scalars_in

_MAX_ELEMENTS = 1024  # of an array of structures; in a longer one, the members count as unknown


class Member(NamedTuple):
    """A member of a structure, as the compiler states it."""

    offset: int
    size: int
    type: str


class Layout(NamedTuple):
    """A structure and its members.

    For a device variable the structure is `void`. The only member has the variable's type, and its offset is the
    variable's index among those in the source.

    Attributes:
        structure: Its type.
        members: Its members, or some of them: several layouts may describe a structure.
        size: Its size in bytes.
        is_complete: Whether these are all its members, so that the bytes between them are padding.
    """

    structure: str
    members: tuple[Member, ...]
    size: int = 0
    is_complete: bool = False


def read_layouts(lowered: Iterable[str]) -> tuple[Layout, ...]:
    """Read the names of the functions `__jitload_members` (see `cuda/layout_probe`); other names are ignored."""
    readable = (demangle(symbol) or "" for symbol in lowered if "__jitload_members" in symbol)
    return tuple(filter(None, (_read_layout(text) for text in readable if text.startswith("void __jitload_members<"))))


def _read_layout(readable: str) -> Layout | None:
    name, *parts = _arguments(readable.removeprefix("void __jitload_members"))
    if name.startswith("__jitload_list<"):
        name, *parts = _arguments(name.removeprefix("__jitload_list"))
    members, size, is_complete = [], 0, False
    for part in parts:
        first, second, third = _arguments(part[part.index("<") :])
        if part.startswith("__jitload_field"):
            members.append(Member(int(first[:-2]), int(second[:-2]), third))
        elif int(first[:-2]) != name_number(_without_arguments(name)):
            return None  # a guess about another structure, which has members of these names
        else:
            size, is_complete = int(second[:-2]), third == "true"
    return Layout(name, tuple(members), size, is_complete) if members else None


def _arguments(text: str) -> list[str]:
    """Return the template arguments in `<…>`."""
    return [argument.strip() for argument in split_top_level(text[1 : text.rindex(">")], ",")]


def _without_arguments(name: str) -> str:
    while (plain := re.sub(r"<[^<>]*>", "", name)) != name:
        name = plain
    return name.replace(" ", "")


def describe_layouts(layouts: Sequence[Layout]) -> dict[str, str]:
    """Return the layout of each structure as `Parameter.layout` has it."""
    structures: dict[str, Layout] = {}
    for layout in layouts:
        if layout.structure != "void":
            before = structures.get(layout.structure, layout._replace(members=()))
            members = tuple(sorted({*before.members, *layout.members}))
            structures[layout.structure] = before._replace(members=members)
    return {name: ";".join(_runs(Member(0, layout.size, name), structures)) for name, layout in structures.items()}


def _runs(member: Member, structures: Mapping[str, Layout]) -> Iterator[str]:
    """Yield the numbers in a member: `f4*2@8` is two floats of four bytes at byte 8."""
    array = re.fullmatch(r"(.*?) ?((?:\[\d+\])+)", member.type)
    element = (array[1] if array else member.type).removesuffix(" const")
    extents = [int(extent) for extent in re.findall(r"\d+", array[2])] if array else []
    count = math.prod(extents)
    if scalars := scalars_in(element):
        kind, size, width = scalars
        rows = [*extents[1:], *((width,) if extents and width > 1 else ())]
        sizes = "".join(f"/{size * math.prod(rows[index:])}" for index in range(len(rows)))
        yield f"{kind}{size}*{width * count}@{member.offset}{sizes}"
    elif element in structures and 0 < count <= _MAX_ELEMENTS:
        for index in range(count):
            start = member.offset + index * (member.size // count)
            for inner in (*structures[element].members, *_unknown_bytes(structures[element])):
                yield from _runs(inner._replace(offset=start + inner.offset), structures)
    elif member.size:
        yield f"{'b' if element == 'void' else '?'}{member.size}*1@{member.offset}"


def _unknown_bytes(layout: Layout) -> Iterator[Member]:
    """Yield the bytes of a structure that may be members whose names are not known."""
    end = 0
    for member in (*layout.members, Member(layout.size, 0, "")):
        if member.offset > end and not layout.is_complete:
            yield Member(end, member.offset - end, "?")
        end = max(end, member.offset + member.size)


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
