"""Specialisations of Triton kernels in, C++ text out: the wrapper of a library of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from jitload.codegen.wrapper import (
    EmbeddedImage,
    c_string,
    comment,
    describe_function,
    export_record,
    image_record,
    load_template,
    to_json,
)
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import INT64, ScopeEntry, write_constant
from jitload.launch import Launch
from jitload.model import Cubin, Kernel, Specialization
from jitload.signature.exports import Export
from jitload.toolchain.arch import capability_of
from jitload.triton.tables import check_specialization, specialization_record, with_param_flags

_GIVEN = ("grid", "priority", "raw_pointers", "doc")  # what a variant's launch may say


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonVariant:
    """One specialisation of a kernel.

    Attributes:
        name: The name it is exported under where a function has several.
        cubins: Its machine code, one for an architecture, each with its `triton` record.
        launch: Its grid of programs over arguments and constexprs, or None to leave it to the call; also `priority`
            and `raw_pointers`. The rest is what the kernel was compiled for.
    """

    name: str
    cubins: tuple[Cubin, ...]
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonFunction:
    """A kernel as a function; of several variants, a call launches the first that its arguments fit."""

    name: str
    doc: str
    variants: tuple[TritonVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonWrapper:
    """What a wrapper is generated from."""

    name: str
    functions: tuple[TritonFunction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """Machine code of one variant that is launched alike: all architectures, or some of them."""

    id: str
    name: str
    launch: Launch
    specialization: Specialization
    images: tuple[EmbeddedImage, ...]
    builds: tuple[tuple[str, Kernel], ...]

    def export(self, name: str, doc: str) -> Export:
        kernel = replace(self.specialization.kernel, parameters=self.specialization.arguments)
        return Export(name=name, kernel=kernel, launch=self.launch, doc=doc)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An exported function: a leaf, or a dispatcher over several."""

    name: str
    doc: str
    leaves: tuple[_Leaf, ...]


def render_triton_wrapper(wrapper: TritonWrapper) -> str:
    """Return the C++ text of a library's wrapper.

    Raises:
        LaunchSpecError: A grid does not fit its kernel, or a kernel cannot be launched.
    """
    entries = _entries(wrapper)
    images = [_image(number, cubin) for number, cubin in _numbered_cubins(wrapper)]
    archs = tuple(dict.fromkeys(cubin.arch for _, cubin in _numbered_cubins(wrapper)))
    description = {"name": wrapper.name, "archs": archs, "functions": list(map(_describe, entries)), "variables": []}
    record = {
        "name": comment(wrapper.name),
        "quoted_name": c_string(wrapper.name),
        "images": [image_record(image) for image in images],
        "kernels": _kernel_records(entries),
        "description": c_string(to_json(description)),
    }
    return load_template("triton.cc.jinja").render(wrapper=record)


def cubin_files(wrapper: TritonWrapper) -> tuple[tuple[str, bytes], ...]:
    """Return the files that a wrapper's text embeds, by name."""
    return tuple((_image(number, cubin).file, cubin.data) for number, cubin in _numbered_cubins(wrapper))


# ---- what there is to export ---------------------------------------------------------------------------------------


def _numbered_cubins(wrapper: TritonWrapper) -> list[tuple[int, Cubin]]:
    variants = [variant for function in wrapper.functions for variant in function.variants]
    return [(number, cubin) for number, variant in enumerate(variants) for cubin in variant.cubins]


def _image(number: int, cubin: Cubin) -> EmbeddedImage:
    capability, suffix = capability_of(cubin.arch)
    name = f"kernel{number}_{cubin.arch}"
    return EmbeddedImage(name=name, file=f"{name}.cubin", capability=capability, suffix=suffix)


def _entries(wrapper: TritonWrapper) -> list[_Entry]:
    """Return the exported functions, each dispatcher before its variants."""
    entries: list[_Entry] = []
    number = 0
    for function in wrapper.functions:
        by_variant = []
        is_alone = len(function.variants) == 1
        for variant in function.variants:
            by_variant.append(_leaves(function.name if is_alone else variant.name, variant, number))
            number += 1
        leaves = tuple(leaf for variant_leaves in by_variant for leaf in variant_leaves)
        _check_alike(function.name, leaves)
        entries.append(_Entry(name=function.name, doc=function.doc, leaves=leaves))
        if not is_alone:
            entries += [_Entry(name=found[0].name, doc=function.doc, leaves=found) for found in by_variant]
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LaunchSpecError(f"two functions are named {twice!r}", field="variants")
    return entries


def _leaves(name: str, variant: TritonVariant, number: int) -> tuple[_Leaf, ...]:
    """Put cubins together that differ in nothing but their architecture; what suits fewer devices comes first."""
    groups: dict[Any, list[Cubin]] = {}
    for cubin in variant.cubins:
        assert cubin.triton is not None
        check_specialization(name, cubin.triton)
        groups.setdefault(_launch_facts(cubin.triton), []).append(cubin)
    _check_launch(name, variant.launch)
    return tuple(
        _Leaf(
            id=name if len(groups) == 1 else f"{name}_{cubins[0].arch}",
            name=name,
            launch=_complete_launch(specialization, variant.launch),
            specialization=specialization,
            images=tuple(_image(number, cubin) for cubin in cubins),
            builds=tuple((cubin.arch, cubin.triton.kernel) for cubin in cubins if cubin.triton is not None),
        )
        for cubins in sorted(groups.values(), key=lambda group: capability_of(group[-1].arch), reverse=True)
        if (specialization := cubins[0].triton) is not None
    )


def _launch_facts(specialization: Specialization) -> Specialization:
    """Return the record without what no launch depends on: a compiler's counts of registers and the like."""
    parameters = tuple(replace(parameter, offset=0) for parameter in specialization.kernel.parameters)
    kernel = replace(
        specialization.kernel, parameters=parameters, registers=0, shared_bytes=0, local_bytes=0, max_threads=0
    )
    return replace(specialization, kernel=kernel)


def _check_launch(name: str, launch: Launch) -> None:
    usual = Launch()
    for field in fields(Launch):
        if field.name not in _GIVEN and getattr(launch, field.name) != getattr(usual, field.name):
            problem = "is fixed by the kernel, or has no use here"
            raise LaunchSpecError(problem, kernel=name, field=f"Launch.{field.name}", hint="Leave it out.")


def _check_alike(name: str, leaves: Sequence[_Leaf]) -> None:
    first = [p.name for p in leaves[0].specialization.arguments]
    for leaf in leaves[1:]:
        other = [p.name for p in leaf.specialization.arguments]
        if other != first:
            problem = f"the variants take different arguments: ({', '.join(first)}) and ({', '.join(other)})"
            raise LaunchSpecError(problem, kernel=name, field="variants")


def _complete_launch(specialization: Specialization, launch: Launch) -> Launch:
    """Fill in what the kernel was compiled for. Triton's pointers may be to any layout; strides are arguments."""
    nulls = [assumption.parameter for assumption in specialization.assumptions if assumption.kind == "null"]
    return replace(
        launch,
        block=specialization.num_warps * specialization.warp_size,
        shared_bytes=specialization.shared_bytes,
        cluster=specialization.cluster if specialization.num_ctas > 1 else None,
        cluster_policy="spread" if specialization.num_ctas > 1 else None,
        cooperative=specialization.is_cooperative,
        pdl=specialization.is_pdl,
        nullable=tuple(nulls),
        strided=tuple(p.name for p in specialization.arguments if p.kind == "pointer"),
    )


# ---- records for the template --------------------------------------------------------------------------------------


def _kernel_records(entries: Sequence[_Entry]) -> list[dict[str, Any]]:
    """Return a record for each kernel of the table: first what is exported, as the description counts it."""
    exported = {entry.leaves[0].id: entry for entry in entries if len(entry.leaves) == 1}
    hidden = {leaf.id: leaf for entry in entries for leaf in entry.leaves if leaf.id not in exported}
    ids = [entry.leaves[0].id if len(entry.leaves) == 1 else entry.name for entry in entries] + list(hidden)
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise LaunchSpecError(f"two functions are named {twice!r}", field="variants")
    numbers = {name: number for number, name in enumerate(ids)}
    records = []
    for entry in entries:
        record = _leaf_record(entry.leaves[0], entry.doc)
        record |= {"is_exported": True, "variants": []}
        if len(entry.leaves) > 1:
            record |= _dispatcher_fields(entry, numbers)
        records.append(record)
    records += [{**_leaf_record(leaf, ""), "is_exported": False, "variants": []} for leaf in hidden.values()]
    return [{**record, "number": number} for number, record in enumerate(records)]


def _leaf_record(leaf: _Leaf, doc: str) -> dict[str, Any]:
    record = export_record(leaf.export(leaf.name, doc), _constants(leaf.specialization))
    return {
        **record,
        **specialization_record(leaf.specialization),
        "id": leaf.id,
        "first": leaf.id,
        "params": with_param_flags(record["params"], leaf.specialization),
        "images": [image_record(image) for image in leaf.images],
    }


def _dispatcher_fields(entry: _Entry, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return what differs in a dispatcher from the first of its variants, whose parameters it shows."""
    images = {(image.capability, image.suffix): image for leaf in entry.leaves for image in leaf.images}
    by_capability = [images[key] for key in sorted(images)]
    return {
        "id": entry.name,
        "name": entry.name,
        "quoted_name": c_string(entry.name),
        "symbol": "NULL",
        "flags": "0",
        "priority": 0,
        "struct_bytes": 0,
        "expressions": [],
        "variants": [numbers[leaf.id] for leaf in entry.leaves],
        "images": [image_record(image) for image in by_capability],
    }


def _constants(specialization: Specialization) -> dict[str, ScopeEntry]:
    """Return what launch expressions may use of the constexprs: the integers; another gets a message."""
    constants = {}
    for name, value in specialization.constexprs:
        is_integer = isinstance(value, int) and value in INT64
        text = write_constant(int(value)).text if isinstance(value, int) and is_integer else None
        kind: Any = "int" if is_integer else "other"
        constants[name] = ScopeEntry(index=-1, kind=kind, type="constexpr", computed=text)
    return constants


def _describe(entry: _Entry) -> dict[str, Any]:
    """Return what a loader tells a user of a function."""
    first = entry.leaves[0]
    builds = tuple(build for leaf in entry.leaves if leaf.name == first.name for build in leaf.builds)
    export = first.export(entry.name, entry.doc)
    facts = describe_function(replace(export, builds=builds if len(builds) > 1 else ()))
    nullable = {name for leaf in entry.leaves for name in leaf.launch.nullable}
    arguments = [
        {**argument, **({"nullable": True} if argument["name"] in nullable else {})} for argument in facts["arguments"]
    ]
    specialization = first.specialization
    triton = {
        "num_warps": specialization.num_warps,
        "num_ctas": specialization.num_ctas,
        "shared_bytes": specialization.shared_bytes,
        "constexprs": dict(specialization.constexprs),
        "version": specialization.triton_version,
        "variants": list(dict.fromkeys(leaf.name for leaf in entry.leaves)),
    }
    return {**facts, "arguments": arguments, "kernel": asdict(specialization.kernel), "triton": triton}
