"""Scratch memory for the time of a launch: who gives it on which stream, how much, and when it goes back."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from support.arrays import DLTensor
from support.calls import array, fresh
from support.driver import StubDriver
from support.triton import build_triton, function, multiple, null, parameter, specialize, stand_in
from test_direct_calls import Array, arrays_as_tensors

import jitload.loader.module
from jitload.loader.function import TypedFunction
from jitload.loader.module import loader_function
from jitload.request.request import TritonSource

N_PARAMETERS = [parameter("x", "*fp32"), parameter("n", "i32")]
SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATOR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, SET_ERROR
)
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


class Framework:
    """A framework with an allocator and a current stream; it notes what happens, launches too."""

    def __init__(self, driver: StubDriver) -> None:
        self.driver = driver
        self.events: list[tuple[Any, ...]] = []
        self.alive: dict[int, tuple[Any, ...]] = {}
        self.stream = 0x5000
        self.offset = 0  # of the memory from a multiple of 4096
        self.problem = b""
        self.allocator = ALLOCATOR(self._allocate)
        self.current_stream = STREAM(self._current_stream)
        self.deleter = DELETER(self._delete)

    def addresses(self) -> tuple[int, int]:
        functions = (self.current_stream, self.allocator)
        return tuple(ctypes.cast(function, ctypes.c_void_p).value for function in functions)  # type: ignore[return-value]

    def _allocate(self, prototype: Any, out: Any, context: int, set_error: Any) -> int:
        wanted = prototype.contents
        size = wanted.shape[0]
        kind = (wanted.device_type, wanted.device_id, wanted.ndim, wanted.code, wanted.bits, wanted.lanes)
        self.events.append(("allocate", size, kind))
        if self.problem:
            set_error(context, b"MemoryError", self.problem)
            return -1
        memory = (ctypes.c_char * (size + 8192))()
        start = (ctypes.addressof(memory) + 4095) // 4096 * 4096 + self.offset
        shape = (ctypes.c_int64 * 1)(size)
        tensor = DLTensor(start, 2, wanted.device_id, 1, 1, 8, 1, shape, None, 0)
        managed = _Managed(1, 0, None, ctypes.cast(self.deleter, ctypes.c_void_p), 0, tensor)
        address = ctypes.addressof(managed)
        self.alive[address] = (managed, memory, shape)
        out[0] = address
        return 0

    def _current_stream(self, device_type: int, device: int, out: Any) -> int:
        out[0] = self.stream
        return 0

    def _delete(self, address: int) -> None:
        self.events.append(("free", len(self.driver.launches())))
        self.alive.pop(address)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = specialize("small", N_PARAMETERS, scratch_bytes=96, scratch_alignment=128)
    pair = specialize("pair", N_PARAMETERS, num_ctas=2, cluster=(2, 1, 1), scratch_bytes=64, scratch_alignment=1)
    huge = specialize("huge", N_PARAMETERS, scratch_bytes=2**62, scratch_alignment=128)
    specs = {"small": small, "pair": pair, "huge": huge}
    functions = [function(name, (name, stand_in(spec)), grid=("n", 2)) for name, spec in specs.items()]
    return build_triton(tmp_path_factory.mktemp("triton") / "scratch", *functions, *_direct_functions())


def _direct_functions() -> list[TritonSource]:
    """Return a function with two variants, and its second variant alone, which needs scratch memory."""
    arguments = [parameter("x", "*fp32"), parameter("bias", "None"), parameter("n", "i32"), parameter("s", "bf16")]
    facts = {"arguments": arguments, "taken": ["x", "n", "s"]}
    scale = stand_in(specialize("scale", assumptions=(null("bias"), multiple("n")), **facts))
    wanting = stand_in(
        specialize("wanting", assumptions=(null("bias"),), scratch_bytes=32, scratch_alignment=16, **facts)
    )
    variants = function("scale", ("scale__a", scale), ("scale__b", wanting), grid="n")
    return [variants, function("wanting", ("wanting", wanting), grid="n")]


@pytest.fixture
def mod(library: Path, stub_driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> jitload.Module:
    """A library that no framework is registered in."""
    monkeypatch.setattr(jitload.loader.module, "torch_exchange", lambda: None)
    return fresh(library)


@pytest.fixture
def framework(mod: jitload.Module, stub_driver: StubDriver) -> Framework:
    """A framework that is registered in the library, as the loader does with torch."""
    registered = Framework(stub_driver)
    loader_function(mod, "preload")(*registered.addresses())
    stub_driver.clear()
    return registered


def hidden(driver: StubDriver) -> int:
    """Return the pointer to scratch memory of the one launch."""
    (launch,) = driver.launches()
    return int.from_bytes(launch.arguments[2], "little")


UINT8 = (2, 0, 1, 1, 8, 1)  # device 0, one dimension, uint8


@pytest.mark.parametrize(("name", "size"), [("small", 3 * 2 * 96 + 127), ("pair", 3 * 2 * 2 * 64)])
def test_the_framework_allocates_scratch_memory_on_its_current_stream(mod, framework, stub_driver, name, size):
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), framework.stream):
        mod[name](array(), 3)
    assert framework.events == [("allocate", size, UINT8), ("free", 1)]  # freed when one launch was queued
    assert hidden(stub_driver) != 0
    assert framework.alive == {}
    assert stub_driver.launches()[0].stream == framework.stream
    assert stub_driver.calls("cuMemAllocAsync") == []


@pytest.mark.parametrize("offset", [0, 8, 120])
def test_scratch_memory_is_aligned_as_the_kernel_needs_it(mod, framework, stub_driver, offset):
    framework.offset = offset
    mod.small[1, None, None, framework.stream](array(), 1)
    assert hidden(stub_driver) % 4096 == (128 if offset else 0)


def test_scratch_memory_is_freed_if_the_launch_fails(mod, framework, stub_driver):
    stub_driver.fail("cuLaunchKernel", 1)
    with pytest.raises(RuntimeError, match=r"small\(\): the launch failed: CUDA_ERROR_INVALID_VALUE"):
        mod.small[1, None, None, framework.stream](array(), 1)
    assert framework.events[1:] == [("free", 0)]


def test_more_than_64_bits_count_is_an_error(mod, framework):
    with pytest.raises(
        RuntimeError, match=r"huge\(\): cannot allocate the .* on cuda:0: the number does not fit into 64 "
    ):
        mod.huge(array(), 4)


def test_a_launch_on_another_stream_has_scratch_memory_of_the_driver(mod, framework, stub_driver):
    mod.small[5, None, None, 0x77](array(), 1)
    names = ["cuMemAllocAsync", "cuLaunchKernel", "cuMemFreeAsync"]
    made, launch, freed = calls = [call for call in stub_driver.calls() if call.name in names]
    assert [call.name for call in calls] == names
    assert (made.number("stream"), launch.number("stream"), freed.number("stream")) == (0x77, 0x77, 0x77)
    assert made.number("size") == 5 * 96 + 127
    assert made.number("address") == freed.number("address") == hidden(stub_driver)
    assert framework.events == []


def test_without_a_framework_the_driver_allocates(mod, stub_driver):
    mod.small(array(), 3)
    mod.small[1, None, None, 0x77](array(), 1)
    made, freed = stub_driver.calls("cuMemAllocAsync"), stub_driver.calls("cuMemFreeAsync")
    assert [call.number("size") for call in made] == [3 * 2 * 96 + 127, 96 + 127]
    assert [call.number("stream") for call in made] == [call.number("stream") for call in freed] == [0, 0x77]


@pytest.fixture
def direct(library: Path, stub_driver: StubDriver) -> Iterator[jitload.Module]:
    """A library that takes the arrays of the test for tensors."""
    module = fresh(library)
    assert isinstance(module.scale, TypedFunction)
    with arrays_as_tensors(module):
        yield module


def test_scratch_on_the_frameworks_stream(direct, stub_driver):
    framework = Framework(stub_driver)
    loader_function(direct, "preload")(*framework.addresses())
    stub_driver.clear()
    for held in (False, True):
        direct.wanting.release_gil = not held
        direct.scale(Array(), None, 17, 1.0)  # the second variant
        direct.wanting(Array(), None, 2, 1.0)
    events = [("allocate", 17 * 32 + 15, UINT8), ("free", 1), ("allocate", 2 * 32 + 15, UINT8), ("free", 2)]
    assert framework.events[:4] == events
    assert [event[0] for event in framework.events] == ["allocate", "free"] * 4
    assert {launch.kernel for launch in stub_driver.launches()} == {"wanting"}
    assert stub_driver.calls("cuMemAllocAsync") == []
