"""The stub driver refuses what the CUDA driver refuses: a lax stub would let every other test pass for nothing."""

import ctypes

import pytest
from support.driver import StubDriver
from support.program import CUBIN, Cuda
from support.records import LAUNCH_CLUSTER

MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14  # the attributes' numbers in cuda.h


@pytest.fixture
def cuda(stub_driver: StubDriver) -> Cuda:
    return Cuda(stub_driver)


def test_a_launch_needs_a_context_and_a_stream_of_its_device(cuda):
    kernel, stream = cuda.kernel("empty"), cuda.driver.create_stream(1)
    assert cuda.launch(kernel, stream=stream) == 400
    cuda.driver.use_device(1)
    assert cuda.launch(kernel, stream=stream) == 0
    cuda.driver.use_device(None)
    assert cuda.launch(kernel) == 201


def test_dynamic_shared_memory_and_clusters_must_fit(cuda):
    bounded, plain, pointer = cuda.kernel("bounded"), cuda.kernel("empty"), ctypes.c_uint64(5)
    large = {"attributes": {LAUNCH_CLUSTER: [16, 1, 1]}, "grid": (16, 1, 1)}
    assert cuda.launch(bounded, pointer, grid=(3, 1, 1)) == 1
    assert cuda.launch(bounded, pointer, grid=(4, 1, 1), attributes={LAUNCH_CLUSTER: [4, 1, 1]}) == 912
    assert cuda.launch(plain, **large) == 912
    assert cuda("cuKernelSetAttribute", NON_PORTABLE_CLUSTER, 1, plain, 0) == 0
    assert cuda.launch(plain, **large) == 0
    assert cuda("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 232449, plain, 0) == 1
    assert cuda("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 232448, plain, 0) == 0
    assert cuda.launch(plain, shared_bytes=232448) == 0


def test_loading_during_capture_needs_the_relaxed_mode(cuda):
    library, kernel, function = cuda.library(), cuda.kernel("empty"), ctypes.c_void_p()
    assert cuda("cuKernelGetFunction", ctypes.byref(function), kernel) == 0
    code, mode = ctypes.create_string_buffer(CUBIN.read_bytes()), ctypes.c_int(2)
    calls = [
        ("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0),
        ("cuKernelSetAttribute", MAX_DYNAMIC_SHARED, 1000, kernel, 0),
        ("cuKernelGetFunction", ctypes.byref(function), kernel),
        ("cuFuncLoad", function),
    ]
    cuda.driver.set_capturing(True)
    assert [cuda(*call) for call in calls] == [900] * 4
    assert cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)) == 0
    assert [cuda(*call) for call in calls] == [0] * 4
