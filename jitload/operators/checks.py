"""Checks what operators require and return, and whether autograd would lose anything.

The dtypes, devices and layouts of arguments are checked by the call of the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]  # whether two tensors share a storage


def check_requirement(function: str, term: str, test: Callable[[], Any], values: Callable[[], tuple[Any, ...]]) -> None:
    """Raise ValueError, as a call does, if a function requires what is false for fake tensors.

    Sizes that torch does not know while it traces are checked when the compiled program runs.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        is_true = bool(test())
    except GuardOnDataDependentSymNode:
        return
    if not is_true:
        got = " and ".join(str(list(v) if isinstance(v, torch.Size) else v) for v in values())
        raise ValueError(f"{function}(): requires {term}, {f'got {got}' if got else 'which is false in this call'}")


def is_recorded(args: Sequence[Any]) -> bool:
    """Return whether autograd records a call with these arguments."""
    return torch._C._any_requires_grad(*args) and torch.is_grad_enabled()


def check_tangents(name: str, args: Sequence[Any]) -> None:
    """Raise RuntimeError if an argument is a floating-point tensor: the operator would lose the tensor's tangent."""
    if any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in flatten(args)):
        raise RuntimeError(
            f"the operator {name} has no tangents, so it cannot be called within torch.func.jvp, jacfwd or "
            "torch.autograd.forward_ad.dual_level; use reverse mode, such as torch.autograd.grad"
        )


def flatten(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, replacing each list or tuple by its items."""
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def copy_if_overlapping(value: Any, written: Any) -> Any:
    """Return an input, with a copy in place of each tensor that may overlap a tensor in `written`.

    Each of both arguments is a tensor, a list of tensors, or None.
    """
    if isinstance(value, list | tuple):
        return [copy_if_overlapping(item, written) for item in value]
    if value is None or not any(_overlap(value, tensor) for tensor in flatten((written,)) if tensor is not None):
        return value
    return value.clone()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the ranges of addresses from the first to the last element have a common address."""
    return is_alias_of(a, b) and a.data_ptr() < _end(b) and b.data_ptr() < _end(a)


def _end(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def check_results(results: Any, tensors: tuple[Any, ...] | None, function: str, optional: Sequence[bool]) -> Any:
    """Return the results of an operator's function: a tensor, or a tuple of tensors if there are several.

    Args:
        results: What the function returned.
        tensors: The operator's arguments, or None for the results of the user's fake function, which have no memory.
        function: The function's name for messages.
        optional: For each result of the schema, whether it may be None.

    Raises:
        TypeError: The function did not return the results that the schema declares.
        RuntimeError: Results share memory with each other or with `tensors`.
    """
    values = tuple(flatten((results,)))
    if len(values) != len(optional) or not all(
        isinstance(value, torch.Tensor) or (value is None and may_be_none)
        for value, may_be_none in zip(values, optional, strict=True)
    ):
        declared = f"{len(optional)} tensor{'s' * (len(optional) > 1)}"
        types = ", ".join(type(value).__name__ for value in values)
        raise TypeError(f"{function}: its schema declares {declared}, but the function returned {types}")
    memory = {_address(tensor) for tensor in flatten(tensors or ()) if tensor is not None}
    for value in values if tensors is not None else ():
        address = 0 if value is None else _address(value)
        if address and address in memory:
            raise RuntimeError(
                f"{function}: an operator must not return one of its arguments or a view of it, nor one tensor "
                "twice; return a copy"
            )
        memory.add(address)
    return values if len(values) > 1 else values[0]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
