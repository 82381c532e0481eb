"""Copies the arguments of a call to the memory of the host. Tensors that overlap have copies that overlap."""

from __future__ import annotations

import ctypes
import mmap
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
    """Memory that stands for an extent, from its byte `start` on. `tensor` is this memory if torch is imported."""

    extent: Extent
    start: int
    memory: mmap.mmap
    tensor: Any


def copy_arguments(function: TypedFunction, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of a call with copies of the tensors, as CPU tensors of torch or arrays of NumPy."""
    parameters = {parameter.name: parameter for parameter in kernel_of(function._jitload_facts).parameters}
    for name, arg in zip(function.__signature__.parameters, args, strict=False):
        if not _has_known_memory(arg, parameters[name]):
            raise JitLoadError(
                f"cannot check {function.__name__}(): argument {name!r} ({parameters[name].type}) may have addresses "
                "of memory that is not known. Only tensors of torch and arrays of NumPy are copied"
            )
    copies = [_allocate(extent) for extent in merge_extents(extent_of(arg) for arg in args if is_copied(arg))]
    return [_copy(arg, copies) if is_copied(arg) else arg for arg in args]


def is_copied(arg: Any) -> bool:
    """Return whether an argument is a tensor that can be copied. The call refuses unaligned ones, for example."""
    if not hasattr(arg, "untyped_storage"):
        return _is_array(arg) and arg.dtype.names is None
    is_plain = not (arg.is_meta or arg.is_nested or arg.is_neg() or arg.is_conj())
    return is_plain and arg.data_ptr() % arg.element_size() == 0


def _is_array(arg: Any) -> bool:
    return hasattr(arg, "__array_interface__") and hasattr(arg, "__dlpack__")  # a number of NumPy's lacks the second


def _has_known_memory(arg: Any, parameter: Parameter) -> bool:
    if parameter.kind == "struct":
        return _ADDRESS.search(parameter.layout or "u8") is None
    is_tensor = arg is None or hasattr(arg, "untyped_storage") or _is_array(arg)
    return parameter.kind != "pointer" or (is_tensor and not is_pointer_to_pointer(parameter.type))


def _allocate(extent: Extent) -> _Copy:
    start, torch = extent.address % _ALIGNMENT, sys.modules.get("torch")
    memory = mmap.mmap(-1, start + extent.span, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return _Copy(extent, start, memory, torch and torch.frombuffer(memory, dtype=torch.uint8))


def _copy(tensor: Any, copies: Sequence[_Copy]) -> Any:
    """Return a view like `tensor` of the copy of its memory, into which the memory is copied."""
    extent = extent_of(tensor)
    copy = next((copy for copy in copies if copy.extent.overlaps(extent)), None)
    if copy is None:  # an empty tensor
        return tensor.cpu() if hasattr(tensor, "cpu") else tensor
    begin = copy.start + extent.address - copy.extent.address
    end = begin + extent.span
    if hasattr(tensor, "untyped_storage"):
        flat = tensor.detach().as_strided((extent.span // tensor.element_size(),), (1,))
        copy.tensor[begin:end].copy_(flat.view(copy.tensor.dtype))
        return copy.tensor[begin:end].view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    import numpy as np

    original: Any = (ctypes.c_char * extent.span).from_address(extent.address)  # `string_at` reads less than 2 GiB
    copy.memory[begin:end] = original
    first = begin + tensor.__array_interface__["data"][0] - extent.address
    array = np.ndarray(tensor.shape, tensor.dtype, copy.memory, first, tensor.strides)
    array.flags.writeable = tensor.flags.writeable
    return array
