"""Converts the inputs of operators under `torch.autocast`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitload.errors import LaunchSpecError
from jitload.operators.plan import Plan


def autocast_dtypes(plan: Plan, autocast: object) -> tuple[torch.dtype | None, ...]:
    """Return each argument's dtype under autocast, or None if the dtype is kept. Return () if `autocast` is False."""
    if autocast is False or autocast is None:
        return ()
    if autocast is True:
        dtypes = [getattr(torch, argument.dtypes[0] or "", None) for argument in plan.inputs]
        if any(len(set(argument.dtypes)) > 1 for argument in plan.inputs if argument.is_tensor):
            problem = "its kernels take several dtypes: name one, autocast='float16'"
            raise LaunchSpecError(problem, kernel=plan.signature.name, field="autocast")
    else:
        dtype = getattr(torch, autocast, None) if isinstance(autocast, str) else autocast
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            problem = f"must be True or a floating-point dtype, got {autocast!r}"
            raise LaunchSpecError(problem, kernel=plan.signature.name, field="autocast")
        dtypes = [dtype for _ in plan.inputs]
    return tuple(
        dtype if a.is_tensor and not a.is_written and dtype is not None and dtype.is_floating_point else None
        for a, dtype in zip(plan.inputs, dtypes, strict=True)
    )


def make_caster(operator: Any, key: str) -> Callable[..., Any]:
    """Return the function that runs an operator under autocast for the dispatch key `key`."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*map(_convert, args, operator._jitload_state.casts or (None,) * len(args)), **kwargs)

    return cast


def _convert(value: Any, dtype: torch.dtype | None) -> Any:
    is_float = dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value
