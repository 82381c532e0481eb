"""Asks compilers for the members of structures that are passed by value, and for the types of device variables.

The names of the members come from the source (`cpptext/structures`). Their offsets, sizes and types come from the
mangled names of template instances, which are name expressions for NVRTC, and functions in the object file for g++. The
first half of this file writes the template instances, and the second half reads their mangled names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jitload.candidate import Candidate
from jitload.cpptext.declarations import find_unambiguous
from jitload.cpptext.reading import SourceReading
from jitload.cpptext.structures import Declarations, Structure, type_name
from jitload.request.kind import unqualified
from jitload.signature.demangle import demangle, name_number, template_arguments
from jitload.signature.probe import kernel_expression
from jitload.signature.types import describe_type, find_undeclared_name, resolve_aliases, scalars_in

if TYPE_CHECKING:
    from jitload.model import Variable

# `__jitload_promote`, which replaces an enum by its integer, is defined in the header of probes and in host_call.h.
LAYOUT_DECLARATIONS = """\
#if __cplusplus >= 201103L
template<class __jitload_t> struct __jitload_element { typedef __jitload_t __jitload_type; };
template<class __jitload_t> struct __jitload_element<const __jitload_t> : __jitload_element<__jitload_t> {};
template<class __jitload_t> struct __jitload_element<__jitload_t&> : __jitload_element<__jitload_t> {};
template<class __jitload_t, unsigned long __jitload_n>
struct __jitload_element<__jitload_t[__jitload_n]> : __jitload_element<__jitload_t> {};
template<class __jitload_t, unsigned long __jitload_n>
struct __jitload_element<const __jitload_t[__jitload_n]> : __jitload_element<__jitload_t> {};
template<int __jitload_i, class __jitload_f> struct __jitload_nth_parameter { typedef void __jitload_type; };
template<int __jitload_i, class __jitload_r, class... __jitload_a>
struct __jitload_nth_parameter<__jitload_i, __jitload_r(*)(__jitload_a...)>
    : __jitload_nth_parameter<__jitload_i, __jitload_r(__jitload_a...)> {};
template<int __jitload_i, class __jitload_r, class __jitload_p, class... __jitload_a>
struct __jitload_nth_parameter<__jitload_i, __jitload_r(__jitload_p, __jitload_a...)>
    : __jitload_nth_parameter<__jitload_i - 1, __jitload_r(__jitload_a...)> {};
template<class __jitload_r, class __jitload_p, class... __jitload_a>
struct __jitload_nth_parameter<0, __jitload_r(__jitload_p, __jitload_a...)> : __jitload_element<__jitload_p> {};
template<unsigned long __jitload_offset, unsigned long __jitload_size, class __jitload_t> struct __jitload_field;
template<unsigned long __jitload_name, unsigned long __jitload_size> struct __jitload_whole;
#ifdef __CUDACC_RTC__ /* 114: no definition, which is an error if an argument is in an anonymous namespace */
#pragma nv_diagnostic push
#pragma nv_diag_suppress 114
#endif
template<class __jitload_t, class... __jitload_fields> __global__ void __jitload_members();
#ifdef __CUDACC_RTC__
#pragma nv_diagnostic pop
#endif
#endif
"""

# Constant expressions for the offset of a member. NVRTC has no `__builtin_offsetof` before 13.5.
_NVRTC_OFFSET = "__INTADDR__(&(({0}*)0)->{1})"
_HOST_OFFSET = "__builtin_offsetof({0}, {1})"
_MAX_DEPTH = 8  # levels of structures within structures
_CHUNK = 16  # how many members are in one name, because demanglers reject long names


class LayoutQueries(NamedTuple):
    """Name expressions whose symbols contain the members of structures and the types of device variables.

    `variables` are the names of the device variables, in the order in which the symbols number them.
    """

    expressions: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def layout_queries(
    reading: SourceReading, kernels: Sequence[str], exports: Iterable[str], *, is_nvrtc: bool
) -> LayoutQueries:
    """Return the name expressions for structures that kernels may take by value, and for device variables.

    Args:
        reading: What the source says.
        kernels: The values of `Launch(kernel=…)`.
        exports: The other names in `functions=`.
        is_nvrtc: True if the expressions are for NVRTC, False if they are for g++.
    """
    offset = _NVRTC_OFFSET if is_nvrtc else _HOST_OFFSET
    parameters = tuple(_structure_parameters(_typed_kernels(reading, kernels, exports)))
    names = frozenset(name for _, possible_names in parameters for name in possible_names)
    declarations = reading.declarations(names) if names or reading.has_variables else None
    if declarations is None:
        return LayoutQueries()
    layouts = [
        expression
        for type_, structure in _structures(declarations, parameters)
        for expression in _expressions(type_, structure, offset)
    ]
    variables = [
        f"__jitload_members<void, __jitload_field<{number}, sizeof({name}), __jitload_promote<decltype({name})>"
        "::__jitload_type>>"
        for number, name in enumerate(declarations.variables)
    ]
    return LayoutQueries((*layouts, *variables), declarations.variables)


def _typed_kernels(
    reading: SourceReading, kernels: Sequence[str], exports: Iterable[str]
) -> Iterator[tuple[str, Candidate]]:
    """Yield (expression, candidate) pairs: a C++ expression for a kernel, and a function that may be this kernel."""
    candidates, unambiguous = reading.candidates, reading.unambiguous
    if not {unqualified(name) for name in (*kernels, *exports)} <= {unqualified(c.name) for c in candidates}:
        candidates = (*candidates, *reading.header_candidates)
        unambiguous = find_unambiguous(candidates)
    yield from ((candidate.name, candidate) for candidate in unambiguous)
    for kernel in kernels:
        target = re.split(r"[<(]", kernel)[0].strip().removeprefix("::")
        yield from ((kernel_expression(kernel), c) for c in candidates if c.name == target)


def _structure_parameters(functions: Iterable[tuple[str, Candidate]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the type of each parameter that may be a structure by value, and the possible names of the structure.

    The type is a C++ expression. It may be a template parameter.
    """
    for expression, candidate in functions:
        arguments = re.findall(r"[A-Za-z_]\w*", expression.partition("<")[2]) if candidate.is_template else []
        for index, text in enumerate(candidate.types):
            is_declared = find_undeclared_name(resolve_aliases(text.partition("&")[0])) is None
            if not is_declared and (name := type_name(text)):
                type_ = f"__jitload_nth_parameter<{index}, decltype({expression})>::__jitload_type"
                yield type_, (name, *arguments)


def _structures(
    declarations: Declarations, parameters: Iterable[tuple[str, tuple[str, ...]]]
) -> Iterator[tuple[str, Structure]]:
    """Yield a (C++ type, structure) pair for each type of structure in the parameters, including nested structures."""
    types: set[str] = set()
    for parameter, (name, *arguments) in parameters:
        own = declarations.structures_named(name)
        for outer in own or (s for argument in arguments for s in declarations.structures_named(argument)):
            for steps, structure in _inner_chains(declarations, (), outer):
                type_ = parameter
                for step in steps:
                    type_ = f"__jitload_element<decltype({_member(type_, step)})>::__jitload_type"
                type_ = type_ if structure.is_template else structure.name
                if type_ not in types:
                    types.add(type_)
                    yield type_, structure


def _inner_chains(
    declarations: Declarations, steps: tuple[str, ...], structure: Structure
) -> Iterator[tuple[tuple[str, ...], Structure]]:
    """Yield each structure in another one, and the members that lead to it."""
    yield steps, structure
    for field in structure.fields if len(steps) < _MAX_DEPTH else ():
        if field.type:
            for inner in declarations.structures_named(field.type):
                yield from _inner_chains(declarations, (*steps, field.name), inner)


def _member(type_: str, path: str) -> str:
    return f"(({type_}*)0)->{path}"


def _expressions(type_: str, structure: Structure, offset: str) -> Iterator[str]:
    """Yield template instances whose names contain the members of a structure. `type_` is the structure's C++ type."""
    tag = "::".join((*structure.name.split("::")[:-1], structure.aliases[0]))
    whole = f"__jitload_whole<{name_number(tag)}, sizeof({type_})>"
    fields = [
        f"__jitload_field<{offset.format(type_, field.name)}, sizeof({_member(type_, field.name)}), "
        f"typename __jitload_promote<decltype({_member(type_, field.name)})>::__jitload_type>"
        for field in structure.fields
    ]
    for start in range(0, len(fields), _CHUNK):
        yield f"__jitload_members<{', '.join((type_, whole, *fields[start : start + _CHUNK]))}>"


# ---- the answers -----------------------------------------------------------------------------------------------------

_MAX_ELEMENTS = 1024  # elements of an array of structures; the members of a longer array count as unknown


class Member(NamedTuple):
    """A member of a structure, with its offset and size in bytes."""

    offset: int
    size: int
    type: str


class Layout(NamedTuple):
    """A structure and its members, or a device variable.

    A device variable is stored as a structure `void` with one member, which has the variable's type. The member's
    offset is the variable's index among the device variables in the source.

    Attributes:
        structure: The structure's type.
        members: The members, or some of them: several layouts may describe one structure.
        size: The structure's size in bytes.
    """

    structure: str
    members: tuple[Member, ...]
    size: int = 0


def read_layouts(lowered: Iterable[str]) -> tuple[Layout, ...]:
    """Return the layouts in the lowered names of `__jitload_members` functions. Other names are ignored."""
    readable = (demangle(symbol) or "" for symbol in lowered if "__jitload_members" in symbol)
    return tuple(filter(None, (_read_layout(text) for text in readable if text.startswith("void __jitload_members<"))))


def _read_layout(readable: str) -> Layout | None:
    name, *parts = template_arguments(readable)
    members, size = [], 0
    for part in parts:
        first, second, *types = template_arguments(part)
        if types:
            is_reference = re.search(r"&$|\(&+\)", types[0])  # `sizeof` gives the size of what it refers to
            members.append(Member(int(first[:-2]), 8 if is_reference else int(second[:-2]), types[0]))
        elif int(first[:-2]) != name_number(_without_arguments(name)):
            return None  # the guess matched another structure with members of these names
        else:
            size = int(second[:-2])
    return Layout(name, tuple(members), size) if members else None


def _without_arguments(name: str) -> str:
    while (plain := re.sub(r"<[^<>]*>", "", name)) != name:
        name = plain
    return name.replace(" ", "")


def describe_layouts(layouts: Sequence[Layout]) -> dict[str, str]:
    """Return the `Parameter.layout` of each structure, by the name of the structure."""
    structures: dict[str, Layout] = {}
    for layout in layouts:
        if layout.structure != "void":
            before = structures.get(layout.structure, layout._replace(members=()))
            members = tuple(sorted({*before.members, *layout.members}))
            structures[layout.structure] = before._replace(members=members)
    return {name: ";".join(_runs(Member(0, layout.size, name), structures)) for name, layout in structures.items()}


def _runs(member: Member, structures: Mapping[str, Layout]) -> Iterator[str]:
    """Yield a member's contents in the format of `Parameter.layout`: `f4*2@8` is two floats of four bytes at byte 8."""
    array = re.fullmatch(r"(.*?[^) ]) ?((?:\[\d+\])+)", member.type)  # but not a pointer, `float (*) [4]`
    element = (array[1] if array else member.type).removesuffix(" const")
    extents = [int(extent) for extent in re.findall(r"\d+", array[2])] if array else []
    count = math.prod(extents)
    if scalars := scalars_in(element):
        kind, size, width = scalars
        rows = [*extents[1:], *((width,) if extents and width > 1 else ())]
        sizes = "".join(f"/{size * math.prod(rows[index:])}" for index in range(len(rows)))
        yield f"{kind}{size}*{member.size // size}@{member.offset}{sizes}"
    elif element in structures and 0 < count <= _MAX_ELEMENTS:
        for index in range(count):
            start = member.offset + index * (member.size // count)
            for inner in (*structures[element].members, *_unknown_bytes(structures[element])):
                yield from _runs(inner._replace(offset=start + inner.offset), structures)
    elif member.size:
        yield f"?{member.size}*1@{member.offset}"


def _unknown_bytes(layout: Layout) -> Iterator[Member]:
    """Yield a member of type `?` for each gap between the known members: padding, or members that are not known."""
    end = 0
    for member in (*layout.members, Member(layout.size, 0, "")):
        if member.offset > end:
            yield Member(end, member.offset - end, "?")
        end = max(end, member.offset + member.size)


def typed_variables(
    variables: tuple[Variable, ...], layouts: Sequence[Layout], names: Sequence[str]
) -> tuple[Variable, ...]:
    """Return the variables with the dtypes of their elements, according to the types in `layouts`.

    `names` are the variables in the source, as in `LayoutQueries`.
    """
    declared = [layout.members[0] for layout in layouts if layout.structure == "void"]
    if not declared:
        return variables
    types = {names[member.offset]: member.type for member in declared}
    return tuple(variable._replace(dtype=_element_dtype(types.get(variable.name, ""))) for variable in variables)


def _element_dtype(type_: str) -> str | None:
    """Return the dtype of a variable's elements, or None if it is unknown, so that any dtype is accepted."""
    return describe_type(re.sub(r" ?(?:\[\d+\])+$", "", type_) + "*").dtype if type_ else None
