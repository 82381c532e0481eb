"""One specialisation of a Triton kernel in, the tables of its launch out, as records for the template."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jitload.codegen.wrapper import dtype_code, join_flags
from jitload.errors import LaunchSpecError
from jitload.model import Descriptor, Parameter, Specialization

_DRIVER_TYPES = {8: 10, 9: 8, 10: 9}  # numbers of element types that the driver has otherwise than the device
_MAX_RANK = 5
_SHAPE = re.compile(r"\[([0-9, ]+)\]")
_KINDS = {"multiple_of": "JITLOAD_MULTIPLE_OF", "equal_to": "JITLOAD_EQUAL_TO", "null": "JITLOAD_NULL"}


def check_specialization(name: str, specialization: Specialization) -> None:
    """Refuse what cannot be launched, or would be launched wrongly.

    Raises:
        LaunchSpecError: The record contradicts itself, or asks for what there is not.
    """
    for problem in _problems(specialization):
        raise LaunchSpecError(problem, kernel=name)


def _problems(spec: Specialization) -> Iterator[str]:
    if spec.profile_scratch.size > 0:
        yield f"the kernel was compiled to profile itself: it wants {spec.profile_scratch.size} bytes for that"
    if not 0 <= spec.hidden_pointers <= 2:
        yield f"{spec.hidden_pointers} hidden pointers; there are 0 to 2"
    if spec.global_scratch.size > 0 and spec.hidden_pointers == 0:
        yield "the kernel wants scratch memory, but takes no pointer to it"
    if not _is_power_of_two(spec.global_scratch.alignment):
        yield f"scratch memory is aligned to {spec.global_scratch.alignment} bytes, which is no power of 2"
    if math.prod(spec.cluster) != spec.num_ctas:
        yield f"a cluster of {spec.cluster} is not {spec.num_ctas} blocks"
    yield from _problems_of_arguments(spec)


def _problems_of_arguments(spec: Specialization) -> Iterator[str]:
    names = [parameter.name for parameter in spec.arguments]
    known = ", ".join(names) or "none"
    for assumption in spec.assumptions:
        if assumption.parameter not in names:
            yield f"{assumption.parameter!r} has an assumption and is none of the arguments: {known}"
        if assumption.kind == "multiple_of" and not _is_power_of_two(assumption.value):
            yield f"{assumption.parameter!r} is assumed to be a multiple of {assumption.value}, which is no power of 2"
    for descriptor in spec.descriptors:
        if descriptor.parameter not in names:
            yield f"{descriptor.parameter!r} has a descriptor and is none of the arguments: {known}"
        if not 1 <= len(descriptor.block_shape) <= _MAX_RANK:
            yield f"descriptor {descriptor.parameter!r} has {len(descriptor.block_shape)} dimensions; there are 1 to 5"


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def specialization_record(spec: Specialization) -> dict[str, Any]:
    """Return what the template needs of a specialisation."""
    numbers = {parameter.name: number for number, parameter in enumerate(spec.arguments)}
    multiply = (spec.num_ctas, 1, 1) if spec.grid_multiplies == "x" else spec.cluster
    scratch = spec.global_scratch
    return {
        "assumptions": [
            {"param": numbers[a.parameter], "kind": _KINDS[a.kind], "value": a.value} for a in spec.assumptions
        ],
        "descriptors": [_descriptor_record(descriptor, spec.arguments, numbers) for descriptor in spec.descriptors],
        "bindings": list(_bindings(spec, numbers)),
        "multiply": _list(multiply),
        "hidden_pointers": spec.hidden_pointers,
        "scratch_bytes": scratch.size * (spec.num_ctas if scratch.is_per_cta else 1),
        "scratch_alignment": scratch.alignment,
    }


def with_param_flags(params: Sequence[Mapping[str, Any]], spec: Specialization) -> list[dict[str, Any]]:
    """Return the records of the arguments, with the flags that only Triton's have."""
    described = {descriptor.parameter for descriptor in spec.descriptors}
    flagged = []
    for parameter, record in zip(spec.arguments, params, strict=True):
        flags = [record["flags"]]
        if parameter.name in described:
            flags.append("JITLOAD_DESCRIBED")
        if parameter.kind == "float" and parameter.size == 2:
            flags.append("JITLOAD_FINITE")
        flagged.append({**record, "flags": join_flags(flags)})
    return flagged


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _descriptor_record(
    descriptor: Descriptor, arguments: Sequence[Parameter], numbers: Mapping[str, int]
) -> dict[str, Any]:
    argument = arguments[numbers[descriptor.parameter]]
    found = _SHAPE.search(argument.type)
    tile = tuple(map(int, found[1].split(","))) if found else descriptor.block_shape
    driver_type = _DRIVER_TYPES.get(descriptor.elem_type, descriptor.elem_type)
    _, bits = dtype_code(descriptor.dtype)
    return {
        "param": numbers[descriptor.parameter],
        "rank": len(descriptor.block_shape),
        "type": -1 if descriptor.is_expanded else driver_type,
        "swizzle": descriptor.swizzle,
        "element_bytes": descriptor.elem_size or bits // 8,
        "is_fp4": int(descriptor.fp4_padded),
        "block": _list(tile),
        "box": _list(descriptor.block_shape),
    }


def _bindings(spec: Specialization, numbers: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield what each parameter of the cubin takes of which argument."""
    descriptors = {descriptor.parameter: number for number, descriptor in enumerate(spec.descriptors)}
    parameters = iter(spec.kernel.parameters)
    for parameter in parameters:
        if parameter.name not in numbers:
            names = ", ".join(numbers) or "none"
            problem = f"the cubin takes {parameter.name!r}, which is none of the arguments: {names}"
            raise LaunchSpecError(problem, kernel=spec.kernel.name)
        binding = {"param": numbers[parameter.name], "part": "JITLOAD_VALUE", "axis": 0, "descriptor": 0}
        number = descriptors.get(parameter.name)
        if number is None:
            yield binding
            continue
        for index, (part, axis) in enumerate(_parts(spec.descriptors[number])):
            if index > 0 and next(parameters, None) is None:
                problem = f"the cubin takes too few parameters for descriptor {parameter.name!r}"
                raise LaunchSpecError(problem, kernel=spec.kernel.name)
            yield {**binding, "part": f"JITLOAD_{part}", "axis": axis, "descriptor": number}


def _parts(descriptor: Descriptor) -> Iterator[tuple[str, int]]:
    """Yield the parts of a descriptor in the cubin's order, each with its axis."""
    axes = range(len(descriptor.block_shape))
    layout = [*(("SHAPE", axis) for axis in axes), *(("STRIDE", axis) for axis in axes)]
    if not descriptor.is_expanded:
        yield from (("MAP", 0), *layout)
        return
    flags = (("PADDING", 0), ("ROUNDING", 0))
    yield from (("VALUE", 0), *layout, *flags[: descriptor.flags], *layout)
