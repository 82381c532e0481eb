"""Checks what operators take and return.

`check_tensors` checks fake tensors as a call checks real ones, with the same errors (`argument_errors.cc`).

Alignment is checked only when the compiled program runs, because a fake tensor has no address. Ranges of integers are
checked then, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from jitload.operators.signature import Argument, Signature

is_alias_of: Any = torch._C._is_alias_of  # type: ignore[attr-defined]  # whether two tensors share a storage

Pairs = list[tuple[Argument, torch.Tensor]]


def check_tensors(signature: Signature, values: Iterable[torch.Tensor | None]) -> None:
    """Check dtypes, devices and layouts of tensors as a call does, with the same errors.

    `values` has one item for each tensor argument.
    """
    if not signature.devices:  # hand-written C++ checks its arguments itself
        return
    arguments = [argument for argument in signature.arguments if argument.is_tensor]
    tensors = [(argument, value) for argument, value in zip(arguments, values, strict=True) if value is not None]
    _check_dtypes(signature, tensors)
    _check_devices(signature, tensors)
    for argument, tensor in tensors:
        if not argument.is_strided and not tensor.is_contiguous():
            raise _layout_error(signature.name, argument, tensor)


def _check_dtypes(signature: Signature, tensors: Pairs) -> None:
    kernels = max((len(argument.dtypes) for argument, _ in tensors), default=1)
    if any(all(a.accepts(_name(tensor.dtype), kernel) for a, tensor in tensors) for kernel in range(kernels)):
        return
    if kernels > 1:
        raise _variant_error(signature, tensors, kernels)
    argument, tensor = next((a, tensor) for a, tensor in tensors if not a.accepts(_name(tensor.dtype)))
    expected = argument.dtypes[0] or ""
    article = "an" if expected[0] in "aeio" else "a"
    options = " or None" * argument.is_nullable + " or an int address" * argument.is_raw
    raise TypeError(
        f"{signature.name}(): argument {argument.name!r} must be {article} {expected} {_devices(signature, argument)} "
        f"tensor{options}, got {_name(tensor.dtype)}"
    )


def _variant_error(signature: Signature, tensors: Pairs, kernels: int) -> TypeError:
    got = ", ".join(f"{argument.name}={_name(tensor.dtype)}" for argument, tensor in tensors)
    supported = ", ".join(f"({', '.join(_dtypes_of(signature, kernel))})" for kernel in range(kernels))
    return TypeError(f"{signature.name}(): no kernel takes ({got}); there are kernels for {supported}")


def _dtypes_of(signature: Signature, kernel: int) -> Iterator[str]:
    for argument in signature.arguments:
        if argument.is_tensor and argument.dtypes[kernel] is not None:
            yield f"{argument.name}={argument.dtypes[kernel]}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _devices(signature: Signature, argument: Argument) -> str:
    return "CPU" if argument.is_host else signature.devices


def _check_devices(signature: Signature, tensors: Pairs) -> None:
    first: tuple[Argument, torch.Tensor] | None = None
    for argument, tensor in tensors:
        name = f"{signature.name}(): argument {argument.name!r}"
        devices = _devices(signature, argument)
        if tensor.device.type.upper() not in (*devices.split(" or "), "META"):
            hint = '; to support both, build it with arch=("native", "cpu")' if tensor.device.type == "cuda" else ""
            raise ValueError(f"{name} must be a {devices} tensor, but it is on {tensor.device}{hint}")
        if argument.is_host:
            continue
        first = first or (argument, tensor)
        if tensor.device != first[1].device:
            raise ValueError(
                f"{name} is on {tensor.device}, but {first[0].name!r} is on {first[1].device}; "
                "all tensors must be on one device"
            )


def _layout_error(function: str, argument: Argument, tensor: torch.Tensor) -> ValueError:
    name = argument.name
    copy = f"pass {name}.contiguous()"
    if argument.is_written:
        steps = f"tmp = {name}.contiguous(); {function}(…, tmp, …); {name}.copy_(tmp)"
        copy = f"pass a copy and copy the result back ({steps})"
    shape, strides = list(tensor.shape), list(tensor.stride())
    return ValueError(
        f"{function}(): argument {name!r} must be contiguous, got shape {shape} with strides {strides}; {copy}, "
        "or name it in Launch(strided=…)"
    )


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
        got = " and ".join(str(tuple(v) if isinstance(v, torch.Size) else v) for v in values())
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


def check_count(results: Any, function: str, optional: Sequence[bool]) -> tuple[Any, ...]:
    """Return the results of an operator's function as a tuple. Raise TypeError if they are not those of the schema.

    `function` is the function's name for the message. `optional` says for each result whether it may be None.
    """
    values = tuple(flatten((results,)))
    if len(values) != len(optional) or not all(
        isinstance(value, torch.Tensor) or (value is None and may_be_none)
        for value, may_be_none in zip(values, optional, strict=True)
    ):
        declared = f"{len(optional)} tensor{'s' * (len(optional) > 1)}"
        types = ", ".join(type(value).__name__ for value in values)
        raise TypeError(f"{function}: its schema declares {declared}, but the function returned {types}")
    return values


def check_results(results: Any, tensors: tuple[Any, ...], plan_name: str, optional: Sequence[bool]) -> Any:
    """Return the results of an operator's function: a tensor, or a tuple of tensors if there are several.

    Raises:
        TypeError: The function did not return the results that the schema declares.
        RuntimeError: Results share memory with each other or with `tensors`, the operator's arguments.
    """
    values = check_count(results, f"{plan_name}()", optional)
    memory = {_address(tensor) for tensor in flatten(tensors) if tensor is not None}
    for value in values:
        address = 0 if value is None else _address(value)
        if address and address in memory:
            raise RuntimeError(
                f"{plan_name}(): an operator must not return one of its arguments or a view of it, nor one tensor "
                "twice; return a copy"
            )
        memory.add(address)
    return values if len(values) > 1 else values[0]


def check_fake_results(results: Any, plan_name: str, optional: Sequence[bool]) -> Any:
    """Return the results of the user's fake function, as `check_results` does."""
    values = check_count(results, f"{plan_name}(), fake=", optional)
    return values if len(values) > 1 else values[0]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
