"""Arrays over host memory that say they lie on a CUDA device, for call paths that never touch the data."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any, Literal

from jitload.element_types import ELEMENT_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
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

_NUMPY_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_CAPSULE_NAME = b"dltensor"


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


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


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
        self.dtype = _find_dtype(array, dtype)
        self.shape = tuple(array.shape if shape is None else shape)
        self.strides = _find_strides(array, self.shape, strides, is_own=shape is None)
        self.byte_offset = byte_offset
        self.address = int(array.ctypes.data) if address is None else address

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule of the first kind, "dltensor", which every consumer must take."""
        if copy:
            raise BufferError("the memory is not where the array claims it is, so it cannot be copied")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.__dlpack_device__()} and stays there, not on {dl_device}")
        return _make_capsule(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device type and number that the array claims."""
        return self.device_type, self.device


def tensor_of(array: object) -> tvm_ffi.Tensor:
    """Import an array that has `__dlpack__` into tvm-ffi."""
    import tvm_ffi

    return tvm_ffi.from_dlpack(array)


def exported_count() -> int:
    """Return how many capsules or tensors made of them are alive: 0 when nothing leaks."""
    return len(_exports)


def _find_dtype(array: np.ndarray[Any, Any], dtype: DataType | str | None) -> DataType:
    if isinstance(dtype, str):
        return DTYPES[dtype]
    if dtype is not None:
        return dtype
    return _NUMPY_CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1


def _find_strides(
    array: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    strides: Sequence[int] | Literal["null"] | None,
    *,
    is_own: bool,
) -> tuple[int, ...] | None:
    if strides == "null":
        return None
    if strides is not None:
        return tuple(strides)
    if is_own:
        return tuple(stride // array.dtype.itemsize for stride in array.strides)
    contiguous: list[int] = []
    step = 1
    for extent in reversed(shape):
        contiguous.insert(0, step)
        step *= extent
    return tuple(contiguous)


# What a consumer holds, by the address of its managed tensor: the structure with its arrays, and NumPy's memory.
_exports: dict[int, tuple[object, ...]] = {}


def _extents(values: tuple[int, ...] | None) -> Any:
    return None if values is None else (ctypes.c_int64 * max(len(values), 1))(*values)


def open_tensor(source: CudaArray) -> DLTensor:
    """Return the bare DLPack tensor of an array; the array must outlive it."""
    code, bits, lanes = source.dtype
    return DLTensor(
        data=source.address - source.byte_offset,
        device_type=source.device_type,
        device_id=source.device,
        ndim=len(source.shape),
        code=code,
        bits=bits,
        lanes=lanes,
        shape=_extents(source.shape),
        strides=_extents(source.strides),
        byte_offset=source.byte_offset,
    )


def _make_capsule(source: CudaArray) -> object:
    managed = _ManagedTensor(tensor=open_tensor(source), deleter=ctypes.cast(_delete_export, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    capsule = _new_capsule(address, _CAPSULE_NAME, ctypes.cast(_drop_capsule, ctypes.c_void_p))
    _exports[address] = (managed, source.array)
    return capsule


def _delete(address: int) -> None:
    _exports.pop(address, None)


def _drop(capsule: int) -> None:
    """Free what no consumer has taken; the capsule is being destroyed, so it must not become a Python object."""
    if _is_valid_capsule(capsule, _CAPSULE_NAME):
        _delete(_capsule_pointer(capsule, _CAPSULE_NAME))


# A handle of our own, since argument types set on ctypes.pythonapi are everybody's.
_python = ctypes.PyDLL(None)
_new_capsule = _python.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid_capsule = _python.PyCapsule_IsValid
_is_valid_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = _python.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

_delete_export = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_drop_capsule = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)
# A tensor may outlive this module at the end of the process, and still uses these.
for _kept in (_delete_export, _drop_capsule, _CAPSULE_NAME):
    _python.Py_IncRef(ctypes.py_object(_kept))
