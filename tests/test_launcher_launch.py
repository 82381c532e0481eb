"""Launches by the C++ launcher: shared memory, devices, streams, the guard, launch attributes, and tvm-ffi's names."""

# ruff: noqa: F811  a fixture is imported, and a parameter of the same name asks for it

import ctypes
import shutil
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from support.arrays import CudaArray, tensor_of
from support.driver import StubDriver
from support.wrapper_fixtures import IMAGE, features, libraries  # noqa: F401  pytest finds them here
from support.wrappers import Wrapper, build_wrapper, find_cuda_headers, load, refusal

MAX_DYNAMIC_SHARED = "8"  # cuda.h's numbers, as the log has them


def raised(stub_driver: StubDriver) -> list[tuple[str, str]]:
    """Return device and value of each raise of the shared memory limit."""
    calls = stub_driver.calls("cuKernelSetAttribute")
    return [(call["device"], call["value"]) for call in calls if call["attribute"] == MAX_DYNAMIC_SHARED]


def test_shared_memory_is_raised_when_it_is_asked_for(features, stub_driver):
    features.launch("empty", 0, 48 * 1024)
    assert raised(stub_driver) == []
    features.launch("empty", 0, 200_000)
    assert raised(stub_driver) == [("0", "232448")]
    assert [launch.shared_bytes for launch in stub_driver.launches()] == [48 * 1024, 200_000]


def test_static_shared_memory_counts(features, stub_driver):
    said = refusal(features.launch, "mixed", 0, 232_400)
    assert said.endswith("a block at most 232448 bytes, and the kernel's own static shared memory takes 128 of them")
    assert stub_driver.launches() == []


@pytest.mark.parametrize(("form", "first", "second"), [(0, -1, 0), (0, 200_000, 0), (1, 1024, -1), (1, 1024, 100_000)])
def test_the_most_shared_memory(form, first, second, features, stub_driver):
    features.launch_most(form, first, second, 232_448)
    assert raised(stub_driver)[0] == ("0", "232448")  # device 0 is in use, device 1 is left alone
    assert {device for device, _ in raised(stub_driver)} == {"0"}
    assert stub_driver.launches()[0].shared_bytes == 232_448


def test_more_shared_memory_than_any_device_has(features, stub_driver):
    said = refusal(features.launch_most, 0, 232_449, 0, 0)
    assert "232449 bytes of dynamic shared memory requested for 'empty'" in said
    assert said.endswith("but no device here gives it more than 232448")
    assert refusal(features.launch_most, 1, 448, 232_448, 0).endswith("no device here gives it more than 232000")
    said = refusal(features.launch_most, 0, -2, 0, 0)
    assert said.endswith("'empty' cannot have -2 bytes of shared memory; -1 means the maximum")


def test_a_launch_goes_to_the_device_of_its_stream(features, stub_driver):
    stub_driver.set_primary_active(1, is_active=True)
    for device in (1, 0, 1):
        features.launch("empty", stub_driver.create_stream(device), 0)
        assert stub_driver.current_device() == 0
    assert [launch.device for launch in stub_driver.launches()] == [1, 0, 1]
    assert "cuda:1 gives a block" in refusal(features.launch, "empty", stub_driver.create_stream(1), 300_000)
    assert stub_driver.current_device() == 0  # also after a launch that is refused


def test_without_a_stream_the_pointers_tell(features, stub_driver):
    arrays = [CudaArray(np.zeros(8, np.float32), device) for device in (0, 1)]
    for array in arrays:
        stub_driver.library.stub_place(ctypes.c_uint64(array.address), ctypes.c_size_t(32), array.device)
    for array in (arrays[1], arrays[0]):
        features.launch_pointer(tensor_of(array), 8)
    assert [launch.device for launch in stub_driver.launches()] == [1, 0]
    assert stub_driver.current_device() == 0


def test_a_thread_without_a_context(features, stub_driver):
    stub_driver.set_primary_active(1, is_active=True)
    streams = [stub_driver.create_stream(device) for device in (0, 1)]
    threads = [Thread(target=features.launch, args=("empty", stream, 0)) for stream in streams for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(launch.device for launch in stub_driver.launches()) == [0] * 4 + [1] * 4


def test_one_device(libraries, stub_driver, tmp_path):
    stub_driver.set_device_count(1)
    stub_driver.use_device(None)
    module = load(Path(shutil.copy(libraries["bare"], tmp_path / "one.so")))
    module.launch("empty", 0, 0)
    module.launch_cluster(0, 4)
    stub_driver.clear()
    stub_driver.use_device(None)
    module.launch_cluster(0, 4)
    assert [launch.grid for launch in stub_driver.launches()] == [(8, 1, 1)]
    stub_driver.clear()
    module.launch_cluster(0, 4)
    assert [call.name for call in stub_driver.calls()] == ["cuLaunchKernelEx"]


def test_a_first_launch_during_capture(features, stub_driver):
    stub_driver.set_primary_active(1, is_active=True)
    stub_driver.set_capturing(is_capturing=True)
    features.replace(IMAGE)
    features.launch("empty", stub_driver.create_stream(1), 100_000)
    features.launch_most(0, -1, 0, 0)
    assert len(stub_driver.launches()) == 2


def test_the_guard(features, stub_driver):
    seen: list[int | None] = []
    for before in (0, 1, None):
        stub_driver.use_device(before)
        for device in (0, 1):
            assert features.guarded_count(device, lambda: seen.append(stub_driver.current_device())) == 2
            assert stub_driver.current_device() == before
    assert seen == [0, 1] * 3
    said = refusal(features.guarded_count, 2, lambda: None)
    assert said == "RuntimeError: CUDADeviceGuard: there is no cuda:2; this process sees 2 devices"


def test_the_guard_restores_when_its_scope_throws(features, stub_driver):
    def fail() -> None:
        raise ValueError("inside")

    assert refusal(features.guarded_count, 1, fail) == "ValueError: inside"
    assert stub_driver.current_device() == 0
    stub_driver.fail("cuCtxSetCurrent", 999, skip=1)
    assert features.guarded_count(1, lambda: None) == 2


def test_the_guard_leaves_a_context_of_the_right_device(features, stub_driver):
    stub_driver.library.cuCtxSetCurrent(ctypes.c_void_p(stub_driver.create_context(1)))
    stub_driver.clear()
    features.guarded_count(1, lambda: None)
    assert [call.name for call in stub_driver.calls()] == ["cuCtxGetDevice"]


def test_a_cluster_by_upstreams_own_function(features, stub_driver):
    features.launch_cluster(stub_driver.create_stream(0), 4)
    features.launch_cluster(0, 1)
    clustered, plain = stub_driver.launches()
    assert (clustered.call, clustered.grid, clustered.shared_bytes) == ("cuLaunchKernelEx", (8, 1, 1), 64)
    assert (clustered.cluster, plain.cluster) == ((4, 1, 1), None)


@pytest.fixture(scope="module", params=["bare", "driver"])
def names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every public name of tvm-ffi's launcher headers, without a header of CUDA's, and with the driver's API."""
    has_cuda = request.param != "bare"
    if has_cuda and find_cuda_headers() is None:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    flags = ["-DTVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API=1"] if has_cuda else []
    wrapper = Wrapper(source="unified", flags=flags, has_cuda=has_cuda)
    return load(build_wrapper(wrapper, tmp_path_factory.mktemp("names") / request.param))


def test_launches_by_each_name_of_tvm_ffis_launcher(names, stub_driver):
    stub_driver.use_device(0)
    assert names.launches(IMAGE) == 7
    launches = stub_driver.launches()
    grids = [(1, 1, 1), (2, 3, 1), (2, 3, 4), (4, 1, 1), (4, 1, 1), (1, 1, 1), (1, 1, 1)]
    assert [launch.grid for launch in launches] == grids
    assert [launch.shared_bytes for launch in launches] == [0, 64, 0, 128, 128, 0, 0]
    assert [launch.cluster for launch in launches[3:5]] == [(2, 1, 1)] * 2


def test_dynamic_shared_memory_is_set_by_the_handle_of_a_kernel(names, stub_driver):
    stub_driver.use_device(0)
    assert names.by_handle(IMAGE, -1) == 232_448 - 128
    assert names.by_handle(IMAGE, 100_000) == 100_000
    assert "CUDA_ERROR_INVALID_VALUE (1)" in refusal(names.by_handle, IMAGE, 300_000)
