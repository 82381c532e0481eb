"""The C++ launcher: hand-written wrappers compiled with our headers, and the cubins they are given."""

# ruff: noqa: F811  a fixture is imported, and a parameter of the same name asks for it

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.arrays import CPU, CudaArray, tensor_of
from support.fatbins import fatbin_of
from support.wrapper_fixtures import IMAGE, features, guide, libraries, library  # noqa: F401  pytest finds them here
from support.wrappers import (
    Wrapper,
    build_wrapper,
    exported_symbols,
    find_cuda_headers,
    load,
    refusal,
    undefined_symbols,
)


def floats(device: int = 0, size: int = 300) -> Any:
    return tensor_of(CudaArray(np.zeros(size, np.float32), device))


def test_the_guide_launches(guide, stub_driver):
    x, y = CudaArray(np.zeros(300, np.float32)), CudaArray(np.zeros(300, np.float32))
    guide.add_one(tensor_of(x), tensor_of(y))
    guide.empty(0x55, 0)
    first, second = stub_driver.launches()
    assert (first.kernel, first.grid, first.block, first.stream) == ("add_one", (2, 1, 1), (256, 1, 1), 0)
    assert first.arguments == (struct.pack("Q", x.address), struct.pack("Q", y.address), struct.pack("i", 300))
    assert (second.kernel, second.grid, second.block, second.stream) == ("empty", (1, 2, 3), (32, 2, 1), 0x55)


def test_nothing_is_asked_for_again(guide, stub_driver):
    guide.empty(0, 0)
    stub_driver.clear()
    guide.empty(0, 0)
    assert {call.name for call in stub_driver.calls()} == {"cuCtxGetCurrent", "cuCtxGetDevice", "cuLaunchKernel"}


def test_a_wrong_kernel_name_lists_the_names_there_are(guide):
    names = "empty, add_one, mixed, bounded"
    assert refusal(guide.missing) == f"RuntimeError: the cubin has no kernel named 'full'; it has: {names}"


def test_a_refused_launch_says_what_it_was(guide, stub_driver):
    stub_driver.use_device(0)
    stub_driver.fail("cuLaunchKernel", 701, count=1)
    assert refusal(guide.empty, 0, 16) == (
        "RuntimeError: CUDA Driver Error: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701): too many resources requested for "
        "launch; last refused launch: empty on cuda:0, grid (1, 2, 3), block (32, 2, 1), "
        "16 bytes of dynamic shared memory"
    )
    guide.empty(0, 16)


HIDDEN = ("driver_table", "driver_found", "launcher_lock", "primary_contexts", "last_refusal", "__tvm_ffi__cubin")


@pytest.mark.parametrize("name", ["guide", "library", "bare", "cuda"])
def test_a_library_needs_no_cuda_and_shares_nothing(name, libraries):
    if name not in libraries:
        pytest.skip("there are no CUDA headers")
    undefined, exported = undefined_symbols(libraries[name]), exported_symbols(libraries[name])
    assert not {symbol for symbol in undefined if symbol.startswith(("cu", "__cuda"))}
    assert not {symbol for symbol in exported if any(part in symbol for part in HIDDEN)}


NO_DRIVER = """
import sys, tvm_ffi
module = tvm_ffi.load_module(sys.argv[1])
for _ in range(2):
    try:
        module.empty(0, 0)
    except RuntimeError as error:
        print(error)
"""


def run(script: str, library_path: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    script = f"import sys; sys.modules['torch'] = None  # tvm-ffi would take seconds to import it\n{script}"
    command = [sys.executable, "-W", "ignore", "-c", script, str(library_path)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_without_a_driver_a_library_loads(libraries):
    if run("import ctypes; ctypes.CDLL('libcuda.so.1')", libraries["guide"]).returncode == 0:
        pytest.skip("there is a driver")
    done = run(NO_DRIVER, libraries["guide"])
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


def test_a_forked_process_gets_a_clear_error(libraries, stub_driver):
    done = run(FORKED, libraries["guide"], stub_driver.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(
        "last refused launch: empty: CUDA was used in this process before it forked, and cannot be used in the child; "
        "start workers with the 'spawn' or 'forkserver' method\n"
    )


FORKED_AT_START = """
import os, signal, sys, threading, time, warnings, tvm_ffi
warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
module = tvm_ffi.load_module(sys.argv[1])
image = open(os.environ["IMAGE"], "rb").read()
thread = threading.Thread(target=module.load_address, args=(image,))
thread.start()
while not os.path.exists(os.environ["STUB_CUDA_SLOW_START"]):
    time.sleep(0.01)
if os.fork() == 0:
    signal.alarm(20)
    for _ in range(2):
        try:
            module.load_address(image)
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
thread.join()
module.load_address(image)
print(os.wait()[1])
"""


def test_a_child_forked_while_the_driver_starts_gets_an_error(libraries, stub_driver, tmp_path):
    (tmp_path / "image").write_bytes(IMAGE)
    begun = {"STUB_CUDA_SLOW_START": str(tmp_path / "begun"), "IMAGE": str(tmp_path / "image")}
    done = run(FORKED_AT_START, libraries["bare"], {**stub_driver.environment(), **begun})
    assert (done.returncode, done.stderr) == (0, "")
    *said, status = done.stdout.splitlines()
    forked = "CUDA was used in this process before it forked, and cannot be used in the child"
    assert [line.partition(";")[0] for line in said] == [forked] * 2
    assert status == "0"


FATBIN = fatbin_of((2, 80, b"packed, 16 bytes"), (2, 90, IMAGE), (1, 90, b"PTX, of 16 bytes"))
PTX = b"//\n// Generated by NVIDIA NVVM Compiler\n.version 8.4\n"
NO_CUBINS = {
    "nothing": (b"", "the cubin is empty"),
    "garbage": (b"garbage", "the bytes are not a cubin: they begin with 67 61 72 62 and not with an ELF header"),
    "ptx": (PTX, "the bytes are PTX, not a cubin: compile it for a GPU first, with jitload.compile_cubin(ptx)"),
    "half a fatbin": (FATBIN[:99], f"the fatbin is damaged or truncated: it should have {len(FATBIN)} bytes, but"),
    "half": (IMAGE[:999], f"the cubin is truncated: its headers describe {len(IMAGE)} bytes, but it has 999"),
    "host": (IMAGE[:18] + b"\x3e\x00" + IMAGE[20:], "the bytes are not a cubin: they are a 64-bit ELF file for mach"),
    "far": (IMAGE[:40] + struct.pack("Q", 2**64 - 64) + IMAGE[48:], "the cubin is truncated: its headers describe 184"),
}


@pytest.mark.parametrize("kind", NO_CUBINS)
def test_bytes_that_are_no_cubin_leave_the_module_alone(kind, features, stub_driver):
    bad, message = NO_CUBINS[kind]
    assert refusal(features.replace, bad).startswith(f"RuntimeError: CubinModule: {message}")
    assert stub_driver.calls() == []
    features.launch("empty", 0, 0)
    assert len(stub_driver.launches()) == 1


def test_an_address_without_a_size_is_looked_at_too(features, stub_driver):
    features.load_address(IMAGE)
    calls = [call.name for call in stub_driver.calls() if "Library" in call.name]
    assert calls == ["cuLibraryLoadData", "cuLibraryUnload"]
    assert "they begin with 67 61 00 00 and not with an ELF header" in refusal(features.load_address, b"ga\0")
    assert refusal(features.load_address, PTX).startswith("RuntimeError: CubinModule: the bytes are PTX")


def test_a_fatbin_is_a_module(features, stub_driver):
    """The driver takes what the device can run; a missing kernel and a missing architecture are said as of a cubin."""
    features.replace(FATBIN)
    features.launch("empty", 0, 0)
    assert [launch.kernel for launch in stub_driver.launches()] == ["empty"]
    assert "the fatbin has no kernel named 'full'; it has: empty, add_one" in refusal(features.launch, "full", 0, 0)
    features.replace(FATBIN)
    stub_driver.set_capability(0, 7, 0)
    said = refusal(features.launch, "empty", 0, 0)
    assert said.endswith("launch: empty: the cubin or fatbin holds no code for cuda:0, which is sm_70")
    features.load_address(FATBIN)
    features.load_fatbin()  # that of an array
    stub_driver.set_capability(0, 9, 0)
    features.replace(IMAGE)


def test_moved_objects_say_so(features, stub_driver):
    assert refusal(features.launch_moved) == (
        "RuntimeError: CUDA Driver Error: CUDA_ERROR_INVALID_HANDLE (400): invalid resource handle; "
        "last refused launch: the kernel was moved to another object"
    )
    assert [launch.grid for launch in stub_driver.launches()] == [(2, 1, 1)]
    said = refusal(features.use_moved_module, IMAGE)
    assert said == "RuntimeError: the module was moved to another object, and has no kernels left"


def test_a_cubin_for_another_gpu(features, stub_driver):
    stub_driver.set_capability(0, 8, 0)
    assert refusal(features.launch, "empty", 0, 0) == (
        "RuntimeError: CUDA Runtime Error: CUDA_ERROR_NO_BINARY_FOR_GPU (209): no kernel image is available for "
        "execution on the device; last refused launch: empty: the cubin holds code for sm_90, and cuda:0 is sm_80"
    )


def test_uses_of_a_result(features):
    assert [features.use_result(grid) for grid in (1, 0)] == [0, 0]


def test_dispatch(library, stub_driver):
    for dtype, kernel in ((np.float32, "scale_float32"), (np.float16, "scale_float16")):
        x, y = CudaArray(np.zeros(512, dtype), 1), CudaArray(np.zeros(512, dtype), 1, byte_offset=64)
        library.scale(tensor_of(y), tensor_of(x), None)
        launch = stub_driver.launches()[-1]
        assert (launch.kernel, launch.device, launch.grid) == (kernel, 1, (2, 1, 1))
        assert launch.arguments[0] == struct.pack("Q", y.address)
    assert stub_driver.current_device() == 0


def test_checks(library, stub_driver):
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


DTYPES = {
    1: ("float32", "float64", "float16", "bfloat16"),
    2: ("float8_e4m3fn", "float8_e5m2"),
    3: ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    0: ("bool",),
}


@pytest.fixture(scope="module", params=["bare", "cuda"])
def dtypes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The dtypes with no header of CUDA's, and with one of them before ours and others behind it."""
    has_cuda = request.param == "cuda"
    if has_cuda and find_cuda_headers() is None:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    flags = ["-DCUDA_TYPES", "-Wno-error"] if has_cuda else []
    wrapper = Wrapper(source="dtypes", flags=flags, has_cuda=has_cuda)
    return load(build_wrapper(wrapper, tmp_path_factory.mktemp("library") / request.param))


def tensor(dtype: str, *shape: int) -> torch.Tensor:
    return torch.zeros(shape or (4,)).to(getattr(torch, dtype))


def test_dispatch_knows_every_dtype(dtypes):
    for group, names in DTYPES.items():
        for dtype in names:
            assert dtypes.any_of(tensor(dtype)) == f"kernel_{dtype}"
            assert dtypes.list_of(tensor(dtype)) == group


def test_a_dtype_that_is_not_in_the_list(dtypes):
    said = refusal(dtypes.any_of, tensor("complex64"))
    assert said.startswith("TypeError: Unsupported dtype: x.dtype() is complex64, expected one of bool, int8, int16,")
    said = refusal(dtypes.pair, tensor("float16"), tensor("int8"))
    assert said == "TypeError: Unsupported dtype: y.dtype() is int8, expected one of int32, int64"
    assert dtypes.pair(tensor("float16"), tensor("int64")) == "float16_int64"


def test_an_allocation_needs_a_framework(dtypes):
    assert dtypes.allocated(tensor("int8")).shape == (2, 3)
    said = refusal(dtypes.allocated, np.zeros(3))
    assert said.startswith("RuntimeError: alloc_tensor(): no argument of this call is a tensor of a framework that")


def test_checks_name_their_argument(dtypes):
    values, index = tensor("float32"), tensor("int64")
    dtypes.check_dtype(values, None)
    dtypes.check_dtype(values, index)
    assert refusal(dtypes.check_dtype, index, None) == "TypeError: values must be float32, got int64"
    assert refusal(dtypes.check_dtype, values, values) == "TypeError: index.value() must be int64, got float32"
    said = refusal(dtypes.check_dtype, tensor("float32", 2, 2), None)
    assert said == "ValueError: values must be a 1D tensor, got one of 2 dimensions, as there is no index"


def test_a_views_first_element(dtypes):
    assert dtypes.first_element(torch.arange(10)[3:]) == 3
