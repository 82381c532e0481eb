"""Generates the C++ wrapper of a library of Triton kernels, from their specializations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitload.codegen.kernel import dtype_code, param_structures
from jitload.codegen.record import Struct, constant
from jitload.codegen.wrapper import Wrapper, write_record_files
from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import INT64, ScopeEntry
from jitload.model import Cubin, Descriptor, Kernel, Specialization
from jitload.request.launch import Extent, Launch
from jitload.request.request import TritonSource, VariantSource
from jitload.request.tma import MAX_RANK, MODES, padded
from jitload.request.tune import Choice, Variant
from jitload.signature.exports import Export
from jitload.toolchain.arch import capability_of


def write_triton_sources(name: str, sources: Sequence[TritonSource], work_dir: Path) -> None:
    """Write a library's record and, for inspection, its cubins and PTX."""
    codes: list[_Code] = []
    exports = tuple(export for source in sources for export in _exports(source, codes))
    images = tuple((cubin, code.group) for code in codes for cubin in code.cubins)
    archs = tuple(dict.fromkeys(cubin.arch for cubin, _ in images))
    write_record_files(Wrapper(name, archs, images, exports, variables=()), work_dir)


# ---- exported functions ----------------------------------------------------------------------------------------


class _Code(NamedTuple):
    """The cubins of a variant that are launched in the same way. They are a group of images in the record."""

    group: int
    variant: VariantSource
    cubins: tuple[Cubin, ...]

    @property
    def specialization(self) -> Specialization:
        return _specialization(self.cubins[0])


def _specialization(cubin: Cubin) -> Specialization:
    assert cubin.triton is not None
    return cubin.triton


def _exports(source: TritonSource, codes: list[_Code]) -> Iterator[Export]:
    """Yield the function and, if it has several variants, these as functions, too. Add their code to `codes`."""
    variants = source.variants if len(source.variants) > 1 else (source.variants[0]._replace(name=source.name),)
    by_variant = [_codes(variant, codes) for variant in variants]
    all_codes = [code for own in by_variant for code in own]
    lists = [", ".join(argument.name for argument in code.specialization.arguments) for code in all_codes]
    if different := next((names for names in lists if names != lists[0]), None):
        problem = f"the variants take different arguments: ({lists[0]}) and ({different})"
        raise LaunchSpecError(problem, kernel=source.name, field="variants")
    yield _export(source, source.name, all_codes, source.choice)
    for own in by_variant if len(by_variant) > 1 else ():
        yield _export(source, own[0].variant.name, own)


def _codes(variant: VariantSource, codes: list[_Code]) -> list[_Code]:
    """Return a variant's cubins, grouped by how they are launched. Groups for higher architectures come first."""
    groups: dict[Any, list[Cubin]] = {}
    for cubin in variant.cubins:
        groups.setdefault(_without_compiler_counts(_specialization(cubin)), []).append(cubin)
    by_arch = sorted(groups.values(), key=lambda group: capability_of(group[-1].arch), reverse=True)
    added = [_Code(number, variant, tuple(group)) for number, group in enumerate(by_arch, len(codes))]
    codes += added
    return added


def _export(source: TritonSource, name: str, codes: Sequence[_Code], choice: Choice | None = None) -> Export:
    """Return a function that launches the first of the codes that accepts the arguments."""
    launched = tuple(_code_export(source, code, choice) for code in codes)
    builds = tuple(build for export in launched if export.name == launched[0].name for build in export.builds)
    facts = _facts(codes)
    first = launched[0]._replace(name=name, facts=facts, builds=builds if len(builds) > 1 else ())
    if len(codes) == 1:
        return first
    triton = {
        "descriptors": _descriptors(codes[0].specialization),
        "has_several_archs": int(len({cubin.arch for code in codes for cubin in code.cubins}) > 1),
        "grid_multiplier": (1, 1, 1),
        "scratch_alignment": 1,
    }
    members = {**first.members, "symbol": None, "triton": Struct("triton", triton)}
    return first._replace(variants=launched, members=members, choice=choice)


def _code_export(source: TritonSource, code: _Code, choice: Choice | None) -> Export:
    spec = code.specialization
    tune = Variant(code.variant.values, (), choice) if choice else None
    export = Export(
        name=code.variant.name,
        kernel=spec.kernel._replace(parameters=spec.arguments),
        launch=_launch(spec, source.grid, tune),
        doc=source.doc,
        builds=tuple((cubin.arch, _specialization(cubin).kernel) for cubin in code.cubins),
        group=code.group,
        constants=_constants(spec),
    )
    members = {"params": param_structures(export, _flags_of_triton(spec)), "triton": _triton_structure(spec)}
    return export._replace(members=members)


def _without_compiler_counts(specialization: Specialization) -> Specialization:
    """Return a copy with 0 for values that do not affect a launch, such as the number of registers."""
    name, symbol, parameters, *_ = specialization.kernel
    parameters = tuple(parameter._replace(offset=0) for parameter in parameters)
    kernel = Kernel(name, symbol, parameters, registers=0, shared_bytes=0, local_bytes=0, max_threads=0)
    return specialization._replace(kernel=kernel)


def _launch(specialization: Specialization, grid: Extent | None, tune: Variant | None) -> Launch:
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
        tune=tune,
    )


# ---- structures of the record ----------------------------------------------------------------------------------


def _triton_structure(spec: Specialization) -> Struct:
    indexes = _indexes(spec)
    assumptions = [
        Struct("assumption", {"param": indexes[a.parameter], "kind": constant(a.kind), "value": a.value})
        for a in spec.assumptions
    ]
    members = {
        "assumptions": assumptions,
        "bindings": [*_bindings(spec)],
        "descriptors": _descriptors(spec),
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
                yield Struct("binding", {"param": index, "part": constant(part), "axis": axis, "descriptor": number})
        elif argument.name in taken:
            yield Struct("binding", {"param": index})


# ---- the description -------------------------------------------------------------------------------------------


def _facts(codes: Sequence[_Code]) -> dict[str, Any]:
    """Return what the loader shows of a function beyond what it shows of any function."""
    specialization = codes[0].specialization
    triton = {
        "num_warps": specialization.num_warps,
        "num_ctas": specialization.num_ctas,
        "shared_bytes": specialization.shared_bytes,
        "constexprs": dict(specialization.constexprs),
        "tuples": dict(specialization.tuples),
        "version": specialization.triton_version,
        "variants": list(dict.fromkeys(code.variant.name for code in codes)),
    }
    return {"kernel": specialization.kernel.as_dict(), "triton": triton}
