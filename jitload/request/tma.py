"""The `Tma` record: how a call encodes a tensor map from a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from keyword import iskeyword
from typing import Any, Literal

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import check_expression
from jitload.expressions.parse import Expression

# The driver's constants for the values of the fields.
DTYPES = {
    "uint8": 0, "int8": 0, "bool": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "int16": 1, "uint32": 2,
    "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
MODES: dict[str, dict[str | None, int]] = {
    "interleave": {None: 0, "16B": 1, "32B": 2},
    "swizzle": {None: 0, "32B": 1, "64B": 2, "128B": 3},
    "l2_promotion": {None: 0, "64B": 1, "128B": 2, "256B": 3},
    "fill": {"zero": 0, "nan": 1},
}
MAX_RANK = 5
_EXTENTS = ("box", "steps", "lower", "upper")


@dataclass(frozen=True, slots=True)
class Tma:
    """How a call encodes a `CUtensorMap` for the tensor memory accelerator (TMA) from one of its tensors.

    `box`, `steps`, `lower` and `upper` have one number for each axis, in the order of the tensor's axes. Numbers may
    also be expressions of the values of a `Tune`.

    Example:
        `Launch(tma={"a_map": Tma("a", box=("BM", "BK"), dtype="bfloat16", swizzle="128B")})`

    Attributes:
        tensor: The name of the tensor. If no parameter of the kernel has this name, the tensor is passed in the place
            of the tensor map.
        box: The size of the box that one instruction copies.
        dtype: The dtype of the tensor. It may be left out if a parameter of the kernel or `{x.dtype}` tells it.
        swizzle: The swizzle of shared memory: `"32B"`, `"64B"`, `"128B"` or None.
        interleave: The interleaved layout in memory: `"16B"`, `"32B"` or None.
        l2_promotion: The granularity of reads into the L2 cache: `"64B"`, `"128B"`, `"256B"` or None.
        fill: The value of elements outside the tensor: `"zero"` or `"nan"`.
        steps: The element strides, by default 1 for each axis.
        lower: For im2col, the lower corner of the box of pixels, for the axes between the first and the last one.
        upper: For im2col, the upper corner.
        channels: For im2col, the number of channels that one instruction copies.
        pixels: For im2col, the number of pixels that one instruction copies.
        writes: Whether the kernel may write to the tensor, if the kernel has no pointer to it.
    """

    tensor: str
    _: KW_ONLY
    box: Sequence[Expression] = ()
    dtype: str | None = None
    swizzle: Literal["32B", "64B", "128B"] | None = None
    interleave: Literal["16B", "32B"] | None = None
    l2_promotion: Literal["64B", "128B", "256B"] | None = "128B"
    fill: Literal["zero", "nan"] = "zero"
    steps: Sequence[Expression] = ()
    lower: Sequence[Expression] = ()
    upper: Sequence[Expression] = ()
    channels: Expression = 0
    pixels: Expression = 0
    writes: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, str) or not self.tensor.isidentifier() or iskeyword(self.tensor):
            raise _error("tensor", f"must be the name of a tensor, got {self.tensor!r}")
        for name, choices in (*MODES.items(), ("dtype", {None: 0, **DTYPES}), ("writes", (False, True))):
            if (value := getattr(self, name)) not in choices:
                raise _error(name, f"must be one of {', '.join(map(repr, choices))}, got {value!r}")
        numbers = [("channels", self.channels), ("pixels", self.pixels)]
        for name in _EXTENTS:
            if not isinstance(values := getattr(self, name), tuple | list):
                raise _error(name, f"must be a tuple of integers, got {type(values).__name__}")
            object.__setattr__(self, name, tuple(values))
            numbers += [(name, value) for value in values]
        for name, value in numbers:
            if not isinstance(value, int | str) or isinstance(value, bool):
                raise _error(name, f"must be int or an expression (str), got {type(value).__name__}")
        self._check_kind()

    def _check_kind(self) -> None:
        is_im2col = bool(self.lower or self.upper or self.channels or self.pixels)
        if is_im2col == bool(self.box):
            raise _error("box", "pass either box or, for im2col, lower, upper, channels and pixels")
        if is_im2col and not (len(self.lower) == len(self.upper) and self.channels and self.pixels):
            raise _error("lower", "im2col needs lower and upper of equal lengths, and channels and pixels above 0")
        if not (3 if is_im2col or self.interleave else 1) <= self.rank <= MAX_RANK:
            axes = "3 to 5 axes for im2col and interleave" if is_im2col or self.interleave else "1 to 5 axes"
            raise _error("lower" if is_im2col else "box", f"must be for a tensor of {axes}, not {self.rank}")
        if self.steps and len(self.steps) != self.rank:
            raise _error("steps", f"must have {self.rank} numbers, got {len(self.steps)}")

    @property
    def rank(self) -> int:
        """The number of axes of the tensor."""
        return len(self.box) or len(self.lower) + 2

    def substitute(self, replace_names: Any, dtypes: Mapping[str, str]) -> Tma:
        """Return the record for a variant. `replace_names` puts the variant's values into an expression."""
        values: dict[str, Any] = {name: tuple(map(replace_names, getattr(self, name))) for name in _EXTENTS}
        values |= {name: replace_names(getattr(self, name)) for name in ("channels", "pixels")}
        return replace(self, dtype=self.dtype or dtypes.get(self.tensor), **values)


def _error(field: str, problem: str) -> LaunchSpecError:
    return LaunchSpecError(problem, field=f"Tma.{field}")


def read_tma(value: object) -> tuple[tuple[str, Tma], ...]:
    """Return the tensor maps of a `Launch` as (parameter, Tma) pairs."""
    try:
        pairs = dict(value.items() if isinstance(value, Mapping) else value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        pairs = {"": None}
    if not all(isinstance(name, str) and isinstance(tma, Tma) for name, tma in pairs.items()):
        raise LaunchSpecError("must be a mapping from names of parameters to Tma records", field="tma")
    return tuple(pairs.items())


# ---- the driver's limits -------------------------------------------------------------------------------------------


class TmaNumbers:
    """The numbers of a `Tma`, by field, which are checked against the driver's limits.

    Raises:
        LaunchSpecError: A number is not constant, or exceeds a limit.
    """

    def __init__(self, tma: Tma, dtype: str, element_bytes: int, kernel: str, name: str) -> None:
        self._tma, self._kernel, self._name = tma, kernel, name
        corner = {5: (-16, 15), 4: (-128, 127)}.get(tma.rank, (-32768, 32767))
        self.extents = {
            "box": self._extents("box", 1, 256),
            "steps": self._extents("steps", 1, 8) or (1,) * tma.rank,
            **{field: (0, *self._extents(field, *corner)) for field in ("lower", "upper")},
        }
        limits = {"channels": 256, "pixels": 1024} if not tma.box else {}
        self.numbers = {field: self._number(field, getattr(tma, field), 1, limits[field]) for field in limits}
        self._check_bytes((self.numbers.get("channels") or self.extents["box"][-1]) * element_bytes, element_bytes)
        if tma.fill == "nan" and DTYPES[dtype] < DTYPES["float16"]:
            raise self._error("fill", f"must be 'zero' for {dtype}, for which the driver has no NaN")

    def _check_bytes(self, inner_bytes: int, element_bytes: int) -> None:
        """Check the bytes that one instruction copies along the last axis."""
        tma = self._tma
        field = f"box[{tma.rank - 1}]" if tma.box else "channels"
        elements = f"{inner_bytes // element_bytes} elements of {element_bytes} bytes are {inner_bytes}"
        if tma.interleave is None and inner_bytes % 16 != 0:
            raise self._error(field, f"must be a multiple of 16 bytes, but {elements}")
        if tma.interleave == "32B" and tma.swizzle != "32B":
            raise self._error("swizzle", "must be '32B' with interleave='32B'")
        if tma.interleave is None and tma.swizzle and inner_bytes > (limit := int(tma.swizzle[:-1])):
            raise self._error(field, f"must be at most the {limit} bytes of swizzle={tma.swizzle!r}, but {elements}")

    def _extents(self, field: str, low: int, high: int) -> tuple[int, ...]:
        values = getattr(self._tma, field)
        return tuple(self._number(f"{field}[{axis}]", value, low, high) for axis, value in enumerate(values))

    def _number(self, field: str, value: Expression, low: int, high: int) -> int:
        number = value if isinstance(value, int) else check_expression(value, f"tma[{self._name!r}].{field}")[0]
        if number is None:
            raise self._error(field, f"must be constant when the kernel is compiled, got {value!r}")
        if not low <= number <= high:
            raise self._error(field, f"must be from {low} to {high}, got {number}")
        return number

    def _error(self, field: str, problem: str) -> LaunchSpecError:
        return LaunchSpecError(problem, kernel=self._kernel, field=f"tma[{self._name!r}].{field}")
