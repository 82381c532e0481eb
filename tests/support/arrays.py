"""Arrays over host memory that say they lie on a CUDA device, for call paths that never touch the data."""

from __future__ import annotations

import ctypes
import math
import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from jitload.element_types import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tvm_ffi

CPU = 1
CUDA = 2
CUDA_MANAGED = 13

DataType = tuple[int, int, int]
"""DLPack's (code, bits, lanes)."""

DTYPES: dict[str, DataType] = {
    # The number in the name is the number of bits, and a bool has 8.
    **{name: (row.code, int((re.findall(r"\d+", name) or "8")[0]), 1) for name, row in ELEMENT_TYPES.items()},
    "complex64": (5, 64, 1),
    "complex128": (5, 128, 1),
    "float8_e3m4": (7, 8, 1),
    "float8_e4m3": (8, 8, 1),
    "float8_e4m3b11fnuz": (9, 8, 1),
}


class DLTensor(ctypes.Structure):
    """DLPack's tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Memory(np.ndarray):
    """An array whose `tensor` lives as long as what was exported of it."""

    tensor: DLTensor


class CudaArray:
    """An array of NumPy's that claims a CUDA device when it is handed over by DLPack.

    Args:
        array: Where the data is, in host memory; its first element stays at `data + byte_offset`.
        device: The number of the device it claims.
        device_type: DLPack's device type: 2 is CUDA, 13 CUDA managed, 1 the CPU.
        dtype: What to claim for an element, a name of `DTYPES` or (code, bits, lanes); default: the array's own.
        strides: What to claim, in elements; "null" for no strides at all; default: the array's own, or those of a
            contiguous array where `shape` is given.
        byte_offset: What part of the address to give as DLPack's offset.
        shape: What to claim; it may say more than the array has.
        address: Where to claim the first element is; default: where it is.

    Attributes:
        tensor: What it claims.

    Example:
        >>> x = CudaArray(np.zeros(8, np.uint16), dtype="bfloat16", byte_offset=64)
    """

    def __init__(  # noqa: PLR0913  every field of a DLTensor can be claimed
        self,
        array: np.ndarray[Any, Any],
        device: int = 0,
        *,
        device_type: int = CUDA,
        dtype: DataType | str | None = None,
        strides: Sequence[int] | Literal["null"] | None = None,
        byte_offset: int = 0,
        shape: Sequence[int] | None = None,
        address: int | None = None,
    ) -> None:
        self.array = array
        self.device = device
        self.device_type = device_type
        self.address = int(array.ctypes.data) if address is None else address
        self.shape = tuple(array.shape if shape is None else shape)
        own_strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
        contiguous = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        self.strides = strides or (own_strides if shape is None else contiguous)
        dtype = dtype or str(array.dtype)
        self.memory = array.view(_Memory)
        self.memory.tensor = self.tensor = DLTensor(
            self.address - byte_offset,
            device_type,
            device,
            len(self.shape),
            *(DTYPES[dtype] if isinstance(dtype, str) else dtype),
            (ctypes.c_int64 * (len(self.shape) + 1))(*self.shape),
            None if self.strides == "null" else (ctypes.c_int64 * (len(self.shape) + 1))(*self.strides),
            byte_offset,
        )

    def __dlpack__(self, **_: Any) -> object:
        """Return NumPy's capsule, with another tensor in it."""
        capsule = self.memory.__dlpack__()
        ctypes.memmove(_tensor_in(capsule, b"dltensor"), ctypes.addressof(self.tensor), ctypes.sizeof(DLTensor))
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device type and number that the array claims."""
        return self.device_type, self.device


def tensor_of(array: object) -> tvm_ffi.Tensor:
    """Import an array that has `__dlpack__` into tvm-ffi."""
    import tvm_ffi

    return tvm_ffi.from_dlpack(array)


# A handle of our own, since argument types set on ctypes.pythonapi are everybody's.
_tensor_in = ctypes.PyDLL(None).PyCapsule_GetPointer
_tensor_in.restype = ctypes.c_void_p
_tensor_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
