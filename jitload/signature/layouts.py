"""The members of structures that are passed by value, and the types of device variables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jitload.cpptext.structures import find_declarations
from jitload.model import Variable
from jitload.signature.types import describe_type, scalars_in

Layout = tuple[str, tuple[tuple[int, int, str], ...]]
"""A structure with the offset, size and type of each member, as the compiler states them."""

_MAX_ELEMENTS = 64  # of an array of structures; in a longer one, the members are not compared


def describe_layouts(layouts: Sequence[Layout]) -> dict[str, str]:
    """Return the layout of each structure as `Parameter.layout` has it."""
    members = {name: fields for name, fields in layouts if name != "void"}
    return {name: ";".join(_runs(name, 0, 0, members)) for name in members}


def _runs(type_: str, offset: int, size: int, members: Mapping[str, Sequence[tuple[int, int, str]]]) -> Iterator[str]:
    """Yield the numbers in a member of this type: `f4*2@8` is two floats of four bytes at byte 8."""
    array = re.fullmatch(r"(.*?) ?((?:\[\d+\])+)", type_)
    element = array[1] if array else type_
    count = math.prod(map(int, re.findall(r"\d+", array[2]))) if array else 1
    if scalars := scalars_in(element):
        yield f"{scalars[0]}{scalars[1]}*{scalars[2] * count}@{offset}"
    elif element in members and count <= _MAX_ELEMENTS:
        for index in range(count):
            for member_offset, member_size, member_type in members[element]:
                yield from _runs(member_type, offset + index * (size // count) + member_offset, member_size, members)
    else:
        yield f"b{size}*1@{offset}"


def typed_variables(
    variables: tuple[Variable, ...], layouts: Sequence[Layout], pieces: tuple[str, ...]
) -> tuple[Variable, ...]:
    """Return the variables with the dtypes of their elements, for those whose types the compiler told.

    Args:
        variables: The variables of a cubin or an object file.
        layouts: What the compiler told; the offset of a variable is its index among those in the text.
        pieces: The texts of the source.
    """
    if not any(name == "void" for name, _ in layouts):
        return variables
    names = find_declarations(pieces).variables
    types = {names[fields[0][0]]: fields[0][2] for name, fields in layouts if name == "void"}
    return tuple(replace(variable, dtype=_element_dtype(types.get(variable.name, ""))) for variable in variables)


def _element_dtype(type_: str) -> str | None:
    """Return the dtype of a variable's elements; None accepts any."""
    return describe_type(re.sub(r" ?(?:\[\d+\])+$", "", type_) + "*").dtype if type_ else None
