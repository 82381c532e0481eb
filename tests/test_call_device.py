"""Devices and contexts: which one a launch uses and what it leaves behind; current streams, capture, threads."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm_ffi
from support.calls import array, assert_refused, fresh
from support.driver import StubDriver

import jitload
from jitload import Launch
from jitload.loader.direct_calls import torch_exchange
from jitload.loader.module import loader_function

SOURCE = """
extern "C" __global__ void copy(const float* x, float* y) {}
extern "C" __global__ void tick(int n) {}
extern "C" __global__ void tiles(int n) { extern __shared__ float tile[]; tile[threadIdx.x] = n; }
"""
EACH = {
    "copy": Launch(grid=1, block=32),
    "tick": Launch(grid="n", block=1),
    "tiles": Launch(grid=1, block=1, shared_bytes="n"),
}


@pytest.fixture(scope="module")
def path() -> str:
    return jitload.build_inline("device", cuda_sources=SOURCE, functions=EACH, arch="sm_90a")


@pytest.fixture(scope="module")
def mod(path: str) -> jitload.Module:
    return jitload.load_module(path)


def names(driver: StubDriver) -> list[str]:
    return [call.name for call in driver.calls()]


def test_the_device_of_the_tensors_is_current_at_the_launch_and_not_after_it(mod, stub_driver):
    for current in (0, 1):
        stub_driver.use_device(current)
        for device in (1, 0, 0, 1):
            mod.copy(array(device=device), array(device=device))
            assert stub_driver.current_device() == current
    assert [launch.device for launch in stub_driver.launches()] == [1, 0, 0, 1, 1, 0, 0, 1]


def test_a_thread_without_a_context_gets_the_primary_one(mod, stub_driver):
    for device in (1, 0):
        stub_driver.use_device(None)
        mod.copy(array(device=device), array(device=device))
        assert stub_driver.current_device() == device
    stub_driver.use_device(None)
    mod.tick(1)
    assert [launch.device for launch in stub_driver.launches()] == [1, 0, 0]


def test_a_context_of_the_right_device_is_left_alone(mod, stub_driver):
    context = stub_driver.create_context(1)
    assert stub_driver.library.cuCtxSetCurrent(ctypes.c_void_p(context)) == 0
    stub_driver.clear()
    mod.copy(array(device=1), array(device=1))
    mod.tick(1)
    assert not {"cuCtxSetCurrent", "cuCtxGetCurrent", "cuDevicePrimaryCtxRetain"} & set(names(stub_driver))
    mod.copy(array(device=0), array(device=0))
    current = ctypes.c_void_p()
    assert stub_driver.library.cuCtxGetCurrent(ctypes.byref(current)) == 0
    assert current.value == context
    assert [launch.device for launch in stub_driver.launches()] == [1, 1, 0]


@pytest.mark.parametrize(
    ("function", "code"),
    [("cuLaunchKernel", 1), ("cuLaunchKernel", 700), ("cuLibraryLoadData", 200), ("cuKernelGetFunction", 2)],
)
def test_the_context_is_restored_when_the_launch_fails(unused, stub_driver, function, code):
    stub_driver.use_device(0)
    stub_driver.fail(function, code)
    with pytest.raises(RuntimeError, match=r"^copy\(\)"):
        unused.copy(array(device=1), array(device=1))
    assert stub_driver.current_device() == 0


def test_a_device_that_is_not_there(mod, stub_driver):
    hint = "see the environment variable CUDA_VISIBLE_DEVICES"
    text = f"copy(): cannot use cuda:7: CUDA_ERROR_INVALID_DEVICE (invalid device ordinal); {hint}"
    assert_refused(RuntimeError, text, mod.copy, array(device=7), array(device=7))
    mod.tick(1)
    stub_driver.set_device_count(3)
    text = "copy(): there is no cuda:2; this process sees 2 devices"
    assert_refused(ValueError, text, mod.copy, array(device=2), array(device=2))


def test_a_context_is_retained_once_and_anew_after_a_reset(unused, stub_driver):
    stub_driver.use_device(0)
    for _ in range(5):
        unused.copy(array(device=1), array(device=1))
    assert names(stub_driver).count("cuDevicePrimaryCtxRetain") == 1
    stub_driver.set_primary_active(1, False)
    unused.copy(array(device=1), array(device=1))
    assert names(stub_driver).count("cuDevicePrimaryCtxRetain") == 2
    assert len(stub_driver.launches()) == 6


@pytest.fixture
def torch_stream(unused: jitload.Module) -> Iterator[list[int]]:
    """Play torch's `current_work_stream`: it answers [code, stream], and adds the device that it was asked for."""
    answer = [0, 0x4000]

    def current_work_stream(device_type: int, device: int, stream: Any) -> int:
        assert device_type == 2
        answer.append(device)
        stream[0] = answer[1]
        return answer[0]

    preload = loader_function(unused, "preload")
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    callback = kind(current_work_stream)
    preload(ctypes.cast(callback, ctypes.c_void_p).value, 0)
    yield answer
    exchange = torch_exchange()
    preload(exchange[1] if exchange else 0, 0)


def test_a_kernel_without_tensors_follows_torchs_stream(unused, stub_driver, torch_stream):
    stub_driver.use_device(1)
    unused.tick(1)
    unused.copy(array(), array())
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:1"), 0x77):
        unused.tick(1)
    unused.tick[1, 1, 0, 0x55](1)
    torch_stream[0] = -1
    unused.tick(1)
    assert [launch.stream for launch in stub_driver.launches()] == [0x4000, 0, 0x77, 0x55, 0]
    assert torch_stream[2:] == [1, 1]


def test_a_first_call_inside_capture_works(unused, stub_driver):
    stub_driver.use_device(0)
    stub_driver.set_capturing(True)
    unused.tiles[1, 1, 100_000, 0x77](1)
    (launch,) = stub_driver.launches()
    assert (launch.stream, launch.shared_bytes) == (0x77, 100_000)
    modes = [(call["mode"], call["before"]) for call in stub_driver.calls("cuThreadExchangeStreamCaptureMode")]
    assert modes == [("2", "0"), ("0", "2")] * 2
    unused.tiles[1, 1, 100_000, 0x77](1)
    assert len(stub_driver.calls("cuThreadExchangeStreamCaptureMode")) == 4


def run_threads(count: int, work: Callable[[int], None]) -> list[Exception]:
    """Run the work on threads that start at once, and return what they raised."""
    barrier, problems = threading.Barrier(count), []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except Exception as problem:  # noqa: BLE001  reported by the test's own thread
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


def test_eight_threads_call_for_the_first_time_at_once(unused, stub_driver):
    def work(number: int) -> None:
        for _ in range(20):
            unused.copy(array(device=number % 2), array(device=number % 2))
            unused.tick(number + 1)

    assert run_threads(8, work) == []
    assert len(stub_driver.calls("cuLibraryLoadData")) == 1
    assert len(stub_driver.calls("cuLibraryGetKernel")) == 4
    launches = stub_driver.launches()
    assert len(launches) == 320
    assert len({launch.thread for launch in launches}) == 8


def test_the_driver_is_found_by_one_thread_of_many(path, stub_driver):
    for _ in range(5):
        stub_driver.set_initialized(False)
        function = fresh(path).tick
        stub_driver.clear()
        assert run_threads(8, function) == []
        assert len(stub_driver.calls("cuInit")) == 1
        assert len(stub_driver.launches()) == 7  # thread 0 launches a grid of 0 blocks
