"""Describes the tensor maps of a kernel for a library's record."""

from __future__ import annotations

from collections.abc import Iterator

from jitload.codegen.record import Struct
from jitload.element_types import ELEMENT_TYPES
from jitload.request.tma import DTYPES, MAX_RANK, MODES, TmaNumbers
from jitload.signature.exports import Export


def map_structures(export: Export) -> Iterator[Struct]:
    """Yield the structure of each tensor map of an export.

    Raises:
        LaunchSpecError: A `Tma` does not fit the kernel, or exceeds a limit of the driver.
    """
    numbers = {parameter.name: number for number, parameter in enumerate(export.kernel.parameters)}
    for name, tma in export.launch.tensor_maps:
        tensor = numbers[tma.tensor]
        dtype = export.kernel.parameters[tensor].dtype
        assert dtype is not None
        size = ELEMENT_TYPES[dtype].size
        checked = TmaNumbers(tma, dtype, size, export.name, name)
        members = {
            "param": numbers.get(name, tensor),
            "tensor": tensor,
            "rank": tma.rank,
            "type": DTYPES[dtype],
            "interleave": MODES["interleave"][tma.interleave],
            "swizzle": MODES["swizzle"][tma.swizzle],
            "promotion": MODES["l2_promotion"][tma.l2_promotion],
            "fill": MODES["fill"][tma.fill],
            "element_bytes": size,
            "box": padded(checked.box),
            "steps": padded(checked.steps),
            "lower": padded((0, *checked.lower)),
            "upper": padded((0, *checked.upper)),
            "channels": checked.channels,
            "pixels": checked.pixels,
        }
        yield Struct("tensor_map", members)


def padded(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Return extents with zeros for the axes that the tensor does not have."""
    return (*extents, *(0,) * (MAX_RANK - len(extents)))
