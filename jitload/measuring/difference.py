"""Compares a result with the expected one, element by element."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from jitload.element_types import ELEMENT_TYPES
from jitload.errors import MismatchError

_REAL_TYPES = {"complex64": "float32", "complex128": "float64"}


class Tolerance(NamedTuple):
    """The differences that are allowed. None stands for a default that depends on the dtype."""

    relative: float | None
    absolute: float | None

    def of(self, *dtypes: object) -> tuple[float, float]:
        """Return the (relative, absolute) tolerance for two dtypes. Defaults are those of the less precise dtype."""
        defaults = [_default(str(dtype).removeprefix("torch.")) for dtype in dtypes]
        relative = max(pair[0] for pair in defaults) if self.relative is None else self.relative
        absolute = max(pair[1] for pair in defaults) if self.absolute is None else self.absolute
        return relative, absolute


def _default(dtype: str) -> tuple[float, float]:
    row = ELEMENT_TYPES.get(_REAL_TYPES.get(dtype, dtype))
    if row is None and dtype.startswith("float8_"):  # such as NumPy's float8_e4m3, without a suffix
        row = next((row for name, row in ELEMENT_TYPES.items() if name.startswith(dtype[:11])), None)
        return row.tolerance if row else ELEMENT_TYPES["float8_e5m2"].tolerance
    return row.tolerance if row else (0.0, 0.0)


def check_agrees(
    result: tuple[str, str, Any], expected: tuple[str, Any], tolerance: Tolerance, *, is_sure: bool
) -> None:
    """Raise MismatchError if a result differs from the expected result by more than the tolerance. NaN equals NaN here.

    Args:
        result: The function's name, the name of the result, and the result.
        expected: The name of the function that computed the expected result, and the expected result.
        tolerance: The differences that are allowed.
        is_sure: Whether the expected result is known to be right. If not, the message blames neither function.
    """
    (function, name, actual), (right, value) = result, expected
    actual, value = as_array(actual), as_array(value)
    subject = f"{function!r} is wrong: its {name!r}" if is_sure else f"{function!r} and {right!r} disagree: {name!r}"
    advice = "" if is_sure else ". Pass reference=, a function that is right, to learn which of them is wrong"
    if tuple(actual.shape) != tuple(value.shape):
        shapes = f"has shape {tuple(actual.shape)}, but that of {right} has shape {tuple(value.shape)}"
        raise MismatchError(f"{subject} {shapes}{advice}", function=function, output=name)
    relative, absolute = tolerance.of(actual.dtype, value.dtype)
    wrong, difference = find_differences(actual, value, relative, absolute)
    count = int(wrong.sum())
    if count == 0:
        return
    position = int(difference.argmax())
    shape = tuple(actual.shape)
    index = tuple(position // math.prod(shape[axis + 1 :]) % extent for axis, extent in enumerate(shape))
    numbers = [array.reshape(-1)[position].item() for array in (actual, value)]
    largest = float(difference[position])
    raise MismatchError(
        f"{subject} differs from that of {right} at {count} of {len(wrong)} elements"
        f" (rtol {relative:g}, atol {absolute:g}). The largest difference is {largest:g} at index {index}: "
        f"{numbers[0]}, not {numbers[1]}{advice}",
        function=function,
        output=name,
        index=index,
        difference=largest,
    )


def agrees(result: Any, expected: Any, tolerance: Tolerance) -> bool:
    """Return whether two results agree within the tolerance."""
    result, expected = as_array(result), as_array(expected)
    if tuple(result.shape) != tuple(expected.shape):
        return False
    return not find_differences(result, expected, *tolerance.of(result.dtype, expected.dtype))[0].any()


def as_array(value: Any) -> Any:
    """Return the value as a torch tensor if torch is imported, or else as a NumPy array."""
    torch = sys.modules.get("torch")
    if torch is None:
        import numpy as np

        return np.asarray(value)
    if isinstance(value, torch.Tensor):
        value = value.detach() if value.layout == torch.strided else value.detach().to_dense()
        return value.resolve_conj().resolve_neg()
    return torch.from_dlpack(value) if hasattr(value, "__dlpack__") else torch.as_tensor(value)


def find_differences(actual: Any, value: Any, relative: float, absolute: float) -> tuple[Any, Any]:
    """Return two flat arrays: whether each element is outside the tolerances, and the absolute difference.

    The difference is 0 for elements within the tolerances, and infinity instead of NaN.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(actual, torch.Tensor):
        xp, value = torch, value.to(actual.device)
        is_complex = actual.is_complex() or value.is_complex()
        first, second = (t.reshape(-1).to(torch.complex128 if is_complex else torch.float64) for t in (actual, value))
        is_exact = not any(t.is_floating_point() or t.is_complex() for t in (actual, value))
    else:
        import numpy as np

        xp = np
        is_complex = np.iscomplexobj(actual) or np.iscomplexobj(value)
        first, second = (t.reshape(-1).astype(np.complex128 if is_complex else np.float64) for t in (actual, value))
        is_exact = all(t.dtype.kind in "biu" for t in (actual, value))
    wrong = ~xp.isclose(first, second, rtol=relative, atol=absolute, equal_nan=True)
    wrong |= xp.isinf(first) != xp.isinf(second)  # also with an infinite tolerance
    if is_exact and actual.dtype == value.dtype:  # different integers above 2**53 may be equal as floats
        wrong = (actual.reshape(-1) != value.reshape(-1)) & (wrong | (absolute + relative * abs(second) < 1))
    difference = xp.zeros_like(first.real)
    if wrong.any():
        difference = xp.where(wrong, abs(first - second), difference)
        difference = xp.where(wrong & (difference == 0), xp.ones_like(difference), difference)
        difference = xp.where(xp.isnan(difference), xp.full_like(difference, float("inf")), difference)
    return wrong, difference
