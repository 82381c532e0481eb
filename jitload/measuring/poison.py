"""Overwrites outputs before a call, to find the elements that the call does not write."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitload.errors import MismatchError
from jitload.measuring.difference import Tolerance, as_array, check_agrees, find_differences

# Repeated in all bytes, the first is NaN in the floating-point formats, and the second a number of moderate size.
POISONS = (0xFF, 0x3F)


class PoisonedRun(NamedTuple):
    """The values of an output before and after a call."""

    before: Any
    after: Any

    def is_unchanged(self) -> bool:
        """Return whether the call has left all elements as they were."""
        return not _differ(self.after, self.before).any()


def is_floating(tensor: Any) -> bool:
    """Return whether the elements of a tensor are floating-point or complex numbers."""
    array = as_array(tensor)
    if hasattr(array, "is_floating_point"):
        return bool(array.is_floating_point() or array.is_complex())
    return array.dtype.kind not in "biu"


def poison(tensor: Any, byte: int) -> None:
    """Set all bytes of the elements of a tensor to `byte`, but not the gaps between the elements."""
    array = as_array(tensor)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        import numpy as np

        is_bool = array.dtype == np.bool_
        array[...] = byte == POISONS[0] if is_bool else np.frombuffer(bytes([byte]) * array.itemsize, array.dtype)[0]
        return
    for dimension, stride in enumerate(array.stride()):
        if stride == 0:  # torch writes only to distinct elements
            array = array.narrow(dimension, 0, 1)
    if array.dtype == torch.bool:
        array.fill_(byte == POISONS[0])
    else:
        value = torch.full((array.element_size(),), byte, dtype=torch.uint8, device=array.device).view(array.dtype)
        array.copy_(value.expand(array.shape))


def check_writes(
    result: tuple[str, str, Sequence[PoisonedRun]],
    right: tuple[str, Sequence[PoisonedRun], Any],
    tolerance: Tolerance,
    *,
    is_sure: bool,
) -> None:
    """Raise MismatchError if a function leaves elements unwritten that the right function writes, or writes others.

    An element is unwritten if it keeps every poison. A function whose other results depend on the poison, such as
    `y += x`, reads the output. Whether it is right is known from its results for the original values only.

    Args:
        result: The function's name, the name of the output, and the runs of the function, one for each poison.
        right: The name of the right function, its runs, and the right result for the original values.
        tolerance: The differences that are allowed.
        is_sure: Whether the right function is known to be right.
    """
    (function, name, runs), (right_name, right_runs, expected) = result, right
    is_steady = ~_differ(runs[0].after, runs[1].after)
    changed = [_differ(run.after, run.before) for run in runs]
    wrong = [_differ(run.after, other.after, tolerance) for run, other in zip(runs, right_runs, strict=True)]
    follows = changed[1] & ~is_steady
    if follows.any() and (follows & _differ(runs[1].after, expected, tolerance)).any():
        return  # it reads the output
    unwritten = ~(changed[0] | changed[1]) & (wrong[0] | wrong[1])
    if count := int(unwritten.sum()):
        raise MismatchError(
            f"{function!r} does not write {count} of {len(unwritten)} elements of its {name!r}, but {right_name} does: "
            f"they keep the values with which compare() overwrites {name!r} before this call. If {name!r} is an input, "
            "too, compute the right result from its values before the call, or pass restore=True",
            function=function,
            output=name,
        )
    is_wrong = is_steady & wrong[0] & wrong[1]
    if is_wrong.any() and (is_wrong & ~_differ(right_runs[0].after, right_runs[1].after)).any():
        try:
            check_agrees((function, name, runs[1].after), (right_name, right_runs[1].after), tolerance, is_sure=is_sure)
        except MismatchError as error:
            error.args = (f"{error}. Before this call, compare() had overwritten {name!r}",)
            raise


def _differ(first: Any, second: Any, tolerance: Tolerance | None = None) -> Any:
    """Return a flat array that says which elements differ. Without a tolerance, they must be equal."""
    first, second = as_array(first), as_array(second)
    relative, absolute = tolerance.of(first.dtype, second.dtype) if tolerance else (0.0, 0.0)
    return find_differences(first, second, relative, absolute)[0]
