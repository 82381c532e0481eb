"""Finds the tensors among arguments, those that a function may write to, and the memory that they take."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jitload.signature.types import is_read_only


class Extent(NamedTuple):
    """The memory of a tensor.

    Attributes:
        address: The address of the first byte.
        span: The number of bytes from the first byte to the end of the last element.
        size: The number of bytes of the elements, each element counted once.
        device: The number of the tensor's GPU, or None for host memory.
    """

    address: int
    span: int
    size: int
    device: int | None

    def overlaps(self, other: Extent) -> bool:
        """Return whether two extents have a byte in common."""
        is_before = self.address < other.address + other.span and other.address < self.address + self.span
        return self.device == other.device and is_before


def merge_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Return extents that cover the same bytes, with overlapping extents merged.

    Adjacent extents may be separate allocations, and the driver copies no memory across two of them.
    """
    merged: list[Extent] = []
    for extent in sorted(extents, key=lambda extent: (extent.device is None, extent.device or 0, extent.address)):
        last = merged[-1] if merged else None
        if last and last.device == extent.device and extent.address < last.address + last.span:
            end = max(last.address + last.span, extent.address + extent.span)
            merged[-1] = last._replace(span=end - last.address)
        elif extent.span:
            merged.append(extent)
    return merged


# ---- tensors among arguments ---------------------------------------------------------------------------------------


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in an argument, which may be a tensor, a tuple, a list or a Triton descriptor."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dlpack__"):
        yield value
    elif hasattr(getattr(value, "base", None), "__dlpack__"):
        yield value.base


def extent_of(tensor: Any) -> Extent:
    """Return the memory of a tensor of torch, NumPy or another DLPack library. A sparse tensor has an empty extent."""
    if hasattr(tensor, "__array_interface__") and not hasattr(tensor, "data_ptr"):
        return _extent(tensor.__array_interface__["data"][0], tensor.shape, tensor.strides, tensor.itemsize, None)
    torch = sys.modules.get("torch")
    if torch and isinstance(tensor, torch.Tensor):
        if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
            return _NOTHING  # kernels do not accept such a tensor
        itemsize, strides, device = tensor.element_size(), tensor.stride(), tensor.device.index
        is_host = tensor.device.type == "cpu"
    else:
        import tvm_ffi

        tensor = tvm_ffi.from_dlpack(tensor)
        itemsize, strides, device = tensor.dtype.itemsize, tensor.strides, tensor.device.index
        is_host = tensor.device.dlpack_device_type() == _HOST
    strides = [stride * itemsize for stride in strides]
    return _extent(tensor.data_ptr(), tensor.shape, strides, itemsize, None if is_host else device)


_HOST = 1  # DLPack's device type
_NOTHING = Extent(0, 0, 0, None)


def _extent(address: int, shape: Sequence[int], strides: Sequence[int], itemsize: int, device: int | None) -> Extent:
    if 0 in shape:
        return Extent(address, 0, 0, device)
    reaches = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    first, last = sum(reach for reach in reaches if reach < 0), sum(reach for reach in reaches if reach > 0)
    distinct = itemsize
    for extent, stride in zip(shape, strides, strict=True):
        distinct *= extent if stride else 1  # a dimension with stride 0 repeats the same elements
    span = last - first + itemsize
    return Extent(address + first, span, min(distinct, span), device)


def copy_tensor(tensor: Any) -> Any:
    """Return a copy of a tensor, in the same library.

    But if torch is imported, the copy of a tensor of a library other than NumPy is a torch tensor.
    """
    if hasattr(tensor, "detach"):
        return tensor.detach().clone()
    if hasattr(tensor, "__array_interface__"):
        return tensor.copy()
    if torch := sys.modules.get("torch"):
        return torch.from_dlpack(tensor).clone()
    return tensor.copy()


def same_bits(first: Any, second: Any) -> bool:
    """Return whether two copies of a tensor are equal bit for bit."""
    torch = sys.modules.get("torch")
    if torch and isinstance(first, torch.Tensor):
        if first.layout != torch.strided:
            return False
        return bool(torch.equal(*(copy.contiguous().reshape(-1).view(torch.uint8) for copy in (first, second))))
    return bool(first.tobytes() == second.tobytes())


def written_arguments(function: Any, args: Sequence[Any]) -> list[bool]:
    """Return, for each argument, whether the function may write to it.

    A kernel may write to the arguments whose parameters are not `const`. A function with several kernels, or a
    function that is not a kernel, may write to every argument.
    """
    if getattr(function, "_jitload_facts", {}).get("variants"):  # the dtypes decide which kernel is called
        return [True] * len(args)
    try:
        names = list(inspect.signature(function).parameters)
        types = {parameter.name: parameter.type for parameter in function.kernel.parameters}
    except (AttributeError, TypeError, ValueError):
        names, types = [], {}
    if len(names) != len(args):
        return [True] * len(args)
    return [not is_read_only(types.get(name, "")) for name in names]
