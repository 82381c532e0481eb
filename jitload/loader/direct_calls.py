"""Direct calls, which go from Python objects straight to the launch without tvm-ffi (`runtime/core/python.cc`).

tvm-ffi makes two allocations for each tensor of a call. If torch has DLPack's exchange table, the library instead fills
in a DLTensor on the stack, and leaves objects of unknown types to tvm-ffi. Functions that can be called directly are
instances of a subtype of `TypedFunction` with extra memory for C fields that the library sets. The first of these
fields is the C function that CPython calls.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterator
from typing import Any

import tvm_ffi

from jitload.loader.function import TypedFunction, in_graphs
from jitload.tracebacks import at_caller

_DLPACK_MAJOR = 1  # another major version may lay the exchange table out differently
_FIELDS_BYTES = 128  # an upper bound of sizeof(jitload_function_fields), checked in runtime/core/python.cc
_TP_CALL, _TP_MEMBERS = 50, 72  # Py_tp_call and Py_tp_members in CPython's stable ABI
_T_PYSSIZET, _READONLY = 19, 1
_MEMBER, _SLOT, _SPEC = (
    "PiniP",
    "iP",
    "PiiIP",
)  # the layouts of PyMemberDef, PyType_Slot and PyType_Spec; ctypes structures would slow down a cache hit
_BASETYPE, _HAVE_VECTORCALL = 1 << 10, 1 << 11  # Py_TPFLAGS_…


class _Bindable(TypedFunction):
    """The base class of functions that are called without tvm-ffi. `direct_type` adds vectorcall in a subclass."""

    @in_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Only torch.compile sees this method, because CPython prefers vectorcall."""
        return self(*args, **kwargs)

    @property
    def release_gil(self) -> bool:
        """Whether calls release the GIL during the launch."""
        released: bool = tvm_ffi.Function.release_gil.__get__(self)
        return released

    @release_gil.setter
    def release_gil(self, value: bool) -> None:
        tvm_ffi.Function.release_gil.__set__(self, value)
        self._jitload_configured.clear()  # the cached functions still have the previous value of release_gil
        self._jitload_bind()

    def _jitload_bind(self) -> None:
        self._jitload_library.bind(id(self), not self.release_gil, *self._jitload_config)


class CheckedFunction(TypedFunction):
    """A typed function that is called through tvm-ffi.

    A call rejects masked arrays, and torch tensors whose negation or conjugation is still pending: tvm-ffi would ignore
    the mask and the pending operation.
    """

    @in_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Raise TypeError for a masked array or a tensor with a pending negation or conjugation."""
        torch: Any = sys.modules.get("torch")
        for index, arg in enumerate(args):
            if _is_masked(arg):
                raise TypeError(f"{self.__name__}(): argument {index + 1} is {_MASKED}")
            if torch and isinstance(arg, torch.Tensor) and (arg.is_conj() or arg.is_neg()):
                method = "resolve_conj" if arg.is_conj() else "resolve_neg"
                problem = f"is a tensor with a pending operation; pass a copy of it, x.{method}()"
                raise TypeError(f"{self.__name__}(): argument {index + 1} {problem}")
        flat = flatten_tuples(self, args) if any(isinstance(arg, tuple) for arg in args) else None
        try:
            return tvm_ffi.Function.__call__(self, *(flat or args), **kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            raise at_caller(error) from error.__cause__


@functools.lru_cache(maxsize=1)
def direct_type() -> type[TypedFunction] | None:
    """Return the class of functions that are called without tvm-ffi, or None if torch or Python does not support them.

    Free-threaded CPython and other implementations of Python are not supported: their objects have another layout.
    """
    exchange = torch_exchange()
    has_gil = "t" not in getattr(sys, "abiflags", "")  # importing sysconfig would take a millisecond
    if sys.implementation.name != "cpython" or not has_gil or exchange is None or not exchange.view:
        return None
    offset = _Bindable.__basicsize__
    names = [ctypes.create_string_buffer(name) for name in (b"__vectorcalloffset__", b"jitload.TypedFunction")]
    member, name = map(ctypes.addressof, names)
    members = _c_struct(_MEMBER, member, _T_PYSSIZET, offset, _READONLY, 0)
    slots = _c_struct(_SLOT, _TP_MEMBERS, ctypes.addressof(members))
    flags = _BASETYPE | _HAVE_VECTORCALL
    spec = _c_struct(_SPEC, name, offset + _FIELDS_BYTES, 0, flags, ctypes.addressof(slots))
    make = ctypes.pythonapi.PyType_FromSpecWithBases
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object)
    direct: type[TypedFunction] = make(ctypes.addressof(spec), (_Bindable,))
    direct._jitload_keep = (names, members, slots, spec)  # CPython may refer to this memory as long as the type exists
    return direct


def _c_struct(form: str, *values: int) -> ctypes.Array[ctypes.c_char]:
    """Return a C structure, followed by as many zero bytes. The zeros mark the end of a list of structures."""
    return ctypes.create_string_buffer(struct.pack(form, *values), 2 * struct.calcsize(form))


def direct_arguments() -> tuple[Any, ...]:
    """Return the arguments of `_jitload_use_python`: a size in bytes, and addresses of functions and types."""
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
        id(find_dispatch_keys),
        id(flatten_tuples),
    )
    return (_Bindable.__basicsize__, *map(ctypes.c_void_p, addresses))


def find_dispatch_keys(tensor: Any) -> bytes:
    """Return where a tensor stores its dispatch keys, as the bytes of a `jitload_dispatch_keys` (`python.cc`).

    torch does not document the layout of a tensor, so this searches the tensor's memory for the keys that torch
    reports. If they are not found, all bytes are 0.
    """
    torch = sys.modules["torch"]
    try:
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        lazy = [torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for key in ("Conjugate", "Negative")]
        pointers = (ctypes.c_uint64 * 8).from_address(id(tensor))
        words = (ctypes.c_uint64 * 26).from_address(tensor._cdata)
        pointer_index, keys_index = [*pointers].index(tensor._cdata), [*words].index(keys)
    except (AttributeError, TypeError, ValueError):
        return struct.pack("=qqQ", 0, 0, 0)
    return struct.pack("=qqQ", 8 * pointer_index, 8 * keys_index, lazy[0].raw_repr() | lazy[1].raw_repr())


_MASKED = "a masked array, whose mask kernels do not see; pass x.filled(value), or x.data for all elements"


def _is_masked(array: object) -> bool:
    masked_arrays = sys.modules.get("numpy.ma")
    return masked_arrays is not None and isinstance(array, masked_arrays.MaskedArray)


def describe_tensor(tensor: Any) -> str | None:
    """Describe a torch tensor or masked array that a call rejects, for an error message. Return None for other objects.

    DLPack cannot export the tensor, or would export the array without its mask.
    """
    if not isinstance(tensor, sys.modules["torch"].Tensor):
        return _MASKED if _is_masked(tensor) else None
    layout = str(tensor.layout).removeprefix("torch.")
    dtype = str(tensor.dtype).removeprefix("torch.")
    kinds = {
        "a meta tensor": tensor.is_meta,
        "a nested tensor": tensor.is_nested,
        f"a quantized tensor ({dtype})": tensor.is_quantized,
        f"a tensor of layout {layout}": layout != "strided",
    }
    default = f"a tensor that DLPack cannot export ({dtype}): its dtype is unknown to DLPack, or torch.vmap wraps it"
    return next((kind for kind, applies in kinds.items() if applies), default)


def flatten_tuples(function: TypedFunction, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the arguments of a Triton kernel with each tuple replaced by its items.

    Leave out items that were compiled into the kernel. Raise ValueError if the value of such an item differs from the
    compiled value.

    Return None if the arguments do not match the kernel's parameters: the launch then raises an error that says what
    the kernel expects.
    """
    triton = function._jitload_facts.get("triton", {})
    tuples: dict[str, list[str]] = triton.get("tuples", {})
    owners = {item: name for name, items in tuples.items() for item in items}
    names = dict.fromkeys(owners.get(a["name"], a["name"]) for a in function._jitload_facts["arguments"])
    if len(args) != len(names):
        return None
    flat: list[Any] = []
    for name, arg in zip(names, args, strict=True):
        if name not in tuples or not isinstance(arg, tuple):
            flat.append(arg)
            continue
        items = list(_items(arg))
        if len(items) != len(tuples[name]):
            return None
        for item, value in zip(tuples[name], items, strict=True):
            if item not in triton["constexprs"]:
                flat.append(value)
            elif triton["constexprs"][item] != getattr(value, "value", value):
                compiled = triton["constexprs"][item]
                raise ValueError(
                    f"{function.__name__}(): argument {item!r} must be {compiled!r}, with which the kernel was "
                    f"compiled, got {value!r}"
                )
    return None if any(isinstance(value, tuple) for value in flat) else tuple(flat)


def _items(value: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the items of a tuple, flattening nested tuples."""
    for item in value:
        if isinstance(item, tuple):
            yield from _items(item)
        else:
            yield item


def call_again(function: TypedFunction, args: tuple[Any, ...]) -> Any:
    """Repeat a call in which tvm-ffi could not read an array, now with read-only arrays allowed for const pointers."""
    types = {
        parameter.name: "" if parameter.kind == "struct" else parameter.type for parameter in function.kernel.parameters
    }
    names = function.__signature__.parameters
    labels = [f"{function.__name__}(): argument {name!r}" for name in names]
    readable = [_readable(arg, types[name], label) for label, name, arg in zip(labels, names, args, strict=True)]
    return tvm_ffi.Function.__call__(function, *readable)


def _readable(arg: Any, parameter_type: str, label: str) -> Any:
    """Return an argument that tvm-ffi can read: for a const pointer, convert a read-only array to a tensor.

    Raise BufferError or TypeError if that is impossible. `parameter_type` is the C++ type, or "" for a structure.
    """
    if not hasattr(arg, "__dlpack__"):
        return arg
    if not parameter_type and getattr(getattr(arg, "dtype", None), "names", None):
        record = "[()]" if arg.shape == () else f"[{', '.join('0' * len(arg.shape))}]"
        raise TypeError(f"{label} takes one record, not an array of records: pass the item {record} of the array")
    try:
        arg.__dlpack__()
    except BufferError as error:
        try:
            tensor = tvm_ffi.from_dlpack(
                arg.__dlpack__(max_version=(1, 0))
            )  # from 1.0 on, DLPack can express read-only memory
        except (BufferError, TypeError):  # TypeError: `__dlpack__` has no max_version
            raise BufferError(f"{label} cannot be read as a tensor: {error}") from None
        if parameter_type.startswith("const ") and parameter_type.count("*") == 1:
            return tensor
        raise BufferError(
            f"{label} is read-only, but the kernel may write to it ({parameter_type}): pass a copy"
        ) from None
    return arg


# ---- torch's side of a call -------------------------------------------------------------------------------------


class Exchange:  # not a named tuple: creating one takes a thirtieth of a first cache hit
    """Addresses of functions in torch's DLPack exchange table. An address is 0 if torch lacks the function.

    `tensor_types` are the types of tensors that the function `view` can read.
    """

    __slots__ = ("allocator", "current_stream", "tensor_types", "view")

    def __init__(self, *, view: int, current_stream: int, allocator: int, tensor_types: tuple[type, ...]) -> None:
        self.view = view
        self.current_stream = current_stream
        self.allocator = allocator
        self.tensor_types = tensor_types


@functools.lru_cache(maxsize=1)
def torch_exchange() -> Exchange | None:
    """Return addresses from torch's DLPack exchange table.

    Return None if torch is not imported, has no table (before torch 2.10), or has a table of another major version.

    The table contains two 32-bit version numbers, the address of the previous table, and the addresses of five
    functions: allocator, import, export, view and current stream.
    """
    torch = sys.modules.get("torch")
    capsule = getattr(getattr(torch, "Tensor", None), "__dlpack_c_exchange_api__", None)
    if torch is None or capsule is None:
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = get(capsule, b"dlpack_exchange_api")
    if ctypes.c_uint32.from_address(table).value != _DLPACK_MAJOR:
        return None
    words = (ctypes.c_size_t * 7).from_address(table)
    tensor_types = (torch.Tensor, torch.nn.Parameter)
    return Exchange(view=words[5], current_stream=words[6], allocator=words[2], tensor_types=tensor_types)
