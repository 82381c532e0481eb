"""Typed functions whose calls go straight from Python's objects to the launch (python.cc).

A call through tvm-ffi makes two allocations for each tensor. Where torch has DLPack's exchange table, the library can
read a tensor onto the stack instead; what it does not know it leaves to tvm-ffi. The type is a `TypedFunction` with
room for the library's own fields behind tvm-ffi's, the first of which is the function that CPython calls.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from typing import Any

import tvm_ffi

from jitload.loader.exchange import torch_exchange
from jitload.loader.function import TypedFunction

_FIELDS_BYTES = 128  # sizeof(jitload_bound) at most; python.cc asserts it
_TP_CALL, _TP_MEMBERS = 50, 72  # Py_tp_call, Py_tp_members: numbers of CPython's stable ABI
_T_PYSSIZET, _READONLY = 19, 1
_MEMBER, _SLOT, _SPEC = "PiniP", "iP", "PiiIP"  # PyMemberDef, PyType_Slot, PyType_Spec; as classes they cost a hit more
_BASETYPE, _HAVE_VECTORCALL = 1 << 10, 1 << 11  # Py_TPFLAGS_…


class _Bindable(TypedFunction):
    """The Python half of the type."""

    @property
    def release_gil(self) -> bool:
        """Whether a call lets other Python threads run while it launches."""
        released: bool = tvm_ffi.Function.release_gil.__get__(self)
        return released

    @release_gil.setter
    def release_gil(self, value: bool) -> None:
        tvm_ffi.Function.release_gil.__set__(self, value)
        self._jitload_configured.clear()  # those were made with the other value
        self._jitload_bind()

    def _jitload_bind(self) -> None:
        self._jitload_library.bind(id(self), not self.release_gil, *self._jitload_config)


@functools.lru_cache(maxsize=1)
def direct_type() -> type[TypedFunction] | None:
    """Return the type, or None where calls cannot go this way.

    That is a Python without a GIL or other than CPython, whose objects are laid out differently, and a torch without
    the exchange table.
    """
    exchange = torch_exchange()
    has_gil = "t" not in getattr(sys, "abiflags", "")  # sysconfig would tell, after a millisecond of imports
    if sys.implementation.name != "cpython" or not has_gil or exchange is None or not exchange.view:
        return None
    offset = _Bindable.__basicsize__
    names = [ctypes.create_string_buffer(name) for name in (b"__vectorcalloffset__", b"jitload.TypedFunction")]
    member, name = map(ctypes.addressof, names)
    members = _block(_MEMBER, member, _T_PYSSIZET, offset, _READONLY, 0)
    slots = _block(_SLOT, _TP_MEMBERS, ctypes.addressof(members))
    flags = _BASETYPE | _HAVE_VECTORCALL
    spec = _block(_SPEC, name, offset + _FIELDS_BYTES, 0, flags, ctypes.addressof(slots))
    make = ctypes.pythonapi.PyType_FromSpecWithBases
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object)
    made: type[TypedFunction] = make(ctypes.addressof(spec), (_Bindable,))
    made._jitload_keep = (names, members, slots, spec)  # CPython may look at them later
    return made


def _block(form: str, *values: int) -> ctypes.Array[ctypes.c_char]:
    """Return a C structure, followed by one of zeros: the end of a list of them."""
    return ctypes.create_string_buffer(struct.pack(form, *values), 2 * struct.calcsize(form))


def direct_arguments() -> tuple[Any, ...]:
    """Return what `_jitload_use_python` takes."""
    exchange = torch_exchange()
    assert exchange is not None
    get_slot = ctypes.pythonapi.PyType_GetSlot
    get_slot.restype, get_slot.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_int)
    addresses = (
        get_slot(tvm_ffi.Function, _TP_CALL),
        *map(id, exchange.tensor_types),
        exchange.view,
        exchange.current_stream,
        id(describe_tensor),
        id(call_again),
    )
    return (_Bindable.__basicsize__, *map(ctypes.c_void_p, addresses))


def describe_tensor(tensor: Any) -> str:
    """Say what a tensor of torch is that has no memory which a kernel could read as an array."""
    layout = str(tensor.layout).removeprefix("torch.")
    dtype = str(tensor.dtype).removeprefix("torch.")
    kinds = {
        "a tensor that is yet to be conjugated (give x.resolve_conj())": tensor.is_conj(),
        "a tensor that is yet to be negated (give x.resolve_neg())": tensor.is_neg(),
        "a meta tensor": tensor.is_meta,
        "a nested tensor": tensor.is_nested,
        f"a quantized tensor ({dtype})": tensor.is_quantized,
        f"a tensor of layout {layout}": layout != "strided",
    }
    other = f"a tensor that DLPack cannot show ({dtype}): of a dtype that it does not know, or wrapped as by torch.vmap"
    return next((kind for kind, is_it in kinds.items() if is_it), other)


def call_again(function: TypedFunction, args: tuple[Any, ...]) -> Any:
    """Make a call for which tvm-ffi could not read an array: one that is read-only will do for a const pointer."""
    types = {parameter.name: parameter.type for parameter in function.kernel.parameters}
    names = function.__signature__.parameters
    said = [f"{function.__name__}(): argument {name!r}" for name in names]
    taken = [_taken(what, types[name], arg) for what, name, arg in zip(said, names, args, strict=True)]
    return tvm_ffi.Function.__call__(function, *taken)


def _taken(what: str, parameter_type: str, arg: Any) -> Any:
    if not hasattr(arg, "__dlpack__"):
        return arg
    try:
        arg.__dlpack__()
    except BufferError as error:
        try:
            tensor = tvm_ffi.from_dlpack(arg.__dlpack__(max_version=(1, 0)))  # which can say that memory is read-only
        except (BufferError, TypeError):  # the latter from those that know no versions
            raise BufferError(f"{what} cannot be read as a tensor: {error}") from None
        if parameter_type.startswith("const ") and parameter_type.count("*") == 1:
            return tensor
        raise BufferError(f"{what} is read-only, and the kernel may write to it ({parameter_type})") from None
    return arg
