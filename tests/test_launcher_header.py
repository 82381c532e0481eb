"""The C++ launcher: hand-written wrappers compiled with our headers, and what they ask of the driver."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.arrays import CPU, CudaArray, tensor_of
from support.program import CUBIN
from support.records import LAUNCH_CLUSTER, LAUNCH_COOPERATIVE, LAUNCH_PDL, LAUNCH_PRIORITY
from support.wrappers import Wrapper, build_wrapper, exported_symbols, find_cuda_headers, undefined_symbols

import jitload

if TYPE_CHECKING:
    from support.driver import StubDriver

IMAGE = CUBIN.read_bytes()
MAX_DYNAMIC_SHARED = "8"  # cuda.h's numbers, as the log has them
NON_PORTABLE_CLUSTER = "14"
CLUSTER_POLICY = 5
SCALE = """
extern "C" __global__ void scale_float32(float* y, const float* x, long long n) { y[0] = x[n]; }
extern "C" __global__ void scale_float16(short* y, const short* x, long long n) { y[0] = x[n]; }
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wrappers, compiled: each source once, and the one with all features with and without CUDA's headers."""
    scale = jitload.compile_cubin(SCALE, arch="sm_90").data
    wrappers = {
        "guide": Wrapper(
            source="guide", cubins={"first": IMAGE, "second": IMAGE}, flags=["-fvisibility=hidden"], is_linked=True
        ),
        "library": Wrapper(source="library", cubins={"scale": scale}),
        "bare": Wrapper(source="features", bytes_of=IMAGE),
    }
    if find_cuda_headers() is not None:
        wrappers["cuda"] = Wrapper(source="features", bytes_of=IMAGE, has_cuda=True)
    directory = tmp_path_factory.mktemp("launcher")
    with ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda name: build_wrapper(wrappers[name], directory / name), wrappers)
        return dict(zip(wrappers, built, strict=True))


def load(path: Path) -> Any:
    import tvm_ffi

    return tvm_ffi.load_module(str(path))


@pytest.fixture
def guide(libraries: dict[str, Path], stub_driver: StubDriver) -> Any:
    return load(libraries["guide"])


@pytest.fixture(params=["bare", "cuda"])
def features(request: pytest.FixtureRequest, libraries: dict[str, Path], stub_driver: StubDriver) -> Any:
    """The module with all features, over a cubin that was just loaded: nothing is known of its kernels."""
    if request.param not in libraries:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    module = load(libraries[request.param])
    stub_driver.use_device(0)
    module.replace(IMAGE)
    stub_driver.clear()
    return module


def floats(device: int = 0, size: int = 300) -> Any:
    return tensor_of(CudaArray(np.zeros(size, np.float32), device))


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    """Return `<type>: <text>` of the exception that a call raises."""
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        call(*arguments)
    return f"{caught.type.__name__}: {caught.value}"


# ---- the guide's wrapper ---------------------------------------------------------------------------------------------


def test_the_guide_launches(guide: Any, stub_driver: StubDriver) -> None:
    x, y = CudaArray(np.zeros(300, np.float32)), CudaArray(np.zeros(300, np.float32))
    guide.add_one(tensor_of(x), tensor_of(y))
    guide.empty(0x55, 0)
    first, second = stub_driver.launches()
    assert (first.kernel, first.grid, first.block, first.stream) == ("add_one", (2, 1, 1), (256, 1, 1), 0)
    assert first.arguments == (struct.pack("Q", x.address), struct.pack("Q", y.address), struct.pack("i", 300))
    assert (second.kernel, second.grid, second.block, second.stream) == ("empty", (1, 2, 3), (32, 2, 1), 0x55)


def test_nothing_is_asked_for_again(guide: Any, stub_driver: StubDriver) -> None:
    guide.empty(0, 0)
    stub_driver.clear()
    guide.empty(0, 0)
    assert {call.name for call in stub_driver.calls()} == {"cuCtxGetCurrent", "cuCtxGetDevice", "cuLaunchKernel"}


def test_a_wrong_kernel_name_lists_the_names_there_are(guide: Any) -> None:
    text = "RuntimeError: the cubin has no kernel named 'full'; it has: add_one, bounded, empty, mixed"
    assert sorted(refusal(guide.missing).split(": ")[-1].split(", ")) == ["add_one", "bounded", "empty", "mixed"]
    assert refusal(guide.missing)[:62] == text[:62]


def test_a_refused_launch_says_what_it_was(guide: Any, stub_driver: StubDriver) -> None:
    stub_driver.use_device(0)
    stub_driver.fail("cuLaunchKernel", 701, count=1)
    assert refusal(guide.empty, 0, 16) == (
        "RuntimeError: CUDA Driver Error: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701): too many resources requested for "
        "launch; last refused launch: empty on cuda:0, grid (1, 2, 3), block (32, 2, 1), 16 bytes of dynamic shared memory"
    )
    guide.empty(0, 16)


@pytest.mark.parametrize("name", ["guide", "library", "bare", "cuda"])
def test_a_library_needs_no_cuda_and_shares_nothing(name: str, libraries: dict[str, Path]) -> None:
    if name in libraries:
        wanted, offered = undefined_symbols(libraries[name]), exported_symbols(libraries[name])
        assert not {symbol for symbol in wanted if symbol.startswith(("cu", "__cuda"))}
        state = ("driver_table", "driver_found", "launcher_lock", "primary_contexts", "last_refusal", "__tvm_ffi__cubin")
        assert not {symbol for symbol in offered if any(part in symbol for part in state)}


NO_DRIVER = """
import sys, tvm_ffi
module = tvm_ffi.load_module(sys.argv[1])
for _ in range(2):
    try:
        module.empty(0, 0)
    except RuntimeError as error:
        print(error)
"""


def test_without_a_driver_a_library_loads(libraries: dict[str, Path]) -> None:
    if subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"], capture_output=True).returncode == 0:
        pytest.skip("there is a driver")
    done = subprocess.run([sys.executable, "-c", NO_DRIVER, str(libraries["guide"])], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        assert line.startswith("launching needs an NVIDIA driver, and libcuda.so.1 was not found: libcuda.so.1:")


FORKED = """
import os, sys, tvm_ffi
module = tvm_ffi.load_module(sys.argv[1])
module.empty(0, 0)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    module.empty(0, 0)
except RuntimeError as error:
    print(error, flush=True)
    os._exit(0)
os._exit(9)
"""


def test_a_forked_process_gets_a_clear_error(libraries: dict[str, Path], stub_driver: StubDriver) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(libraries["guide"])]
    done = subprocess.run(command, capture_output=True, text=True, env=stub_driver.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "last refused launch: empty: CUDA was used in this process before it forked, and cannot be used in the child; "
        "start workers with the 'spawn' or 'forkserver' method\n"
    )


# ---- modules from bytes ----------------------------------------------------------------------------------------------

NO_CUBINS = {
    "": "the cubin is empty",
    "abc": "the bytes are no cubin: there are only 3 of them",
    "garbage": "the bytes are no cubin: they begin with 67 61 72 62 and not with an ELF header",
    "ptx": "the bytes are PTX, not a cubin: compile it for a GPU first, with jitload.compile_cubin(ptx) or ptxas",
    "fatbin": "the bytes are a fatbin, not a cubin: compile with nvcc -cubin, or take a cubin out of it with cuobjdump -xelf",
    "header": "the cubin is truncated: it has 40 bytes",
    "half": f"the cubin is truncated: its headers speak of {len(IMAGE)} bytes, and it has {len(IMAGE) // 2}",
    "host": "the bytes are no cubin: they are a 64-bit ELF file for machine 62, and CUDA is 64-bit, machine 190",
    "far": f"the cubin is truncated: its headers speak of {2**64 - 64} bytes, and it has {len(IMAGE)}",
}
BYTES = {
    "ptx": b"//\n// Generated by NVIDIA NVVM Compiler\n.version 8.4\n",
    "fatbin": b"\x50\xed\x55\xba\x01\x00\x10\x00" + bytes(64),
    "header": IMAGE[:40],
    "half": IMAGE[: len(IMAGE) // 2],
    "host": IMAGE[:18] + b"\x3e\x00" + IMAGE[20:],
    "far": IMAGE[:40] + struct.pack("Q", 2**64 - 64) + IMAGE[48:],
}


@pytest.mark.parametrize("kind", NO_CUBINS)
def test_bytes_that_are_no_cubin_leave_the_module_alone(kind: str, features: Any, stub_driver: StubDriver) -> None:
    bad = BYTES.get(kind, kind.encode())
    assert refusal(features.replace, bad) == f"RuntimeError: CubinModule: {NO_CUBINS[kind]}"
    assert stub_driver.calls() == []
    features.launch("empty", 0, 0)
    assert len(stub_driver.launches()) == 1


def test_an_address_without_a_size_is_looked_at_too(features: Any, stub_driver: StubDriver) -> None:
    features.load_address(IMAGE)
    assert [call.name for call in stub_driver.calls() if "Library" in call.name] == ["cuLibraryLoadData", "cuLibraryUnload"]
    assert refusal(features.load_address, b"ga\0") == (
        "RuntimeError: CubinModule: the bytes are no cubin: they begin with 67 61 00 00 and not with an ELF header"
    )
    assert refusal(features.load_address, BYTES["ptx"]).startswith("RuntimeError: CubinModule: the bytes are PTX")


def test_an_array_may_hold_a_fatbin(features: Any, stub_driver: StubDriver) -> None:
    features.load_fatbin()
    assert len(stub_driver.calls("cuLibraryLoadData")) == 1


def test_moved_objects_say_so(features: Any, stub_driver: StubDriver) -> None:
    assert refusal(features.launch_moved) == (
        "RuntimeError: CUDA Driver Error: CUDA_ERROR_INVALID_HANDLE (400): invalid resource handle; "
        "last refused launch: the kernel was moved to another object"
    )
    assert [launch.grid for launch in stub_driver.launches()] == [(2, 1, 1)]
    assert refusal(features.use_moved_module, IMAGE) == (
        "RuntimeError: the module was moved to another object, and has no kernels left"
    )


def test_a_cubin_for_another_gpu(features: Any, stub_driver: StubDriver) -> None:
    stub_driver.set_capability(0, 8, 0)
    assert refusal(features.launch, "empty", 0, 0) == (
        "RuntimeError: CUDA Runtime Error: CUDA_ERROR_NO_BINARY_FOR_GPU (209): no kernel image is available for "
        "execution on the device; last refused launch: empty: the cubin holds code for sm_90, and cuda:0 is sm_80"
    )


# ---- dynamic shared memory -------------------------------------------------------------------------------------------


def raised(stub_driver: StubDriver) -> list[tuple[str, str]]:
    """Return device and value of each raise of the shared memory limit."""
    calls = stub_driver.calls("cuKernelSetAttribute")
    return [(call["device"], call["value"]) for call in calls if call["attribute"] == MAX_DYNAMIC_SHARED]


def test_shared_memory_is_raised_when_it_is_asked_for(features: Any, stub_driver: StubDriver) -> None:
    features.launch("empty", 0, 48 * 1024)
    assert raised(stub_driver) == []
    features.launch("empty", 0, 200_000)
    assert raised(stub_driver) == [("0", "232448")]
    assert [launch.shared_bytes for launch in stub_driver.launches()] == [48 * 1024, 200_000]


def test_static_shared_memory_counts(features: Any, stub_driver: StubDriver) -> None:
    assert refusal(features.launch, "mixed", 0, 232_400) == (
        "RuntimeError: CUDA Runtime Error: CUDA_ERROR_INVALID_VALUE (1): invalid argument; last refused launch: mixed: "
        "232400 bytes of dynamic shared memory asked for, but cuda:0 gives a block at most 232448 bytes, and the "
        "kernel's own static shared memory takes 128 of them"
    )
    assert stub_driver.launches() == []


@pytest.mark.parametrize(("form", "first", "second"), [(0, -1, 0), (0, 200_000, 0), (1, 1024, -1), (1, 1024, 100_000)])
def test_the_most_shared_memory(form: int, first: int, second: int, features: Any, stub_driver: StubDriver) -> None:
    features.launch_most(form, first, second, 232_448)
    assert raised(stub_driver)[0] == ("0", "232448")  # device 0 is in use, device 1 is left alone
    assert {device for device, _ in raised(stub_driver)} == {"0"}
    assert stub_driver.launches()[0].shared_bytes == 232_448


def test_more_shared_memory_than_any_device_has(features: Any, stub_driver: StubDriver) -> None:
    text = "ValueError: GetKernelWithMaxDynamicSharedMemory: "
    assert refusal(features.launch_most, 0, 232_449, 0, 0) == (
        f"{text}232449 bytes of dynamic shared memory asked for 'empty', but no device here gives it more than 232448"
    )
    assert refusal(features.launch_most, 1, 448, 232_448, 0).endswith("no device here gives it more than 232000")
    assert refusal(features.launch_most, 0, -2, 0, 0) == (
        f"{text}'empty' cannot have -2 bytes of shared memory; -1 means the most there is"
    )


# ---- devices and streams ---------------------------------------------------------------------------------------------


def test_a_launch_goes_to_the_device_of_its_stream(features: Any, stub_driver: StubDriver) -> None:
    stub_driver.set_primary_active(1, is_active=True)
    for device in (1, 0, 1):
        features.launch("empty", stub_driver.create_stream(device), 0)
        assert stub_driver.current_device() == 0
    assert [launch.device for launch in stub_driver.launches()] == [1, 0, 1]


def test_a_refused_launch_leaves_the_device_as_it_was(features: Any, stub_driver: StubDriver) -> None:
    stub_driver.set_primary_active(1, is_active=True)
    assert "cuda:1 gives a block" in refusal(features.launch, "empty", stub_driver.create_stream(1), 300_000)
    assert stub_driver.current_device() == 0


def test_without_a_stream_the_pointers_tell(features: Any, stub_driver: StubDriver) -> None:
    arrays = [CudaArray(np.zeros(8, np.float32), device) for device in (0, 1)]
    for array in arrays:
        stub_driver.library.stub_place(ctypes.c_uint64(array.address), ctypes.c_size_t(32), array.device)
    for array in (arrays[1], arrays[0]):
        features.launch_pointer(tensor_of(array), 8)
    assert [launch.device for launch in stub_driver.launches()] == [1, 0]
    assert stub_driver.current_device() == 0


def test_a_thread_without_a_context(features: Any, stub_driver: StubDriver) -> None:
    stub_driver.set_primary_active(1, is_active=True)
    streams = [stub_driver.create_stream(device) for device in (0, 1)]
    threads = [Thread(target=features.launch, args=("empty", stream, 0)) for stream in streams for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(launch.device for launch in stub_driver.launches()) == [0] * 4 + [1] * 4


def test_one_device(libraries: dict[str, Path], stub_driver: StubDriver, tmp_path: Path) -> None:
    stub_driver.set_device_count(1)
    stub_driver.use_device(None)
    module = load(Path(shutil.copy(libraries["bare"], tmp_path / "one.so")))
    module.launch("empty", 0, 0)
    module.launch_driver_config()
    stub_driver.clear()
    stub_driver.use_device(None)
    module.launch_driver_config()
    assert [launch.grid for launch in stub_driver.launches()] == [(6, 1, 1)]
    stub_driver.clear()
    module.launch_driver_config()
    assert [call.name for call in stub_driver.calls()] == ["cuLaunchKernelEx"]


def test_a_first_launch_during_capture(features: Any, stub_driver: StubDriver) -> None:
    stub_driver.set_primary_active(1, is_active=True)
    stub_driver.set_capturing(is_capturing=True)
    features.replace(IMAGE)
    features.launch("empty", stub_driver.create_stream(1), 100_000)
    features.launch_most(0, -1, 0, 0)
    assert len(stub_driver.launches()) == 2


def test_the_guard(features: Any, stub_driver: StubDriver) -> None:
    seen: list[int | None] = []
    for before in (0, 1, None):
        stub_driver.use_device(before)
        for device in (0, 1):
            assert features.guarded_count(device, lambda: seen.append(stub_driver.current_device())) == 2
            assert stub_driver.current_device() == before
    assert seen == [0, 1] * 3
    assert refusal(features.guarded_count, 2, lambda: None) == (
        "RuntimeError: CUDADeviceGuard: there is no cuda:2; this process sees 2 devices"
    )


def test_the_guard_restores_when_its_scope_throws(features: Any, stub_driver: StubDriver) -> None:
    def fail() -> None:
        raise ValueError("inside")

    assert refusal(features.guarded_count, 1, fail) == "ValueError: inside"
    assert stub_driver.current_device() == 0
    stub_driver.fail("cuCtxSetCurrent", 999, skip=1)
    assert features.guarded_count(1, lambda: None) == 2


def test_the_guard_leaves_a_context_of_the_right_device(features: Any, stub_driver: StubDriver) -> None:
    stub_driver.library.cuCtxSetCurrent(ctypes.c_void_p(stub_driver.create_context(1)))
    stub_driver.clear()
    features.guarded_count(1, lambda: None)
    assert [call.name for call in stub_driver.calls()] == ["cuCtxGetDevice"]


# ---- launch attributes -----------------------------------------------------------------------------------------------


def test_configurations(features: Any, stub_driver: StubDriver) -> None:
    features.launch_cluster(stub_driver.create_stream(0), 4)
    features.launch_cluster(0, 1)
    features.launch_driver_config()
    features.launch_by_handle()
    clustered, plain, driver, by_handle = stub_driver.launches()
    assert (clustered.call, clustered.grid, clustered.shared_bytes) == ("cuLaunchKernelEx", (8, 1, 1), 64)
    assert (clustered.cluster, plain.cluster, driver.cluster) == ((4, 1, 1), None, (3, 1, 1))
    assert (driver.grid, driver.attribute(LAUNCH_PRIORITY)) == ((6, 1, 1), -1)
    assert by_handle.grid == (4, 1, 1)


def test_the_configuration_of_the_runtime(libraries: dict[str, Path], stub_driver: StubDriver) -> None:
    if "cuda" not in libraries:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    load(libraries["cuda"]).launch_runtime_config()
    (launch,) = stub_driver.launches()
    assert (launch.grid, launch.block, launch.shared_bytes) == ((4, 2, 1), (32, 1, 1), 128)
    assert set(launch.attributes) == {LAUNCH_PDL}
    assert launch.attribute(LAUNCH_PDL) == 1


def test_the_builder(features: Any, stub_driver: StubDriver) -> None:
    features.launch_built(8, 4, 2, 2, 1000)
    features.launch_cooperative(4)
    built, cooperative = stub_driver.launches()
    assert (built.cluster, built.shared_bytes) == ((4, 2, 2), 1000)
    assert set(built.attributes) == {LAUNCH_CLUSTER, CLUSTER_POLICY, LAUNCH_PDL, LAUNCH_PRIORITY}
    numbers = [built.attribute(number) for number in (CLUSTER_POLICY, LAUNCH_PDL, LAUNCH_PRIORITY)]
    assert numbers == [1, 1, -3]
    assert cooperative.attribute(LAUNCH_COOPERATIVE) == 1
    stub_driver.clear()
    features.launch_built(8, 4, 2, 2, 1000)
    assert stub_driver.calls("cuOccupancyMaxActiveClusters") == []


def test_clusters_that_cannot_be(features: Any, stub_driver: StubDriver) -> None:
    assert refusal(features.launch_built, 10, 4, 1, 1, 0) == (
        "ValueError: grid.x (10 blocks) is no multiple of cluster.x (4)"
    )
    assert refusal(features.launch_built, 8, 4, 0, 1, 0) == "ValueError: cluster must be positive, got (4, 0, 1)"
    assert refusal(features.launch_built, 32, 32, 1, 1, 2000) == (
        "ValueError: empty: a cluster of (32, 1, 1), 32 blocks, is not possible on cuda:0 with 64 threads and 2000 bytes "
        "of dynamic shared memory in a block: the limit is 16 blocks"
    )
    calls = stub_driver.calls("cuKernelSetAttribute")
    assert [call["value"] for call in calls if call["attribute"] == NON_PORTABLE_CLUSTER] == ["1"]
    assert stub_driver.launches() == []


# ---- results and checks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [1, 0])
def test_uses_of_a_result(grid: int, features: Any) -> None:
    assert features.use_result(grid) == 0


# ---- a kernel library ------------------------------------------------------------------------------------------------


@pytest.fixture
def library(libraries: dict[str, Path], stub_driver: StubDriver) -> Any:
    stub_driver.use_device(0)
    return load(libraries["library"])


def test_dispatch(library: Any, stub_driver: StubDriver) -> None:
    for dtype, kernel in ((np.float32, "scale_float32"), (np.float16, "scale_float16")):
        x, y = CudaArray(np.zeros(512, dtype), 1), CudaArray(np.zeros(512, dtype), 1, byte_offset=64)
        library.scale(tensor_of(y), tensor_of(x), None)
        launch = stub_driver.launches()[-1]
        assert (launch.kernel, launch.device, launch.grid) == (kernel, 1, (2, 1, 1))
        assert launch.arguments[0] == struct.pack("Q", y.address)
    assert stub_driver.current_device() == 0


def test_checks(library: Any, stub_driver: StubDriver) -> None:
    x, table = floats(), tensor_of(CudaArray(np.zeros((4, 6), np.float32)))
    strided = tensor_of(CudaArray(np.zeros(8, np.float32), shape=(4,), strides=(2,)))
    on_cpu = tensor_of(CudaArray(np.zeros(300, np.float32), device_type=CPU))
    whole = tensor_of(CudaArray(np.zeros(300, np.int32)))
    rows = [
        (x, on_cpu, None, "ValueError: input must be a CUDA tensor, got one on cpu"),
        (strided, x, None, "ValueError: output must be contiguous"),
        (table, table, None, "ValueError: input must be a 1D tensor, got one of 2 dimensions"),
        (floats(1), x, None, "ValueError: input and output must be on the same device, got cuda:0 and cuda:1"),
        (x, x, on_cpu, "ValueError: *bias must be a CUDA tensor, got one on cpu"),
        (x, whole, None, "TypeError: Unsupported dtype: input.dtype() is int32, expected one of float32, float16"),
    ]
    assert [refusal(library.scale, *row[:3]) for row in rows] == [row[3] for row in rows]
    assert stub_driver.launches() == []


def test_allocation(library: Any) -> None:
    import torch

    tensor = library.allocate(torch.zeros(3))
    assert (tensor.shape, tensor.dtype) == ((2, 3), torch.bfloat16)
