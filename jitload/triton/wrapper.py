"""Generates the C++ wrapper of a library of Triton kernels, from their specializations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitload.codegen.kernel import choice_structure, describe_choices, dtype_code, param_structures
from jitload.codegen.record import ASSUMPTIONS, PARTS, Struct
from jitload.codegen.wrapper import Wrapper, write_image, write_record_files
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import INT64, ScopeEntry
from jitload.model import Cubin, Descriptor, Kernel, Specialization
from jitload.request.launch import Extent, Launch
from jitload.request.request import TritonSource, VariantSource
from jitload.request.tma import MAX_RANK, MODES, padded
from jitload.request.tune import Choice, Values, Variant
from jitload.signature.exports import Export
from jitload.toolchain.arch import capability_of


def write_triton_sources(name: str, sources: Sequence[TritonSource], work_dir: Path) -> tuple[str, ...]:
    """Write a library's cubins, its record and, for inspection, PTX. Return the cubins in the order of the record."""
    codes: list[_Code] = []
    exports = tuple(export for source in sources for export in _exports(source, codes))
    images = tuple(write_image(cubin, name, code.group, work_dir) for code in codes for cubin in code.cubins)
    archs = tuple(dict.fromkeys(image.arch for image in images))
    return write_record_files(Wrapper(name, archs, images, exports, variables=()), work_dir)


# ---- exported functions ----------------------------------------------------------------------------------------


class _Code(NamedTuple):
    """The cubins of a variant that are launched in the same way. They are a group of images in the record."""

    group: int
    cubins: tuple[Cubin, ...]
    launch: Launch
    values: Values

    @property
    def specialization(self) -> Specialization:
        specialization = self.cubins[0].triton
        assert specialization is not None
        return specialization


def _exports(source: TritonSource, codes: list[_Code]) -> Iterator[Export]:
    """Yield the function and, if it has several variants, these as functions, too. Add their code to `codes`."""
    by_variant = [(variant, _codes(variant, source.grid, codes)) for variant in source.variants]
    all_codes = [code for _, variant_codes in by_variant for code in variant_codes]
    lists = [", ".join(argument.name for argument in code.specialization.arguments) for code in all_codes]
    if different := next((names for names in lists if names != lists[0]), None):
        problem = f"the variants take different arguments: ({lists[0]}) and ({different})"
        raise LaunchSpecError(problem, kernel=source.name, field="variants")
    names = [variant.name for variant, variant_codes in by_variant for _ in variant_codes]
    if len(by_variant) == 1:
        names = [source.name] * len(names)
    yield _export(source.name, source.doc, all_codes, names, source.choice)
    for variant, variant_codes in by_variant if len(by_variant) > 1 else ():
        yield _export(variant.name, source.doc, variant_codes, [variant.name] * len(variant_codes))


def _export(name: str, doc: str, codes: Sequence[_Code], names: Sequence[str], choice: Choice | None = None) -> Export:
    """Return a function that launches the first of the codes that accepts the arguments. `names` are the codes'."""
    launched = [_code_export(label, doc, code) for label, code in zip(names, codes, strict=True)]
    first = launched[0]._replace(name=name)
    builds = tuple(build for export in launched if export.name == launched[0].name for build in export.builds)
    builds = builds if len(builds) > 1 else ()
    facts = _facts(codes, names, choice)
    if len(codes) == 1:
        return first._replace(facts=facts, builds=builds)
    triton = {
        "descriptors": _descriptors(codes[0].specialization) or None,
        "descriptor_count": len(codes[0].specialization.descriptors),
        "has_several_archs": int(len({cubin.arch for code in codes for cubin in code.cubins}) > 1),
        "grid_multiplier": (1, 1, 1),
        "scratch_alignment": 1,
    }
    members = {**first.members, "symbol": None, "triton": Struct("triton", triton)}
    if choice is not None:
        members["choice"] = choice_structure(first._replace(choice=choice), [code.values for code in codes])
    return first._replace(variants=tuple(launched), members=members, facts=facts, builds=builds)


def _code_export(name: str, doc: str, code: _Code) -> Export:
    spec = code.specialization
    export = Export(
        name=name,
        kernel=spec.kernel._replace(parameters=spec.arguments),
        launch=code.launch,
        doc=doc,
        builds=tuple((cubin.arch, cubin.triton.kernel) for cubin in code.cubins if cubin.triton is not None),
        group=code.group,
        constants=_constants(spec),
    )
    members = {"params": param_structures(export, _flags_of_triton(spec)), "triton": _triton_structure(code)}
    return export._replace(members=members)


def _codes(variant: VariantSource, grid: Extent | None, codes: list[_Code]) -> list[_Code]:
    """Return a variant's cubins, grouped by how they are launched. Groups for higher architectures come first."""
    groups: dict[Any, list[Cubin]] = {}
    for cubin in variant.cubins:
        assert cubin.triton is not None
        groups.setdefault(_without_compiler_counts(cubin.triton), []).append(cubin)
    by_arch = sorted(groups.values(), key=lambda group: capability_of(group[-1].arch), reverse=True)
    launches = (_launch(group[0].triton, grid) for group in by_arch if group[0].triton is not None)
    pairs = enumerate(zip(by_arch, launches, strict=True), len(codes))
    added = [_Code(number, tuple(group), launch, variant.values) for number, (group, launch) in pairs]
    codes += added
    return added


def _without_compiler_counts(specialization: Specialization) -> Specialization:
    """Return a copy with 0 for values that do not affect a launch, such as the number of registers."""
    name, symbol, parameters, *_ = specialization.kernel
    parameters = tuple(parameter._replace(offset=0) for parameter in parameters)
    kernel = Kernel(name, symbol, parameters, registers=0, shared_bytes=0, local_bytes=0, max_threads=0)
    return specialization._replace(kernel=kernel)


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


# ---- structures of the record ----------------------------------------------------------------------------------


def _triton_structure(code: _Code) -> Struct:
    spec = code.specialization
    indexes = _indexes(spec)
    assumptions = [
        Struct("assumption", {"param": indexes[a.parameter], "kind": ASSUMPTIONS[a.kind], "value": a.value})
        for a in spec.assumptions
    ]
    descriptors, bindings = _descriptors(spec), list(_bindings(spec))
    members = {
        "assumptions": assumptions or None,
        "bindings": bindings or None,
        "descriptors": descriptors or None,
        "assumption_count": len(assumptions),
        "binding_count": len(bindings),
        "descriptor_count": len(descriptors),
        "grid_multiplier": (spec.num_ctas, 1, 1),
        "hidden_pointers": spec.hidden_pointers,
        "scratch_bytes": spec.scratch_bytes * spec.num_ctas,
        "scratch_alignment": spec.scratch_alignment,
    }
    return Struct("triton", members)


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
    numbers = {descriptor.parameter: number for number, descriptor in enumerate(spec.descriptors)}
    taken = {parameter.name for parameter in spec.kernel.parameters}
    for index, argument in enumerate(spec.arguments):
        if (number := numbers.get(argument.name)) is not None:
            for part, axis, _ in spec.descriptors[number].parts:
                yield Struct("binding", {"param": index, "part": PARTS[part], "axis": axis, "descriptor": number})
        elif argument.name in taken:
            yield Struct("binding", {"param": index})


# ---- the description -------------------------------------------------------------------------------------------


def _facts(codes: Sequence[_Code], names: Sequence[str], choice: Choice | None) -> dict[str, Any]:
    """Return what the loader shows of a function beyond what it shows of any function."""
    specialization = codes[0].specialization
    variants = {number: Variant(code.values, (), choice) for number, code in enumerate(codes)}
    triton = {
        "num_warps": specialization.num_warps,
        "num_ctas": specialization.num_ctas,
        "shared_bytes": specialization.shared_bytes,
        "constexprs": dict(specialization.constexprs),
        "tuples": dict(specialization.tuples),
        "version": specialization.triton_version,
        "variants": list(dict.fromkeys(names)),
    }
    tune = {"tune": describe_choices(variants)} if choice else {}
    return {"kernel": specialization.kernel.as_dict(), "triton": triton, **tune}
