"""Calls that go straight from Python's objects to the launch (core/python.cc), with a framework played by the test."""

from __future__ import annotations

import ctypes
import gc
import struct
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tvm_ffi
from support.arrays import DLTensor
from support.calls import fresh

import jitload
from jitload.loader.direct_calls import (
    CheckedFunction,
    direct_arguments,
    direct_type,
    find_dispatch_keys,
    slow_call,
    torch_exchange,
)
from jitload.loader.function import TypedFunction

SOURCE = """
extern "C" __global__ void add(const float* x, float* y, int n) {}
extern "C" __global__ void scalars(long long n, double a, bool b) {}
"""


class Array:
    """A tensor of a framework of the test's own."""

    def __init__(self, *, device: int = 0) -> None:
        self.memory = (ctypes.c_float * 4)(1, 2, 3, 4)
        self.shape = (ctypes.c_int64 * 1)(4)
        self.device = device


VIEW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


@VIEW
def view(array: Array, out: ctypes._Pointer[DLTensor]) -> int:
    tensor = out.contents
    tensor.data = ctypes.addressof(array.memory)
    tensor.device_type, tensor.device_id = 2, array.device
    tensor.ndim, tensor.shape, tensor.strides, tensor.byte_offset = 1, array.shape, None, 0
    tensor.code, tensor.bits, tensor.lanes = 2, 32, 1
    return 0


@STREAM
def current_stream(device_type: int, device: int, out: ctypes._Pointer[ctypes.c_void_p]) -> int:
    out[0] = 0x5000 + device
    return 0


@contextmanager
def arrays_as_tensors(module: jitload.Module) -> Iterator[None]:
    """Let a library take `Array` for a tensor, and torch's tensors again in the end."""
    offset, *_ = direct_arguments()
    callbacks = [ctypes.cast(callback, ctypes.c_void_p).value for callback in (view, current_stream)]
    addresses = (id(Array), id(Array), *callbacks, id(slow_call), id(find_dispatch_keys))
    use_python = tvm_ffi.Module.get_function(module, "_jitload_use_python")
    assert use_python(offset, *map(ctypes.c_void_p, addresses))
    yield
    use_python(*direct_arguments())


@pytest.fixture
def torch_module(tmp_path: Path) -> jitload.Module:
    """A library of its own that takes torch's tensors."""
    launches = {"add": jitload.Launch(grid="n", block=1), "scalars": jitload.Launch(grid=1, block=1)}
    path = tmp_path / "direct.so"
    return fresh(jitload.build_inline("direct", cuda_sources=SOURCE, functions=launches, arch="sm_90a", output=path))


@pytest.fixture
def module(torch_module: jitload.Module) -> Iterator[jitload.Module]:
    """The same, taking `Array` for a tensor."""
    assert isinstance(torch_module.add, TypedFunction)
    with arrays_as_tensors(torch_module):
        yield torch_module


def test_torch_has_what_this_needs():
    """CI's torch has the exchange table, so that the type is tested there, too."""
    assert torch_exchange() is not None
    assert direct_type() is not None


def test_a_launch(module, stub_driver):
    x, y = Array(device=1), Array(device=1)
    assert module.add(x, y, 7) is None
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.device, launch.stream) == ("add", (7, 1, 1), 1, 0x5001)
    pointers = [ctypes.addressof(array.memory) for array in (x, y)]
    assert launch.params == b"".join(value.to_bytes(8, "little") for value in pointers) + (7).to_bytes(4, "little")


def test_the_configured_form_and_its_stream(module, stub_driver):
    x, y = Array(), Array()
    held = module.add[(2, 3), 4, 0, 0x77]
    held(x, y, 7)
    module.add[5, 6](x, y, 7)
    first, second = stub_driver.launches()
    assert (first.grid, first.block, first.stream) == ((2, 3, 1), (4, 1, 1), 0x77)
    assert (second.grid, second.block, second.stream) == ((5, 1, 1), (6, 1, 1), 0x5000)


@pytest.mark.parametrize("keeps_gil", [True, False])
def test_scalars(module, stub_driver, *, keeps_gil):
    module.scalars.release_gil = not keeps_gil
    assert (module.scalars.release_gil, module.scalars[1, 1].release_gil) == (not keeps_gil, not keeps_gil)
    module.scalars(-5, 2.5, True)
    module.scalars(True, 2, False)
    first, second = (launch.params for launch in stub_driver.launches())
    assert first == (-5).to_bytes(8, "little", signed=True) + struct.pack("<d?", 2.5, True)
    assert second[:8] == (1).to_bytes(8, "little")
    assert second[16:] == b"\0"


def test_arguments_of_other_types_go_through_tvm_ffi(module, stub_driver):
    with pytest.raises(TypeError, match=r"add\(\): argument 'x' must be a float32 CUDA tensor, got str"):
        module.add("x", Array(), 1)
    with pytest.raises(ValueError, match="beyond 64 bits"):
        module.scalars(2**70, 1.0, True)
    assert stub_driver.launches() == []


@pytest.mark.filterwarnings("ignore")  # torch's own, of kinds of tensors that come and go
def test_the_tensors_of_torch_that_have_no_array(torch_module):
    torch = pytest.importorskip("torch")
    unreadable = "cannot be read as a tensor: it is of torch"
    kinds = {
        rf"{unreadable}.float32 and torch.strided on meta": torch.zeros(4, device="meta"),
        rf"{unreadable}.float32 and torch.sparse_coo on cpu": torch.zeros(2, 2).to_sparse(),
        rf"{unreadable}.float32 and torch.sparse_csr on cpu": torch.zeros(2, 2).to_sparse_csr(),
        rf"{unreadable}.qint8 and torch.strided": torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8),
        r"is a tensor with a pending operation; pass .* x.resolve_conj\(\)": torch.tensor([1 + 2j]).conj(),
        r"is a tensor with a pending operation; pass .* x.resolve_neg\(\)": torch.tensor([1 + 2j]).conj().imag,
        rf"{unreadable}.float32 and torch.jagged": torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged),
        rf"{unreadable}.bits8 .*Bit types are not supported": torch.zeros(4, dtype=torch.uint8).view(torch.bits8),
    }
    kinds[f"{unreadable}.*on meta"] = torch.nn.Parameter(torch.zeros(4, device="meta"))
    for kind, tensor in kinds.items():
        with pytest.raises(TypeError, match=rf"^add\(\): argument 'x' {kind}") as caught:
            torch_module.add(tensor, tensor, 1)
        assert "frame #" not in str(caught.value)
        with pytest.raises(TypeError, match=rf"argument 'x' {kind}"):
            torch_module.add.call(x=tensor, y="other", n=1)


@pytest.mark.filterwarnings("ignore")  # torch's own, of complex numbers in half precision
def test_lazy_tensors_are_refused_whatever_their_layout(torch_module):
    torch = pytest.importorskip("torch")
    x, z = torch.ones(4), torch.ones(4, dtype=torch.complex64)
    negated = torch._neg_view(x)
    both = torch._neg_view(z.conj())
    lazies = [negated, negated[1:], negated[::2], negated[:1], negated.view(2, 2), torch.nn.Parameter(negated)]
    lazies += [torch._neg_view(torch.ones(4, dtype=dtype)) for dtype in (torch.float16, torch.bfloat16, torch.float64)]
    lazies += [z.conj(), z.conj()[:1], z.conj().imag, both, torch._neg_view(z), negated.expand(2, 4), negated[:0]]
    call = torch_module.add
    for lazy in lazies:
        pending = "conj" if lazy.is_conj() else "neg"
        text = rf"is a tensor with a pending operation; pass a copy of it, x\.resolve_{pending}\(\)"
        with pytest.raises(TypeError, match=rf"^add\(\): argument 'x' {text}"):
            call(lazy, x, 1)
        with pytest.raises(TypeError, match=rf"^add\(\): argument 'y' {text}"):
            call[1, 1](x, lazy, 1)
        with pytest.raises(TypeError, match=rf"^add\(\): argument 'y' {text}"):
            CheckedFunction.__call__(call, x, lazy, 1)
    for plain in (x, negated.resolve_neg(), both.resolve_conj().resolve_neg().real.contiguous()):
        with pytest.raises(ValueError, match="must be a CUDA tensor, but it is on cpu"):
            call(plain, x, 1)


def test_a_tensor_of_an_unknown_layout_is_asked_for_pending_operations(torch_module):
    torch = pytest.importorskip("torch")
    x = torch.ones(4)
    with pytest.raises(ValueError, match="must be a CUDA tensor, but it is on cpu"):
        torch_module.add(x, x, 1)  # enables direct calls
    assert find_dispatch_keys(object()) == bytes(24)
    use_python = tvm_ffi.Module.get_function(torch_module, "_jitload_use_python")

    def find_nothing(_: object) -> bytes:
        return bytes(24)

    assert use_python(*direct_arguments()[:-1], ctypes.c_void_p(id(find_nothing)))
    with pytest.raises(ValueError, match="must be a CUDA tensor, but it is on cpu"):
        torch_module.add(x, x, 1)
    with pytest.raises(TypeError, match="argument 'x' is a tensor with a pending operation"):
        torch_module.add(torch._neg_view(x), x, 1)


def test_a_tensor_without_memory_is_refused(module, stub_driver):
    fake, empty = Array(), Array()
    fake.memory = empty.memory = (ctypes.c_float * 0).from_address(0)
    empty.shape[0] = 0
    with pytest.raises(ValueError, match=r"add\(\): argument 'x' has no memory: it is a fake tensor"):
        module.add(fake, empty, 1)
    module.add(empty, empty, 1)
    assert len(stub_driver.launches()) == 1


def test_errors_are_raised_once(module, stub_driver):
    with pytest.raises(ValueError, match="'y' is on cuda:1, but 'x' is on cuda:0"):
        module.add(Array(), Array(device=1), 1)
    module.add(Array(), Array(), 1)
    stub_driver.clear()
    stub_driver.fail("cuLaunchKernel", 701, count=1)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        module.add(Array(), Array(), 1)
    assert len(stub_driver.calls("cuLaunchKernel")) == 1


def test_keywords_are_pointed_to_call(module, stub_driver):
    with pytest.raises(TypeError, match=r"add\(\) takes only positional arguments; pass keywords to add\.call\(…\)"):
        module.add(Array(), Array(), n=1)
    module.add.call(Array(), n=3, y=Array())
    assert stub_driver.launches()[0].grid == (3, 1, 1)


def test_functions_are_collected(module):
    held = module.add[9, 9]
    gone = weakref.ref(held)
    assert gone() is held
    module.add._jitload_configured.clear()
    del held
    gc.collect()
    assert gone() is None


def test_arguments_are_not_kept(module, stub_driver):
    x = Array()
    gone = weakref.ref(x)
    module.add(x, x, 1)
    del x
    assert gone() is None
