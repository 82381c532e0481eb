"""Calls of tvm-ffi functions as a C or C++ program makes them, with values that Python's conversion never sends.

Python gives every array as a Tensor object whose strides are filled in; a C caller may give a plain `DLTensor*`,
and leave its strides NULL.
"""

import ctypes
from typing import Any

from .arrays import CudaArray

INT, BOOL, DLTENSOR_POINTER = 1, 2, 7


class _Value(ctypes.Union):
    _fields_ = (("v_int64", ctypes.c_int64), ("v_ptr", ctypes.c_void_p))


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
    """A function returned a failure. `message` is what it says, and the text is `<kind>: <message>`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.message = message


def call_raw(function: Any, *arguments: CudaArray | RawValue | int) -> None:
    """Call a `tvm_ffi.Function` whose result does not matter, giving arrays as `DLTensor*`."""
    ffi = ctypes.CDLL(None)  # tvm_ffi has loaded its library for everybody
    table = (RawValue * len(arguments))()
    for number, argument in enumerate(arguments):
        if isinstance(argument, CudaArray):
            table[number] = RawValue(kind=DLTENSOR_POINTER, v_ptr=ctypes.addressof(argument.tensor))
        elif isinstance(argument, RawValue):
            table[number] = argument
        else:
            table[number] = RawValue(kind=BOOL if isinstance(argument, bool) else INT, v_int64=argument)
    result, raised = RawValue(), ctypes.c_void_p()
    handle = ctypes.c_void_p(function.__chandle__())
    if ffi.TVMFFIFunctionCall(handle, table, len(table), ctypes.byref(result)) != 0:
        ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(raised))
        error = _Error.from_address(raised.value)
        kind, message = str(error.kind), str(error.message)
        ffi.TVMFFIObjectDecRef(raised)
        raise RawCallError(kind, message)
