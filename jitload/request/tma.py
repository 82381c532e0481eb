"""The `Tma` record: how a call encodes a tensor map from a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from jitload.errors import LaunchSpecError
from jitload.expressions.parse import Expression
from jitload.request.launch import check_setting, checked_integer, checked_name

# The driver's constants for the values of the fields.
DTYPES = {
    "uint8": 0, "int8": 0, "bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "int16": 1, "uint32": 2,
    "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
MODES: dict[str, dict[str | None, int]] = {
    "swizzle": {None: 0, "32B": 1, "64B": 2, "128B": 3},
    "l2_promotion": {None: 0, "64B": 1, "128B": 2, "256B": 3},
    "fill": {None: 0, "zero": 0, "nan": 1},
}
MAX_RANK = 5
_CORNERS = (-(2**15), 2**15 - 1)  # the widest range of a corner; with more axes, the driver has lower limits


@dataclass(frozen=True, slots=True)
class Tma:
    """How a call encodes a `CUtensorMap` for the tensor memory accelerator (TMA) from one of its tensors.

    `box` has one number for each axis, in the order of the tensor's axes. Numbers may also be expressions of the values
    of a `Tune`.

    Example:
        `Launch(tma={"a_map": Tma("a", box=("BM", "BK"), dtype="bfloat16", swizzle="128B")})`

    Attributes:
        tensor: The name of the tensor. If no parameter of the kernel has this name, the tensor is passed in the place
            of the tensor map.
        box: The size of the box that one instruction copies. For im2col, its numbers of pixels and of channels.
        dtype: The dtype of the tensor. It may be left out if a parameter of the kernel or `{x.dtype}` tells it.
        swizzle: The swizzle of shared memory: `"32B"`, `"64B"`, `"128B"` or None.
        l2_promotion: The granularity of reads into the L2 cache: `"64B"`, `"128B"`, `"256B"` or None.
        fill: The value of elements outside the tensor: `"zero"` or `"nan"`.
        lower: For im2col, the lower corner of the box of pixels, for the axes between the first and the last one.
        upper: For im2col, the upper corner.
        writes: Whether the kernel may write to the tensor, if the kernel has no pointer to it.
    """

    tensor: str
    _: KW_ONLY
    box: Sequence[Expression]
    dtype: str | None = None
    swizzle: Literal["32B", "64B", "128B"] | None = None
    l2_promotion: Literal["64B", "128B", "256B"] | None = "128B"
    fill: Literal["zero", "nan"] | None = None
    lower: Sequence[Expression] = ()
    upper: Sequence[Expression] = ()
    writes: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensor", checked_name("Tma.tensor", self.tensor))
        check_setting("Tma.dtype", self.dtype, [*DTYPES])
        for name, settings in MODES.items():
            check_setting(f"Tma.{name}", getattr(self, name), [key for key in settings if key])
        ranges = {"box": (1, 1024 if self.lower else 256), "lower": _CORNERS, "upper": _CORNERS}
        for name, limits in ranges.items():
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for axis, number in enumerate(getattr(self, name)):
                checked_integer(f"Tma.{name}[{axis}]", number, *limits)
        if (self.lower and len(self.box) != 2) or len(self.lower) != len(self.upper) or not 1 <= self.rank <= MAX_RANK:
            expected = "must have 1 to 5 numbers; for im2col, two, with lower and upper of equal lengths of 1 to 3"
            raise LaunchSpecError(expected, field="Tma.box")

    @property
    def rank(self) -> int:
        """The number of axes of the tensor."""
        return len(self.lower) + 2 if self.lower else len(self.box)

    def substitute(self, replace_names: Any, dtypes: Mapping[str, str]) -> Tma:
        """Return the record for a variant. `replace_names` puts the variant's values into expressions."""
        numbers = {name: replace_names(getattr(self, name)) for name in ("box", "lower", "upper")}
        return replace(self, dtype=self.dtype or dtypes.get(self.tensor), **numbers)


def read_tma(value: Any) -> tuple[tuple[str, Tma], ...]:
    """Return the tensor maps of a `Launch` as (parameter, Tma) pairs."""
    pairs = tuple(value.items() if isinstance(value, Mapping) else value)
    if not all(isinstance(pair, tuple) and isinstance(pair[-1], Tma) for pair in pairs):
        raise LaunchSpecError("must be a mapping from names of parameters to Tma records", field="tma")
    return pairs


def map_members(tma: Tma, dtype: str, element_bytes: int, kernel: str) -> dict[str, object]:
    """Return the members of the record of a tensor map: the driver's constants, and numbers with the last axis first.

    Raises:
        LaunchSpecError: A number is not constant, or the box has too few or too many bytes.
    """
    numbers: dict[str, tuple[Any, ...]] = {}
    for name in ("box", "lower", "upper"):
        values = [checked_integer(f"Tma.{name}", number, *_CORNERS) for number in getattr(tma, name)]
        if None in values:
            raise LaunchSpecError(f"must be constant when the kernel is compiled: {tma}", kernel=kernel, field="tma")
        numbers[name] = padded(values)
    row_bytes = numbers["box"][0] * element_bytes
    limit = f", at most {tma.swizzle} for its swizzle" if tma.swizzle else ""
    if row_bytes % 16 != 0 or (tma.swizzle and row_bytes > int(tma.swizzle[:-1])):
        problem = f"the last axis of the box must have a multiple of 16 bytes{limit}, got {row_bytes}"
        raise LaunchSpecError(problem, kernel=kernel, field=f"tma, {tma.tensor}")
    return {
        **{name.removeprefix("l2_"): settings[getattr(tma, name)] for name, settings in MODES.items()},
        **numbers,
        "rank": tma.rank,
        "type": DTYPES[dtype],
        "element_bytes": element_bytes,
        "is_im2col": int(bool(tma.lower)),
    }


def padded(extents: Sequence[Any]) -> tuple[Any, ...]:
    """Return extents in the driver's order, the last axis first, with zeros for axes that the tensor does not have."""
    return (*reversed(extents), *(0,) * (MAX_RANK - len(extents)))
