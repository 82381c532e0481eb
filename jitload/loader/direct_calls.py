"""Direct calls, which go from Python objects straight to the launch without tvm-ffi (`runtime/core/python.cc`).

tvm-ffi makes two allocations for each tensor of a call. If torch has DLPack's exchange table, the library instead fills
in a DLTensor on the stack, and leaves calls with objects of unknown types to `slow_call`. Functions that can be called
directly are instances of a subtype of `TypedFunction` with extra memory for C fields that the library sets. The first
of these fields is the C function that CPython calls.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import tvm_ffi

from jitload.loader.function import TypedFunction, in_graphs
from jitload.tracebacks import at_caller

_DLPACK_MAJOR = 1  # another major version may lay the exchange table out differently
_FIELDS_BYTES = 128  # an upper bound of sizeof(jitload_function_fields), checked in runtime/core/python.cc
_TP_MEMBERS = 72  # Py_tp_members in CPython's stable ABI
_MAX_RANK = 5  # JITLOAD_MAX_RANK
_T_PYSSIZET, _READONLY = 19, 1
# The layouts of PyMemberDef, PyType_Slot and PyType_Spec. ctypes structures would slow down a cache hit.
_MEMBER, _SLOT, _SPEC = "PiniP", "iP", "PiiIP"
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
    """A typed function that is called through tvm-ffi."""

    @in_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        try:
            return call_through_ffi(self, args, **kwargs)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise at_caller(error) from error.__cause__


@functools.lru_cache(maxsize=1)
def direct_type() -> type[TypedFunction] | None:
    """Return the class of functions that are called without tvm-ffi, or None if torch or Python does not support them.

    Free-threaded CPython and other implementations of Python are not supported: their objects have another layout.
    """
    exchange = torch_exchange()
    has_gil = "t" not in getattr(sys, "abiflags", "")  # importing sysconfig would take a millisecond
    if sys.implementation.name != "cpython" or not has_gil or exchange is None or not exchange[0]:
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
    torch, exchange = sys.modules["torch"], torch_exchange()
    assert exchange is not None
    types, functions = (torch.Tensor, torch.nn.Parameter), (slow_call, find_dispatch_keys)
    addresses = (*map(id, types), *exchange[:2], *map(id, functions))
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


# ---- calls through tvm-ffi ---------------------------------------------------------------------------------------


def slow_call(function: TypedFunction, args: tuple[Any, ...]) -> Exception | None:
    """Make a call whose arguments the direct call does not read. Return its error, which the direct call raises."""
    try:
        call_through_ffi(function, args)
    except Exception as error:  # noqa: BLE001  it is not dropped
        return error.with_traceback(None)
    return None


def call_through_ffi(function: TypedFunction, args: tuple[Any, ...], **kwargs: Any) -> Any:
    """Call a function through tvm-ffi."""
    facts = function._jitload_facts
    tensors = args
    if "triton" in facts:
        flat = flatten_tuples(function, args) if any(isinstance(arg, tuple) for arg in args) else None
        if flat is not None:
            return function(*flat)
        tensors = tuple(arg.base if _is_descriptor(arg) else arg for arg in args)
        args = tuple(_flat_descriptor(arg) if _is_descriptor(arg) else arg for arg in args)
    if len(tensors) == len(facts["arguments"]):
        _check_values(facts, tensors)
    else:
        args = (None,) * len(args)  # the error is about their number, not about one that cannot be read
    try:
        return tvm_ffi.Function.__call__(function, *args, **kwargs)
    except (TypeError, BufferError, RuntimeError) as error:
        if not isinstance(error, RuntimeError) and _is_cupy_call(facts, tensors):
            key = "grid" if "triton" in facts else "grid, block"
            raise TypeError(f"{facts['name']}() takes the launch in brackets: {facts['name']}[{key}](…)") from None
        if isinstance(error, TypeError):
            raise
        readable = [_readable(facts, number, arg) for number, arg in enumerate(args)]
        if not isinstance(error, BufferError):
            raise
    return tvm_ffi.Function.__call__(function, *readable, **kwargs)


def _check_values(facts: dict[str, Any], args: Iterable[Any]) -> None:
    """Raise TypeError for a tensor whose memory has other values than the tensor."""
    torch, masked_arrays = sys.modules.get("torch"), sys.modules.get("numpy.ma")
    for number, tensor in enumerate(args):
        if torch is not None and isinstance(tensor, torch.Tensor):
            if tensor.is_conj() or tensor.is_neg():
                method = "resolve_conj" if tensor.is_conj() else "resolve_neg"
                advice = f"pass a copy of it, x.{method}(), and copy the result back if it is an output"
                raise TypeError(f"{_label(facts, number)} is a tensor with a pending operation; {advice}")
        elif masked_arrays is not None and isinstance(tensor, masked_arrays.MaskedArray):
            problem = "a masked array, whose mask kernels do not see; pass x.filled(value), or x.data for all elements"
            raise TypeError(f"{_label(facts, number)} is {problem}")


def _label(facts: dict[str, Any], number: int) -> str:
    names = [argument["name"] for argument in facts["arguments"]]
    return f"{facts['name']}(): argument {names[number] if number < len(names) else number + 1!r}"


def _is_cupy_call(facts: dict[str, Any], args: tuple[Any, ...]) -> bool:
    """Return whether a call is written as for CuPy's RawKernel: `f((4,), (256,), (x, y, n))`."""
    has_structs = any(argument["kind"] == "struct" for argument in facts["arguments"][:3])
    return len(args) in (3, 4) and not has_structs and all(isinstance(arg, tuple) for arg in args[:3])


def _is_descriptor(arg: Any) -> bool:
    """Return whether an argument is a Triton `TensorDescriptor`, or another object with its attributes."""
    return hasattr(arg, "block_shape") and hasattr(arg, "base")


def _flat_descriptor(descriptor: Any) -> Any:
    """Return a descriptor as the tuple that the library reads (`runtime/triton/call.cc`), unless it is invalid."""
    flags = getattr(descriptor, "padding", "") == "nan", bool(getattr(descriptor, "round_f32_to_tf32", False))
    parts = (getattr(descriptor, name, ()) for name in ("shape", "strides", "block_shape"))
    try:
        shape, strides, block = ([*map(operator.index, part)] for part in parts)
    except TypeError:
        return descriptor
    is_valid = 1 <= len(shape) == len(strides) == len(block) <= _MAX_RANK
    return (descriptor.base, *flags, *shape, *strides, *block) if is_valid else descriptor


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


def _readable(facts: dict[str, Any], number: int, arg: Any) -> Any:
    """Return an argument that tvm-ffi can read: for a const pointer, convert a read-only array to a tensor.

    Raise BufferError or TypeError if that is impossible.
    """
    label, argument = _label(facts, number), facts["arguments"][number]
    if not hasattr(arg, "__dlpack__"):
        return arg
    if hasattr(arg, "layout"):  # a tensor of torch
        try:
            return tvm_ffi.from_dlpack(arg)
        except (BufferError, RuntimeError) as error:
            kind = f"it is of {arg.dtype} and {arg.layout} on {arg.device} ({str(error).partition(chr(10))[0]})"
            raise TypeError(f"{label} cannot be read as a tensor: {kind}") from None
    if argument["kind"] == "struct" and getattr(getattr(arg, "dtype", None), "names", None):
        record = "[()]" if arg.shape == () else f"[{', '.join('0' * len(arg.shape))}]"
        raise TypeError(f"{label} takes one record, not an array of records: pass the item {record} of the array")
    try:
        arg.__dlpack__()
    except BufferError as error:
        try:
            # From 1.0 on, DLPack can express read-only memory.
            tensor = tvm_ffi.from_dlpack(arg.__dlpack__(max_version=(1, 0)))
        except (BufferError, TypeError):  # TypeError: `__dlpack__` has no max_version
            raise BufferError(f"{label} cannot be read as a tensor: {error}") from None
        type_ = argument["type"]
        if type_.startswith("const ") and type_.count("*") == 1:
            return tensor
        raise BufferError(f"{label} is read-only, but the kernel may write to it ({type_}): pass a copy") from None
    return arg


# ---- torch's side of a call -------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def torch_exchange() -> tuple[int, int, int] | None:
    """Return torch's addresses of view, current stream and allocator in DLPack's exchange table. A missing one is 0.

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
    return words[5], words[6], words[2]
