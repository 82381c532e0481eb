"""The stub driver refuses what the CUDA driver refuses: a lax stub would let every other test pass for nothing."""

import ctypes

import pytest
from support.driver import StubDriver
from support.program import CUBIN, Cuda
from support.records import LAUNCH_CLUSTER, LAUNCH_COOPERATIVE

MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14  # the attributes' numbers in cuda.h
POINTER = ctypes.c_uint64(1)


@pytest.fixture
def cuda(stub_driver: StubDriver) -> Cuda:
    return Cuda(stub_driver)


def test_a_cubin_for_another_architecture_fails_where_it_is_used(cuda):
    cuda.driver.set_capability(1, 8, 0)
    kernel = cuda.kernel("empty")
    cuda.driver.use_device(1)
    assert cuda("cuKernelGetFunction", ctypes.byref(ctypes.c_void_p()), kernel) == 209
    assert cuda.launch(kernel) == 209


def test_handles_must_be_alive(cuda):
    library, damaged = cuda.library(), cuda.library(b"not a cubin")
    kernel = cuda.kernel("empty", library)
    assert cuda("cuLibraryGetKernel", ctypes.byref(ctypes.c_void_p()), damaged, b"empty") == 200
    assert cuda("cuLibraryGetKernel", ctypes.byref(ctypes.c_void_p()), library, b"no such kernel") == 500
    assert cuda("cuLibraryUnload", library) == 0
    assert cuda.launch(kernel) == 400
    assert cuda("cuLibraryUnload", library) == 400


def test_a_launch_needs_a_context_and_a_stream_of_its_device(cuda):
    kernel, stream = cuda.kernel("empty"), cuda.driver.create_stream(1)
    assert cuda.launch(kernel, stream=stream) == 400
    cuda.driver.use_device(1)
    assert cuda.launch(kernel, stream=stream) == 0
    cuda.driver.use_device(None)
    assert cuda.launch(kernel) == 201


@pytest.mark.parametrize(
    ("kernel", "values", "options", "result"),
    [
        ("empty", (), {"grid": (0, 1, 1)}, 1),
        ("empty", (), {"grid": (1, 65536, 1)}, 1),
        ("empty", (), {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1, 1)}, 0),
        ("empty", (), {"block": (1025, 1, 1)}, 1),
        ("empty", (), {"block": (1, 1, 65)}, 1),
        ("empty", (), {"block": (32, 32, 2)}, 1),
        ("empty", (), {"shared_bytes": 49152}, 0),
        ("empty", (), {"shared_bytes": 49153}, 1),
        ("add_one", (), {}, 1),
        ("bounded", (POINTER,), {"grid": (2, 1, 1), "block": (128, 1, 1)}, 0),
        ("bounded", (POINTER,), {"grid": (2, 1, 1), "block": (129, 1, 1)}, 1),
    ],
)
def test_limits_of_a_launch(cuda, kernel, values, options, result):
    assert cuda.launch(cuda.kernel(kernel), *values, **options) == result


def test_dynamic_shared_memory_clusters_and_cooperative_grids_must_fit(cuda):
    bounded, plain, large = cuda.kernel("bounded"), cuda.kernel("empty"), {LAUNCH_CLUSTER: [16, 1, 1]}
    assert cuda.launch_with(bounded, {}, grid=(3, 1, 1)) == 1
    assert cuda.launch_with(bounded, {LAUNCH_CLUSTER: [4, 1, 1]}) == 912
    assert cuda.launch_with(plain, large, grid=(16, 1, 1)) == 912
    assert cuda("cuKernelSetAttribute", NON_PORTABLE_CLUSTER, 1, plain, 0) == 0
    assert cuda.launch_with(plain, large, grid=(16, 1, 1)) == 0
    assert cuda.launch_with(plain, {LAUNCH_COOPERATIVE: [1]}, grid=(32 * 132, 1, 1)) == 0
    assert cuda.launch_with(plain, {LAUNCH_COOPERATIVE: [1]}, grid=(32 * 132 + 1, 1, 1)) == 720
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
