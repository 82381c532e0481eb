"""The stub driver takes and refuses launches as the CUDA driver does, and records what a device would get."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING

import pytest
from support.program import Cuda
from support.records import LAUNCH_CLUSTER, LAUNCH_COOPERATIVE, LAUNCH_PDL, LAUNCH_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.driver import StubDriver

MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0


@pytest.fixture
def cuda(stub_driver: StubDriver) -> Cuda:
    return Cuda(stub_driver)


def add_one_values() -> tuple[ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]:
    return ctypes.c_uint64(0x1111), ctypes.c_uint64(0x2222), ctypes.c_uint64(0xDEAD_BEEF_0000_0007)


def extra_of(buffer: bytes) -> tuple[object, object]:
    data = ctypes.create_string_buffer(buffer, len(buffer))
    size = ctypes.c_size_t(len(buffer))
    entries = (BUFFER_POINTER, ctypes.addressof(data), BUFFER_SIZE, ctypes.addressof(size), END)
    return (ctypes.c_void_p * len(entries))(*entries), (data, size)


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_a_launch_is_recorded_with_the_bytes_of_each_parameter(cuda: Cuda) -> None:
    kernel = cuda.kernel("add_one")
    cuda.driver.use_device(1)
    assert cuda.launch(kernel, *add_one_values(), grid=(3, 2, 1), block=(64, 2, 1), shared_bytes=16, stream=0x77) == 0
    (launch,) = cuda.driver.launches()
    assert (launch.call, launch.kernel, launch.device) == ("cuLaunchKernel", "add_one", 1)
    assert (launch.grid, launch.block, launch.cluster) == ((3, 2, 1), (64, 2, 1), None)
    assert (launch.shared_bytes, launch.stream, launch.attributes) == (16, 0x77, {})
    assert launch.params == struct.pack("<QQi", 0x1111, 0x2222, 7)
    assert launch.arguments == (struct.pack("<Q", 0x1111), struct.pack("<Q", 0x2222), struct.pack("<i", 7))


def test_gaps_between_parameters_are_zero_and_structures_come_whole(cuda: Cuda) -> None:
    box = ctypes.create_string_buffer(struct.pack("<fxxxxdc7x", 1.5, 2.5, b"c"), 24)
    values = (ctypes.c_bool(True), ctypes.c_short(-2), box, ctypes.c_longlong(2**40), ctypes.c_uint64(0x99))
    assert cuda.launch(cuda.kernel("mixed"), *values) == 0
    (launch,) = cuda.driver.launches()
    assert launch.params == struct.pack("<?xhxxxx", True, -2) + box.raw + struct.pack("<qQ", 2**40, 0x99)
    assert launch.arguments[2] == box.raw


def test_parameters_may_come_as_one_buffer(cuda: Cuda) -> None:
    kernel, packed = cuda.kernel("add_one"), struct.pack("<QQi", 1, 2, 3)
    extra, alive = extra_of(packed)
    assert cuda.launch(kernel, extra=extra) == 0
    assert cuda.driver.launches()[0].params == packed
    assert cuda.launch(kernel, *add_one_values(), extra=extra) == 1
    short, alive_too = extra_of(packed[:-1])
    assert cuda.launch(kernel, extra=short) == 1
    assert alive and alive_too


def test_missing_parameters_are_refused(cuda: Cuda) -> None:
    assert cuda.launch(cuda.kernel("add_one")) == 1
    assert cuda.launch(cuda.kernel("empty")) == 0
    assert [launch.kernel for launch in cuda.driver.launches()] == ["empty"]


def test_launch_attributes_are_recorded(cuda: Cuda) -> None:
    attributes = {LAUNCH_COOPERATIVE: [1], LAUNCH_PRIORITY: [-3], LAUNCH_CLUSTER: [2, 1, 1], 77: [5, 6]}
    assert cuda.launch_with(cuda.kernel("bounded"), attributes) == 0
    (launch,) = cuda.driver.launches()
    assert launch.call == "cuLaunchKernelEx"
    assert launch.cluster == (2, 1, 1)
    assert [launch.attribute(number) for number in (LAUNCH_COOPERATIVE, LAUNCH_PRIORITY, LAUNCH_PDL)] == [1, -3, None]
    assert launch.attributes[77] == struct.pack("<ii", 5, 6).ljust(64, b"\0")


def test_functions_and_kernels_both_launch(cuda: Cuda) -> None:
    kernel, function = cuda.kernel("empty"), ctypes.c_void_p()
    assert cuda("cuKernelGetFunction", ctypes.byref(function), kernel) == 0
    assert function.value != kernel.value
    assert cuda("cuFuncLoad", function) == 0
    assert cuda.launch(function) == 0
    cuda.driver.use_device(1)
    assert cuda.launch(kernel) == 0
    assert cuda.launch(function) == 400


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_launch_needs_a_context_and_a_stream_of_its_device(cuda: Cuda) -> None:
    kernel, stream = cuda.kernel("empty"), cuda.driver.create_stream(1)
    assert cuda.launch(kernel, stream=stream) == 400
    cuda.driver.use_device(1)
    assert cuda.launch(kernel, stream=stream) == 0
    cuda.driver.use_device(None)
    assert cuda.launch(kernel) == 201
    context = ctypes.c_void_p()
    cuda.driver.use_device(0)
    assert cuda("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(context)) == 0
    assert cuda("cuCtxSetCurrent", context) == 0
    assert cuda.driver.current_device() == 1


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (1, 1, 1)),
        ((1, 65536, 1), (1, 1, 1)),
        ((1, 1, 1), (0, 1, 1)),
        ((1, 1, 1), (1025, 1, 1)),
        ((1, 1, 1), (1, 1, 65)),
        ((1, 1, 1), (32, 32, 2)),
    ],
)
def test_extents_beyond_the_device_are_refused(
    cuda: Cuda, grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    kernel = cuda.kernel("empty")
    assert cuda.launch(kernel, grid=grid, block=block) == 1
    assert cuda.launch(kernel, grid=(2**31 - 1, 65535, 65535), block=(1024, 1, 1)) == 0


def test_a_block_beyond_the_launch_bounds_is_refused(cuda: Cuda) -> None:
    kernel, pointer = cuda.kernel("bounded"), ctypes.c_uint64(1)
    assert cuda.launch(kernel, pointer, grid=(2, 1, 1), block=(129, 1, 1)) == 1
    assert cuda.launch(kernel, pointer, grid=(2, 1, 1), block=(128, 1, 1)) == 0
    assert cuda.driver.launches()[0].cluster == (2, 1, 1)


def test_dynamic_shared_memory_must_be_allowed_first(cuda: Cuda) -> None:
    kernel = cuda.kernel("empty")
    assert cuda.launch(kernel, shared_bytes=49152) == 0
    assert cuda.launch(kernel, shared_bytes=49153) == 1
    assert cuda("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 232449, kernel, 0) == 1
    assert cuda("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 232448, kernel, 0) == 0
    assert cuda.launch(kernel, shared_bytes=232448) == 0
    cuda.driver.use_device(1)
    assert cuda.launch(kernel, shared_bytes=49153) == 1


def test_clusters_must_fit(cuda: Cuda) -> None:
    kernel = cuda.kernel("bounded")
    assert cuda.launch_with(kernel, {}, grid=(3, 1, 1)) == 1
    assert cuda.launch_with(kernel, {LAUNCH_CLUSTER: [4, 1, 1]}) == 912
    plain, values = cuda.kernel("empty"), {LAUNCH_CLUSTER: [16, 1, 1]}
    assert cuda.launch_with(plain, values, grid=(16, 1, 1)) == 912
    assert cuda("cuKernelSetAttribute", NON_PORTABLE_CLUSTER, 1, plain, 0) == 0
    assert cuda.launch_with(plain, values, grid=(16, 1, 1)) == 0
    cuda.driver.set_attribute(0, 120, 0)
    assert cuda.launch_with(plain, values, grid=(16, 1, 1)) == 912


def test_a_cooperative_grid_must_fit_the_device(cuda: Cuda) -> None:
    kernel, blocks = cuda.kernel("empty"), ctypes.c_int()
    arguments = (ctypes.byref(blocks), kernel, 32, ctypes.c_size_t())
    assert cuda("cuOccupancyMaxActiveBlocksPerMultiprocessor", *arguments) == 0
    most = blocks.value * 132
    assert blocks.value == 32
    assert cuda.launch_with(kernel, {LAUNCH_COOPERATIVE: [1]}, grid=(most, 1, 1)) == 0
    assert cuda.launch_with(kernel, {LAUNCH_COOPERATIVE: [1]}, grid=(most + 1, 1, 1)) == 720


# ---- graph capture ---------------------------------------------------------------------------------------------------


def unsafe_calls(cuda: Cuda) -> list[Callable[[], int]]:
    library, kernel, function = cuda.library(), cuda.kernel("empty"), ctypes.c_void_p()
    assert cuda("cuKernelGetFunction", ctypes.byref(function), kernel) == 0
    code = ctypes.create_string_buffer(b"anything")
    return [
        lambda: cuda("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0),
        lambda: cuda("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 1000, kernel, 0),
        lambda: cuda("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, 1000),
        lambda: cuda("cuKernelGetFunction", ctypes.byref(function), kernel),
        lambda: cuda("cuFuncLoad", function),
    ]


def test_loading_during_capture_needs_the_relaxed_mode(cuda: Cuda) -> None:
    calls, mode = unsafe_calls(cuda), ctypes.c_int(2)
    assert [call() for call in calls] == [0] * 5
    cuda.driver.set_capturing(True)
    assert [call() for call in calls] == [900] * 5
    assert cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)) == 0
    assert mode.value == 0
    assert [call() for call in calls] == [0] * 5
    assert cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)) == 0
    assert (mode.value, [call() for call in calls]) == (2, [900] * 5)
    cuda.driver.set_capturing(False)
    assert [call() for call in calls] == [0] * 5


def test_a_captured_stream_takes_launches_and_cannot_be_waited_for(cuda: Cuda) -> None:
    kernel, status = cuda.kernel("empty"), ctypes.c_int()
    cuda.driver.set_capturing(True)
    assert cuda.launch(kernel, stream=0x50) == 0
    answers = []
    for stream in (0x50, 0):
        assert cuda("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status)) == 0
        answers.append((status.value, cuda("cuStreamSynchronize", ctypes.c_void_p(stream))))
    assert answers == [(1, 900), (0, 0)]


# ---- playing kernels -------------------------------------------------------------------------------------------------


def test_an_executor_plays_the_kernel_on_host_memory(cuda: Cuda) -> None:
    x, y = (ctypes.c_float * 4)(1, 2, 3, 4), (ctypes.c_float * 4)()
    played = []

    def play(kernel: str, params: bytes, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        played.append((kernel, grid, block))
        source, target, count = struct.unpack("<QQi", params)
        for i in range(count):
            value = ctypes.c_float.from_address(source + 4 * i).value
            ctypes.c_float.from_address(target + 4 * i).value = value + 1

    cuda.driver.set_executor(play)
    values = (ctypes.c_uint64(ctypes.addressof(x)), ctypes.c_uint64(ctypes.addressof(y)), ctypes.c_int(3))
    kernel = cuda.kernel("add_one")
    assert cuda.launch(kernel, *values, grid=(1, 2, 3), block=(4, 5, 6)) == 0
    assert list(y) == [2, 3, 4, 0]
    assert cuda.launch(kernel) == 1
    assert played == [("add_one", (1, 2, 3), (4, 5, 6))]


def test_an_exception_of_the_executor_is_not_lost(cuda: Cuda) -> None:
    def play(kernel: str, params: bytes, grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
        raise LookupError(kernel)

    cuda.driver.set_executor(play)
    assert cuda.launch(cuda.kernel("empty")) == 0
    with pytest.raises(LookupError, match="empty"):
        cuda.driver.check_executor()
    cuda.driver.check_executor()
