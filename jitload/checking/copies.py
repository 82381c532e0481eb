"""Copies the arguments of a call to the memory of the host. Tensors that overlap have copies that overlap."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitload.errors import JitLoadError
from jitload.loader.function import TypedFunction, kernel_of
from jitload.measuring.memory import Extent, extent_of, merge_extents
from jitload.model import Parameter
from jitload.signature.types import is_pointer_to_pointer

_ADDRESS = re.compile(r"u8(?![0-9])")  # in the layout of a structure: an integer of 8 bytes, or an address
_ALIGNMENT = 64  # a copy's address has the same remainder as that of the original, so that vector loads stay aligned


class _Copy(NamedTuple):
    """Host memory that stands for an extent, from its byte `start` on. `storage` is the same for tensors of torch."""

    extent: Extent
    memory: Any
    storage: Any
    start: int


def copy_arguments(function: TypedFunction, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a call with copies of the tensors, as CPU tensors of torch or arrays of NumPy.

    Raises:
        JitLoadError: An argument is an address, so that the memory behind it is not known.
    """
    parameters = {parameter.name: parameter for parameter in kernel_of(function._jitload_facts).parameters}
    for name, arg in zip(function.__signature__.parameters, args, strict=False):
        _check_has_no_addresses(function.__name__, arg, parameters[name])
    tensors = {number: _readable(arg) for number, arg in enumerate(args) if is_tensor(arg)}
    copies = [_allocate(extent) for extent in merge_extents(map(extent_of, tensors.values()))]
    result = [*args]
    for number, tensor in tensors.items():
        result[number] = _copy(tensor, copies)
    return result


def is_tensor(arg: Any) -> bool:
    """Return whether an argument is a tensor that can be copied. The call refuses unaligned ones, for example."""
    is_record = getattr(getattr(arg, "dtype", None), "names", None)
    is_pending = hasattr(arg, "is_neg") and (arg.is_neg() or arg.is_conj())
    is_without_memory = getattr(arg, "is_meta", False) or getattr(arg, "is_nested", False)
    has_memory = hasattr(arg, "__dlpack__") and not is_without_memory
    can_be_copied = has_memory and not is_record and not is_pending
    return can_be_copied and not (hasattr(arg, "element_size") and arg.data_ptr() % arg.element_size())


def _check_has_no_addresses(name: str, arg: Any, parameter: Parameter) -> None:
    """Raise JitLoadError if an argument is, or may contain, an address."""
    is_address = parameter.kind == "pointer" and isinstance(arg, int | ctypes.c_void_p)
    is_array = parameter.kind == "pointer" and is_pointer_to_pointer(parameter.type)
    if is_address or is_array or (parameter.kind == "struct" and _ADDRESS.search(parameter.layout or "u8")):
        raise JitLoadError(
            f"cannot check {name}(): argument {parameter.name!r} ({parameter.type}) may have addresses of memory whose "
            "size is not known. Only tensors are copied"
        )


def _readable(tensor: Any) -> Any:
    """Return a tensor of torch or NumPy with the memory of a tensor."""
    if hasattr(tensor, "untyped_storage") or is_array(tensor):
        return tensor
    try:
        from torch.utils.dlpack import from_dlpack
    except ImportError:
        raise JitLoadError(f"cannot copy a {type(tensor).__name__} without torch: install torch") from None
    return from_dlpack(tensor)


def is_array(tensor: Any) -> bool:
    """Return whether an argument is an array of NumPy."""
    return "numpy" in sys.modules and isinstance(tensor, sys.modules["numpy"].ndarray)


def _allocate(extent: Extent) -> _Copy:
    start, unaligned = extent.address % _ALIGNMENT, (ctypes.c_char * (extent.span + 2 * _ALIGNMENT))()
    memory = (ctypes.c_char * (start + extent.span)).from_buffer(unaligned, -ctypes.addressof(unaligned) % _ALIGNMENT)
    torch = sys.modules.get("torch")
    return _Copy(extent, memory, torch and torch.frombuffer(memory, dtype=torch.uint8).untyped_storage(), start)


def _copy(tensor: Any, copies: Sequence[_Copy]) -> Any:
    """Return a view like `tensor` of the copy of its memory, into which the memory is copied."""
    extent = extent_of(tensor)
    copy = next((copy for copy in copies if copy.extent.overlaps(extent)), None)
    if copy is None:  # an empty tensor
        return tensor.cpu() if hasattr(tensor, "cpu") else tensor.copy()
    begin = copy.start + extent.address - copy.extent.address
    target = ctypes.addressof(copy.memory) + begin
    if not hasattr(tensor, "untyped_storage"):
        ctypes.memmove(target, extent.address, extent.span)
        import numpy as np

        first = begin + tensor.__array_interface__["data"][0] - extent.address
        array = np.ndarray(tensor.shape, tensor.dtype, copy.memory, first, tensor.strides)
        array.flags.writeable = tensor.flags.writeable
        return array
    import torch

    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    place = tensor.storage_offset() * tensor.element_size()
    host = flat.set_(tensor.untyped_storage(), place, (extent.span,), (1,)).cpu()
    ctypes.memmove(target, host.data_ptr(), extent.span)
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(copy.storage, begin // tensor.element_size(), tensor.shape, tensor.stride())
