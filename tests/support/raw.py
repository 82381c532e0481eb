"""Calls of tvm-ffi functions as a C or C++ program makes them, with values that Python's conversion never sends.

Python gives every array as a Tensor object whose strides are filled in; a C caller may give a plain `DLTensor*`,
and leave its strides NULL.
"""

import ctypes
from typing import Any

from .arrays import CudaArray, DLTensor, open_tensor

NONE, INT, BOOL, FLOAT, POINTER, DLTENSOR_POINTER = 0, 1, 2, 3, 4, 7


class _Value(ctypes.Union):
    _fields_ = (("v_int64", ctypes.c_int64), ("v_float64", ctypes.c_double), ("v_ptr", ctypes.c_void_p))


class RawValue(ctypes.Structure):
    """A `TVMFFIAny`: a kind, and eight bytes."""

    _anonymous_ = ("value",)
    _fields_ = (("kind", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", _Value))


class _Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))

    def __str__(self) -> str:
        return ctypes.string_at(self.data, self.size).decode()


class _Error(ctypes.Structure):
    _fields_ = (("header", ctypes.c_char * 24), ("kind", _Text), ("message", _Text))


class RawCallError(Exception):
    """A function returned a failure; its text is `<kind>: <message>`.

    Attributes:
        kind: `TypeError`, `ValueError`, `RuntimeError`, …
        message: What the function says.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


def call_raw(function: Any, *arguments: CudaArray | RawValue | float | None) -> None:
    """Call a `tvm_ffi.Function` whose result does not matter, giving arrays as `DLTensor*`.

    Args:
        function: The function.
        arguments: Arrays, numbers, None, and for anything else a `RawValue`.

    Raises:
        RawCallError: The function failed.
    """
    ffi = ctypes.CDLL(None)  # tvm_ffi has loaded its library for everybody
    tensors = [open_tensor(argument) for argument in arguments if isinstance(argument, CudaArray)]
    remaining = iter(tensors)
    values = [
        _tensor_value(next(remaining)) if isinstance(argument, CudaArray) else _plain_value(argument)
        for argument in arguments
    ]
    result = RawValue()
    handle = ctypes.c_void_p(function.__chandle__())
    table = (RawValue * len(values))(*values)
    if ffi.TVMFFIFunctionCall(handle, table, len(values), ctypes.byref(result)) != 0:
        raise _take_error(ffi)


def _tensor_value(tensor: DLTensor) -> RawValue:
    return RawValue(kind=DLTENSOR_POINTER, v_ptr=ctypes.addressof(tensor))


def _plain_value(argument: RawValue | float | None) -> RawValue:
    if isinstance(argument, RawValue):
        return argument
    if argument is None:
        return RawValue(kind=NONE)
    if isinstance(argument, bool):
        return RawValue(kind=BOOL, v_int64=argument)
    if isinstance(argument, int):
        return RawValue(kind=INT, v_int64=argument)
    return RawValue(kind=FLOAT, v_float64=argument)


def _take_error(ffi: ctypes.CDLL) -> RawCallError:
    handle = ctypes.c_void_p()
    ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    if not handle.value:
        return RawCallError("none", "the function failed and set no error")
    error = _Error.from_address(handle.value)
    raised = RawCallError(str(error.kind), str(error.message))
    ffi.TVMFFIObjectDecRef(handle)
    return raised
