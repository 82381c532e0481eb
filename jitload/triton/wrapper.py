"""Generates the C++ wrapper of a library of Triton kernels, from their specializations."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jitload.codegen.wrapper import (
    EmbeddedImage,
    c_string,
    comment,
    describe_function,
    dtype_code,
    export_record,
    join_flags,
    load_template,
    to_json,
)
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import INT64, ScopeEntry, write_constant
from jitload.model import Cubin, Descriptor, Kernel, Parameter, Specialization
from jitload.request.launch import Extent, Launch
from jitload.signature.exports import Export
from jitload.toolchain.arch import capability_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonVariant:
    """One specialization of a kernel: its code for certain constexprs and types of arguments.

    Attributes:
        name: The exported name of the variant. If the function has only this variant, the function's name is used.
        cubins: A cubin for each architecture. The cubin's attribute `triton` says how the cubin is launched.
        grid: Launch expressions for the number of programs, or None if each call passes a grid.
    """

    name: str
    cubins: tuple[Cubin, ...]
    grid: Extent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonFunction:
    """A kernel that is exported as a function. A call launches the first variant that accepts the arguments."""

    name: str
    doc: str
    variants: tuple[TritonVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelCode:
    """A variant's machine code for the architectures whose cubins are launched in the same way."""

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
    """An exported function. If it has several `codes`, it is a dispatcher, which chooses one of them at each call."""

    name: str
    doc: str
    codes: tuple[_KernelCode, ...]


def write_triton_sources(name: str, functions: Sequence[TritonFunction], work_dir: Path) -> tuple[str, ...]:
    """Write a library's cubins, its wrapper and, for inspection, PTX to files. Return the names of the cubin files."""
    files = []
    for number, cubin in _numbered_cubins(functions):
        path = work_dir / _image(number, cubin).file
        path.write_bytes(cubin.data)
        files.append(path.name)
        if cubin.ptx:
            path.with_suffix(".ptx").write_text(cubin.ptx, encoding="utf-8", newline="")
    (work_dir / "wrapper.cc").write_text(render_triton_wrapper(name, functions), encoding="utf-8")
    return tuple(files)


def render_triton_wrapper(name: str, functions: Sequence[TritonFunction]) -> str:
    """Return the C++ text of a library's wrapper."""
    entries = _entries(functions)
    cubins = _numbered_cubins(functions)
    archs = tuple(dict.fromkeys(cubin.arch for _, cubin in cubins))
    description = {"name": name, "archs": archs, "functions": list(map(_describe, entries)), "variables": []}
    record = {
        "name": comment(name),
        "quoted_name": c_string(name),
        "images": [_image(number, cubin) for number, cubin in cubins],
        "kernels": _kernel_records(entries),
        "description": c_string(to_json(description)),
    }
    return load_template("triton.cc.jinja").render(wrapper=record)


def _numbered_cubins(functions: Sequence[TritonFunction]) -> list[tuple[int, Cubin]]:
    """Return a (variant number, cubin) pair for each cubin."""
    variants = [variant for function in functions for variant in function.variants]
    return [(number, cubin) for number, variant in enumerate(variants) for cubin in variant.cubins]


def _image(number: int, cubin: Cubin) -> EmbeddedImage:
    name = f"kernel{number}_{cubin.arch}"
    return EmbeddedImage(name, f"{name}.cubin", cubin.arch)


# ---- exported functions ----------------------------------------------------------------------------------------


def _entries(functions: Sequence[TritonFunction]) -> list[_Entry]:
    """Return the exported functions. A function with several variants is a dispatcher, and its variants follow it."""
    entries: list[_Entry] = []
    numbers = itertools.count()
    for function in functions:
        has_dispatcher = len(function.variants) > 1
        by_variant = [
            _codes(variant.name if has_dispatcher else function.name, variant, next(numbers))
            for variant in function.variants
        ]
        codes = tuple(code for variant_codes in by_variant for code in variant_codes)
        _check_same_arguments(function.name, codes)
        entries.append(_Entry(name=function.name, doc=function.doc, codes=codes))
        if has_dispatcher:
            entries += [_Entry(name=codes[0].name, doc=function.doc, codes=codes) for codes in by_variant]
    _check_distinct([entry.name for entry in entries])
    return entries


def _check_distinct(names: Sequence[str]) -> None:
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise LaunchSpecError(f"two functions are named {repeated!r}", field="variants")


def _codes(name: str, variant: TritonVariant, number: int) -> tuple[_KernelCode, ...]:
    """Return a variant's cubins, grouped by how they are launched. Groups for higher architectures come first."""
    groups: dict[Any, list[Cubin]] = {}
    for cubin in variant.cubins:
        assert cubin.triton is not None
        _check_specialization(name, cubin.triton)
        groups.setdefault(_without_compiler_counts(cubin.triton), []).append(cubin)
    return tuple(
        _KernelCode(
            id=name if len(groups) == 1 else f"{name}_{cubins[0].arch}",
            name=name,
            launch=_launch(specialization, variant.grid),
            specialization=specialization,
            images=tuple(_image(number, cubin) for cubin in cubins),
            builds=tuple((cubin.arch, cubin.triton.kernel) for cubin in cubins if cubin.triton is not None),
        )
        for cubins in sorted(groups.values(), key=lambda group: capability_of(group[-1].arch), reverse=True)
        if (specialization := cubins[0].triton) is not None
    )


def _without_compiler_counts(specialization: Specialization) -> Specialization:
    """Return a copy with 0 for values that do not affect a launch, such as the number of registers."""
    parameters = tuple(replace(parameter, offset=0) for parameter in specialization.kernel.parameters)
    kernel = replace(
        specialization.kernel, parameters=parameters, registers=0, shared_bytes=0, local_bytes=0, max_threads=0
    )
    return replace(specialization, kernel=kernel)


def _check_same_arguments(name: str, codes: Sequence[_KernelCode]) -> None:
    lists = [", ".join(argument.name for argument in code.specialization.arguments) for code in codes]
    if different := next((names for names in lists if names != lists[0]), None):
        problem = f"the variants take different arguments: ({lists[0]}) and ({different})"
        raise LaunchSpecError(problem, kernel=name, field="variants")


def _launch(specialization: Specialization, grid: Extent | None) -> Launch:
    """Return the launch of a kernel, with the values that Triton fixed at compilation.

    Pointers accept tensors of any layout, because strides are arguments of the kernel.
    """
    return Launch(
        grid=grid,
        block=specialization.num_warps * specialization.warp_size,
        shared_bytes=specialization.shared_bytes,
        cluster=specialization.cluster if specialization.num_ctas > 1 else None,
        cluster_policy="spread" if specialization.num_ctas > 1 else None,
        cooperative=specialization.is_cooperative,
        pdl=specialization.is_pdl,
        nullable=tuple(a.parameter for a in specialization.assumptions if a.kind == "null"),
        strided=tuple(p.name for p in specialization.arguments if p.kind == "pointer"),
    )


# ---- checks of a specialization --------------------------------------------------------------------------------

_MAX_RANK = 5


def _check_specialization(name: str, spec: Specialization) -> None:
    """Raise LaunchSpecError if Triton's metadata describes a kernel that cannot be launched."""
    if problem := next(_problems(spec), None):
        raise LaunchSpecError(problem, kernel=name)


def _problems(spec: Specialization) -> Iterator[str]:
    if not _is_power_of_two(spec.global_scratch.alignment):
        yield f"scratch memory is aligned to {spec.global_scratch.alignment} bytes, which is not a power of 2"
    if math.prod(spec.cluster) != spec.num_ctas:
        yield f"a cluster of {spec.cluster} is not {spec.num_ctas} blocks"
    for assumption in spec.assumptions:
        if assumption.kind == "multiple_of" and not _is_power_of_two(assumption.value):
            yield f"{assumption.parameter!r} is assumed to be a multiple of {assumption.value}, not a power of 2"
    for descriptor in spec.descriptors:
        if not 1 <= (rank := len(descriptor.block_shape)) <= _MAX_RANK:
            yield f"descriptor {descriptor.parameter!r} has {rank} dimensions; there are 1 to {_MAX_RANK}"


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


# ---- records for the template ----------------------------------------------------------------------------------


def _kernel_records(entries: Sequence[_Entry]) -> list[dict[str, Any]]:
    """Return the records of the wrapper's kernel table. Exported functions come first, in the order of `entries`."""
    exported = {entry.codes[0].id for entry in entries if len(entry.codes) == 1}
    hidden = {code.id: code for entry in entries for code in entry.codes if code.id not in exported}
    ids = [entry.codes[0].id if len(entry.codes) == 1 else entry.name for entry in entries] + list(hidden)
    _check_distinct(ids)
    numbers = {id_: number for number, id_ in enumerate(ids)}
    records = []
    for entry in entries:
        dispatcher = _dispatcher_fields(entry, numbers) if len(entry.codes) > 1 else {}
        record = _code_record(entry.codes[0], entry.doc)
        records.append({**record, "is_exported": True, "variants": [], **dispatcher})
    records += [{**_code_record(code, ""), "is_exported": False, "variants": []} for code in hidden.values()]
    return [{**record, "number": number} for number, record in enumerate(records)]


def _dispatcher_fields(entry: _Entry, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a dispatcher's record that differ from the record of its first variant."""
    images = {image.arch: image for code in entry.codes for image in code.images}
    return {
        "id": entry.name,
        "name": entry.name,
        "quoted_name": c_string(entry.name),
        "symbol": "NULL",
        "flags": "0",
        "priority": 0,
        "struct_bytes": 0,
        "expressions": [],
        "variants": [numbers[code.id] for code in entry.codes],
        "images": [images[arch] for arch in sorted(images, key=capability_of)],
    }


def _code_record(code: _KernelCode, doc: str) -> dict[str, Any]:
    spec = code.specialization
    record = export_record(code.export(code.name, doc), _constants(spec))
    indexes = {argument.name: index for index, argument in enumerate(spec.arguments)}
    scratch = spec.global_scratch
    return {
        **record,
        "id": code.id,
        "first": code.id,
        "params": _with_triton_flags(record["params"], spec),
        "images": code.images,
        "assumptions": [
            {"param": indexes[a.parameter], "kind": f"JITLOAD_{a.kind.upper()}", "value": a.value}
            for a in spec.assumptions
        ],
        "descriptors": [_descriptor_record(descriptor, spec.arguments, indexes) for descriptor in spec.descriptors],
        "bindings": list(_bindings(spec, indexes)),
        "multiply": _numbers((spec.num_ctas, 1, 1) if spec.grid_multiplies == "x" else spec.cluster),
        "hidden_pointers": spec.hidden_pointers,
        "scratch_bytes": scratch.size * (spec.num_ctas if scratch.is_per_cta else 1),
        "scratch_alignment": scratch.alignment,
    }


def _constants(specialization: Specialization) -> dict[str, ScopeEntry]:
    """Return the constexprs by name, for launch expressions. Expressions may use only 64-bit integers among them."""
    constants = {}
    for name, value in specialization.constexprs:
        text = write_constant(int(value)).text if isinstance(value, int) and value in INT64 else None
        kind: Any = "int" if text is not None else "other"
        constants[name] = ScopeEntry(position=-1, kind=kind, type="constexpr", computed=text)
    return constants


def _with_triton_flags(params: Sequence[Mapping[str, Any]], spec: Specialization) -> list[dict[str, Any]]:
    """Return the arguments' records with the flags that only arguments of Triton kernels have."""
    with_descriptor = {descriptor.parameter for descriptor in spec.descriptors}
    records = []
    for argument, record in zip(spec.arguments, params, strict=True):
        flags = [record["flags"]]
        if argument.name in with_descriptor:
            flags.append("JITLOAD_DESCRIBED")
        if argument.kind == "float" and argument.size == 2:
            flags.append("JITLOAD_FINITE")
        records.append({**record, "flags": join_flags(flags)})
    return records


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


_DRIVER_TYPES = {8: 10, 9: 8, 10: 9}  # from device code's numbers of element types to the driver's, where they differ
_SHAPE = re.compile(r"\[([0-9, ]+)\]")


def _descriptor_record(
    descriptor: Descriptor, arguments: Sequence[Parameter], indexes: Mapping[str, int]
) -> dict[str, Any]:
    index = indexes[descriptor.parameter]
    shape = _SHAPE.search(arguments[index].type)
    _, bits = dtype_code(descriptor.dtype)
    return {
        "param": index,
        "rank": len(descriptor.block_shape),
        "type": -1 if descriptor.is_expanded else _DRIVER_TYPES.get(descriptor.elem_type, descriptor.elem_type),
        "swizzle": descriptor.swizzle,
        "element_bytes": descriptor.elem_size or bits // 8,
        "is_fp4": int(descriptor.fp4_padded),
        "block": _numbers(tuple(map(int, shape[1].split(","))) if shape else descriptor.block_shape),
        "box": _numbers(descriptor.block_shape),
    }


def _bindings(spec: Specialization, indexes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield a record for each parameter of the cubin. The record names an argument, and the part of it to pass."""
    descriptors = {descriptor.parameter: number for number, descriptor in enumerate(spec.descriptors)}
    parameters = iter(spec.kernel.parameters)
    for parameter in parameters:
        binding = {"param": indexes[parameter.name], "part": "JITLOAD_VALUE", "axis": 0, "descriptor": 0}
        number = descriptors.get(parameter.name)
        if number is None:
            yield binding
            continue
        for position, (part, axis) in enumerate(_descriptor_parts(spec.descriptors[number])):
            if position > 0:
                next(parameters)
            yield {**binding, "part": f"JITLOAD_{part}", "axis": axis, "descriptor": number}


def _descriptor_parts(descriptor: Descriptor) -> Iterator[tuple[str, int]]:
    """Yield a (part, axis) pair, such as ("STRIDE", 1), for each parameter that one descriptor takes in the cubin."""
    axes = range(len(descriptor.block_shape))
    layout = [*(("SHAPE", axis) for axis in axes), *(("STRIDE", axis) for axis in axes)]
    if not descriptor.is_expanded:
        yield from (("MAP", 0), *layout)
        return
    flags = (("PADDING", 0), ("ROUNDING", 0))
    yield from (("VALUE", 0), *layout, *flags[: descriptor.flags], *layout)


# ---- the description -------------------------------------------------------------------------------------------


def _describe(entry: _Entry) -> dict[str, Any]:
    """Return the description of an exported function. The loader shows the description to users."""
    first = entry.codes[0]
    specialization = first.specialization
    builds = tuple(build for code in entry.codes if code.name == first.name for build in code.builds)
    export = first.export(entry.name, entry.doc)._replace(builds=builds if len(builds) > 1 else ())
    record = describe_function(export)
    nullable = {name for code in entry.codes for name in code.launch.nullable}
    triton = {
        "num_warps": specialization.num_warps,
        "num_ctas": specialization.num_ctas,
        "shared_bytes": specialization.shared_bytes,
        "constexprs": dict(specialization.constexprs),
        "tuples": dict(specialization.tuples),
        "version": specialization.triton_version,
        "variants": list(dict.fromkeys(code.name for code in entry.codes)),
    }
    return {
        **record,
        "arguments": [
            {**argument, **({"nullable": True} if argument["name"] in nullable else {})}
            for argument in record["arguments"]
        ],
        "kernel": asdict(specialization.kernel),
        "triton": triton,
    }
