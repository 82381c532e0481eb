"""Generates the C++ wrapper of a library of Triton kernels, from their specializations."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitload.codegen.kernel import (
    choice_structure,
    describe_choices,
    dtype_code,
    kernel_members,
    param_structures,
)
from jitload.codegen.record import ASSUMPTIONS, PARTS, Array, Place, Record, Struct, write_record
from jitload.codegen.wrapper import EmbeddedImage, describe_function, to_json, wrapper_facts, write_record_files
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import INT64, ScopeEntry
from jitload.model import Cubin, Descriptor, Kernel, Specialization
from jitload.request.launch import Extent, Launch
from jitload.request.tma import MAX_RANK, MODES, padded
from jitload.request.tune import Choice, Values, Variant
from jitload.signature.exports import Export
from jitload.toolchain.arch import capability_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonVariant:
    """One specialization of a kernel: its code for certain constexprs and types of arguments.

    Attributes:
        name: The exported name of the variant. If the function has only this variant, the function's name is used.
        cubins: A cubin for each architecture. The cubin's attribute `triton` says how the cubin is launched.
        grid: Launch expressions for the number of programs, or None if each call passes a grid.
        values: What distinguishes the variant from others.
    """

    name: str
    cubins: tuple[Cubin, ...]
    grid: Extent | None
    values: Values = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonFunction:
    """A kernel that is exported as a function. A call launches the first variant that accepts the arguments.

    With a `choice`, the variant for the key of the call comes before the others.
    """

    name: str
    doc: str
    variants: tuple[TritonVariant, ...]
    choice: Choice | None = None


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
        kernel = self.specialization.kernel._replace(parameters=self.specialization.arguments)
        return Export(name=name, kernel=kernel, launch=self.launch, doc=doc)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An exported function. If it has several `codes`, it is a dispatcher, which chooses one of them at each call.

    `values` has the values of the variant of each code.
    """

    name: str
    doc: str
    codes: tuple[_KernelCode, ...]
    choice: Choice | None = None
    values: tuple[Values, ...] = ()


def write_triton_sources(name: str, functions: Sequence[TritonFunction], work_dir: Path) -> tuple[str, ...]:
    """Write a library's cubins, its record and, for inspection, PTX. Return the cubins in the order of the record."""
    for number, cubin in _numbered_cubins(functions):
        path = work_dir / _image(number, cubin).file
        path.write_bytes(cubin.data)
        if cubin.ptx:
            path.with_suffix(".ptx").write_text(cubin.ptx, encoding="utf-8", newline="")
    return write_record_files(*describe_triton_wrapper(name, functions), work_dir)


def describe_triton_wrapper(name: str, functions: Sequence[TritonFunction]) -> tuple[Record, dict[str, Any]]:
    """Return the record of a library, and what the template of its wrapper needs."""
    entries = _entries(functions)
    cubins = _numbered_cubins(functions)
    archs = tuple(dict.fromkeys(cubin.arch for _, cubin in cubins))
    description = {"name": name, "archs": archs, "functions": list(map(_describe, entries)), "variables": []}
    kernels, modules = _kernel_structures(entries)
    members = {
        "name": name,
        "kernels": Array("kernels", kernels),
        "description": to_json(description),
        "kernel_count": len(kernels),
    }
    record = write_record(Struct("module", members), Array("modules", modules))
    codes = {code.id: code for entry in entries for code in entry.codes}
    exports = [code.export(code.name, "") for code in codes.values()]
    images = [_image(number, cubin) for number, cubin in cubins]
    return record, wrapper_facts(images, exports, [entry.name for entry in entries], record)


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
        values = tuple(v.values for v, own in zip(function.variants, by_variant, strict=True) for _ in own)
        entries.append(_Entry(name=function.name, doc=function.doc, codes=codes, choice=function.choice, values=values))
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
    parameters = tuple(parameter._replace(offset=0) for parameter in specialization.kernel.parameters)
    kernel = specialization.kernel._replace(
        parameters=parameters, registers=0, shared_bytes=0, local_bytes=0, max_threads=0
    )
    return specialization._replace(kernel=kernel)


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
        if not 1 <= (rank := len(descriptor.block_shape)) <= MAX_RANK:
            yield f"descriptor {descriptor.parameter!r} has {rank} dimensions; there are 1 to {MAX_RANK}"


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


# ---- structures of the record ----------------------------------------------------------------------------------


def _kernel_structures(entries: Sequence[_Entry]) -> tuple[list[Struct], list[Struct]]:
    """Return the structures of all kernels, and those of their modules.

    Exported functions come first, in the order of `entries`. Each kernel has a module of its own, with its cubins.
    """
    exported = {entry.codes[0].id for entry in entries if len(entry.codes) == 1}
    hidden = {code.id: code for entry in entries for code in entry.codes if code.id not in exported}
    ids = [entry.codes[0].id if len(entry.codes) == 1 else entry.name for entry in entries] + list(hidden)
    _check_distinct(ids)
    numbers = {id_: number for number, id_ in enumerate(ids)}
    members: list[dict[str, object]] = []
    images: list[Sequence[EmbeddedImage]] = []
    for entry in entries:
        first = entry.codes[0]
        if len(entry.codes) == 1:
            members.append(_code_members(first, entry.doc))
            images.append(first.images)
        else:
            members.append(_dispatcher_members(entry, numbers))
            by_arch = {image.arch: image for code in entry.codes for image in code.images}
            images.append([by_arch[arch] for arch in sorted(by_arch, key=capability_of)])
    members += [_code_members(code, "") for code in hidden.values()]
    images += [code.images for code in hidden.values()]
    kernels = [Struct("kernel", {**row, "module": Place("modules", number)}) for number, row in enumerate(members)]
    names = [row["name"] for row in members]
    return kernels, [_module(name, number, row) for number, (name, row) in enumerate(zip(names, images, strict=True))]


def _module(name: object, number: int, images: Sequence[EmbeddedImage]) -> Struct:
    kernel = Place("kernels", number)
    members = {"name": name, "kernels": kernel, "kernel_count": 1, "description": ""}
    return Struct("module", {**members, "images": [i.structure for i in images], "image_count": len(images)})


def _dispatcher_members(entry: _Entry, numbers: Mapping[str, int]) -> dict[str, object]:
    """Return the members of a dispatcher's structure. Its parameters are those of its first variant."""
    first = entry.codes[0]
    members = _code_members(first, entry.doc)
    kept = ("params", "param_count", "argument_count", "metadata", "doc")
    variants = [Place("kernels", numbers[code.id]) for code in entry.codes]
    descriptors = _descriptors(first.specialization)
    triton = {
        "variants": variants,
        "variant_count": len(variants),
        "descriptors": descriptors or None,
        "descriptor_count": len(descriptors),
        "grid_multiplier": (1, 1, 1),
        "scratch_alignment": 1,
    }
    kept_members = {name: members[name] for name in kept}
    if entry.choice is not None:
        export = first.export(entry.name, entry.doc)._replace(choice=entry.choice)
        kept_members["choice"] = choice_structure(export, entry.values)
    return {**kept_members, "name": entry.name, "triton": Struct("triton", triton)}


def _code_members(code: _KernelCode, doc: str) -> dict[str, object]:
    spec = code.specialization
    export = code.export(code.name, doc)
    indexes = _indexes(spec)
    scratch = spec.global_scratch
    assumptions = [
        Struct("assumption", {"param": indexes[a.parameter], "kind": ASSUMPTIONS[a.kind], "value": a.value})
        for a in spec.assumptions
    ]
    descriptors, bindings = _descriptors(spec), list(_bindings(spec))
    triton = {
        "assumptions": assumptions or None,
        "bindings": bindings or None,
        "descriptors": descriptors or None,
        "assumption_count": len(assumptions),
        "binding_count": len(bindings),
        "descriptor_count": len(descriptors),
        "grid_multiplier": (spec.num_ctas, 1, 1) if spec.grid_multiplies == "x" else tuple(spec.cluster),
        "hidden_pointers": spec.hidden_pointers,
        "scratch_bytes": scratch.size * (spec.num_ctas if scratch.is_per_cta else 1),
        "scratch_alignment": scratch.alignment,
    }
    return {
        **kernel_members(export, _constants(spec)),
        "params": param_structures(export, _flags_of_triton(spec)),
        "triton": Struct("triton", triton),
    }


def _indexes(spec: Specialization) -> dict[str, int]:
    return {argument.name: index for index, argument in enumerate(spec.arguments)}


def _descriptors(spec: Specialization) -> list[Struct]:
    return [_descriptor_structure(descriptor, spec) for descriptor in spec.descriptors]


def _constants(specialization: Specialization) -> dict[str, ScopeEntry]:
    """Return the constexprs by name, for launch expressions. Expressions may use only 64-bit integers among them."""
    constants = {}
    for name, value in specialization.constexprs:
        number = int(value) if isinstance(value, int) and value in INT64 else None
        kind: Any = "int" if number is not None else "other"
        constants[name] = ScopeEntry(position=-1, kind=kind, type="constexpr", constant=number)
    return constants


def _flags_of_triton(spec: Specialization) -> dict[str, list[str]]:
    """Return the flags that only arguments of Triton kernels have, by argument."""
    with_descriptor = {descriptor.parameter for descriptor in spec.descriptors}
    return {
        a.name: [
            *(["described"] if a.name in with_descriptor else []),
            *(["finite"] if a.kind == "float" and a.size == 2 else []),
        ]
        for a in spec.arguments
    }


_DRIVER_TYPES = {8: 10, 9: 8, 10: 9}  # from device code's numbers of element types to the driver's, where they differ
_SHAPE = re.compile(r"\[([0-9, ]+)\]")


def _descriptor_structure(descriptor: Descriptor, spec: Specialization) -> Struct:
    index = _indexes(spec)[descriptor.parameter]
    shape = _SHAPE.search(spec.arguments[index].type)
    _, bits = dtype_code(descriptor.dtype)
    block = tuple(map(int, shape[1].split(","))) if shape else tuple(descriptor.block_shape)
    members = {
        "param": index,
        "tensor": index,
        "rank": len(descriptor.block_shape),
        "type": -1 if descriptor.is_expanded else _DRIVER_TYPES.get(descriptor.elem_type, descriptor.elem_type),
        "swizzle": descriptor.swizzle,
        "promotion": MODES["l2_promotion"]["128B"],
        "element_bytes": descriptor.elem_size or bits // 8,
        "is_fp4": int(descriptor.fp4_padded),
        "box": padded(tuple(descriptor.block_shape)),
    }
    return Struct(
        "descriptor_spec",
        {"param": index, "block": (*block, *(0,) * (MAX_RANK - len(block))), "map": Struct("tensor_map", members)},
    )


def _bindings(spec: Specialization) -> Iterator[Struct]:
    """Yield a structure for each parameter of the cubin. It names an argument, and the part of it to pass."""
    indexes = _indexes(spec)
    descriptors = {descriptor.parameter: number for number, descriptor in enumerate(spec.descriptors)}
    parameters = iter(spec.kernel.parameters)
    for parameter in parameters:
        index, number = indexes[parameter.name], descriptors.get(parameter.name)
        if number is None:
            yield Struct("binding", {"param": index})
            continue
        for position, (part, axis) in enumerate(_descriptor_parts(spec.descriptors[number])):
            if position > 0:
                next(parameters)
            members = {"param": index, "part": PARTS[part.lower()], "axis": axis, "descriptor": number}
            yield Struct("binding", members)


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
    variants = {number: Variant(values, (), entry.choice) for number, values in enumerate(entry.values)}
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
        "kernel": specialization.kernel.as_dict(),
        "triton": triton,
        **({"tune": describe_choices(variants)} if entry.choice else {}),
    }
