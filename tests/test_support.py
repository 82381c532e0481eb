"""The stub driver keeps the CUDA driver's contracts, and records what it is told."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from support.driver import SONAME, StubDriver, StubError, build_stub, find_compiler
from support.program import CUBIN, Cuda
from support.records import read_calls

KERNELS = {
    "empty": [],
    "add_one": [(0, 8), (8, 8), (16, 4)],
    "mixed": [(0, 1), (2, 2), (8, 24), (32, 8), (40, 8)],
    "bounded": [(0, 8)],
}
STATIC_SHARED, MAX_DYNAMIC_SHARED = 1, 8


@pytest.fixture
def cuda(stub_driver: StubDriver) -> Cuda:
    return Cuda(stub_driver)


def run_python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(text)]
    found = {**environment, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(command, capture_output=True, text=True, env=found, check=False)


# ---- taking the driver's place ---------------------------------------------------------------------------------------


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a driver for all tests")
def test_it_is_loaded_behind_all_tests_that_have_no_driver():
    tests = Path(__file__).parent
    files = [str(tests / f"test_{name}.py") for name in ("call_errors", "support_launch", "api")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tests.parent)
    modules = [line.partition("::")[0].rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line]
    assert set(modules) == {"test_call_errors.py", "test_support_launch.py", "test_api.py"}, done.stdout + done.stderr
    behind = modules[len(modules) - modules[::-1].index("test_api.py") :]
    assert behind.count("test_call_errors.py") > 40
    assert behind.count("test_support_launch.py") == modules.count("test_support_launch.py")


def test_the_loader_finds_the_stub_by_its_soname(stub_driver: StubDriver) -> None:
    assert ctypes.CDLL(SONAME)._handle == stub_driver.library._handle


def test_a_loaded_real_driver_is_refused(stub_driver: StubDriver, tmp_path: Path) -> None:
    source = tmp_path / "real.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }")
    real = tmp_path / SONAME
    subprocess.run(
        [*find_compiler(), "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", str(source), "-o", str(real)], check=True
    )
    done = run_python(f"""
        import ctypes, pathlib
        from support.driver import StubDriver
        ctypes.CDLL({str(real)!r})
        StubDriver(pathlib.Path({str(stub_driver.path)!r}))
    """)
    assert "StubError: the stub cannot take the place of the CUDA driver: a real one is loaded" in done.stderr
    assert str(real) in done.stderr


def test_a_process_of_its_own_finds_the_stub_and_leaves_its_log(stub_driver: StubDriver, tmp_path: Path) -> None:
    log_path = tmp_path / "calls.log"
    program = f"import ctypes; assert ctypes.CDLL({SONAME!r}).cuInit(0) == 0"
    done = run_python(program, **stub_driver.environment(log_path))
    assert done.returncode == 0, done.stderr
    assert [call.name for call in read_calls(log_path.read_text())] == ["cuInit"]


@pytest.mark.usefixtures("loaded_stub")  # or it would be the driver of this process
def test_an_older_driver_lacks_functions(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(build_stub(tmp_path / "old", without=("cuFuncLoad", "cuKernelGetParamInfo"))))
    names = [name for name in ("cuFuncLoad", "cuKernelGetParamInfo", "cuInit") if hasattr(library, name)]
    assert names == ["cuInit"]


def test_a_stub_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -c 1/0")
    with pytest.raises(StubError, match=r"does not compile\n(.|\n)*ZeroDivisionError(.|\n)*Command: "):
        build_stub(tmp_path)


# ---- start, devices, contexts ----------------------------------------------------------------------------------------


def test_nothing_works_before_cu_init(cuda: Cuda) -> None:
    cuda.driver.set_initialized(False)
    count, name = ctypes.c_int(), ctypes.c_char_p()
    assert cuda("cuDeviceGetCount", ctypes.byref(count)) == 3
    assert cuda("cuGetErrorName", 3, ctypes.byref(name)) == 0
    assert name.value == b"CUDA_ERROR_NOT_INITIALIZED"
    assert cuda("cuInit", 0) == 0
    assert cuda("cuDeviceGetCount", ctypes.byref(count)) == 0
    assert count.value == 2
    cuda.driver.set_device_count(0)
    assert cuda("cuInit", 0) == 100


def test_a_forked_child_has_no_driver(stub_driver: StubDriver) -> None:
    done = run_python(
        f"""
        import ctypes, os
        driver = ctypes.CDLL({SONAME!r})
        assert driver.cuInit(0) == 0
        child = os.fork()
        if child == 0:
            os._exit(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        **stub_driver.environment(),
    )
    assert done.stdout.strip() == "3", done.stderr


def test_devices_have_the_attributes_that_a_test_sets(cuda: Cuda) -> None:
    value = ctypes.c_int()
    cuda.driver.set_capability(1, 12, 0)
    found = []
    for device, attribute in ((0, 75), (0, 97), (1, 75), (1, 76)):
        assert cuda("cuDeviceGetAttribute", ctypes.byref(value), attribute, device) == 0
        found.append(value.value)
    assert found == [9, 232448, 12, 0]
    assert cuda("cuDeviceGetAttribute", ctypes.byref(value), 75, 2) == 101
    with pytest.raises(StubError, match="attribute 75 of device 16"):
        cuda.driver.set_attribute(16, 75, 9)


def test_each_thread_has_its_own_current_context(cuda: Cuda) -> None:
    context, device = ctypes.c_void_p(cuda.driver.create_context(1)), ctypes.c_int()
    assert cuda("cuCtxPushCurrent_v2", context) == 0
    assert cuda.driver.current_device() == 1
    seen: list[int | None] = []

    def look() -> None:
        seen.append(cuda.driver.current_device())
        seen.append(cuda("cuCtxGetDevice", ctypes.byref(device)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [None, 201]
    assert cuda("cuCtxPopCurrent_v2", ctypes.byref(context)) == 0
    assert cuda.driver.current_device() == 0
    assert cuda("cuCtxSetCurrent", None) == 0
    assert cuda.driver.current_device() is None
    assert cuda("cuCtxSetCurrent", ctypes.c_void_p(12345)) == 201


def test_a_primary_context_lives_while_it_is_retained(cuda: Cuda) -> None:
    context, flags, active = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_int()
    states = []
    for name in (None, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"):
        if name is not None:
            arguments = (ctypes.byref(context), 1) if name.endswith("Retain") else (1,)
            assert cuda(name, *arguments) == 0
        assert cuda("cuDevicePrimaryCtxGetState", 1, ctypes.byref(flags), ctypes.byref(active)) == 0
        states.append(active.value)
    assert states == [0, 1, 0]
    assert cuda("cuCtxSetCurrent", context) == 0
    assert cuda.launch(cuda.kernel("empty")) == 709


# ---- libraries, kernels, variables -----------------------------------------------------------------------------------


def test_kernels_and_their_parameters_come_from_the_cubin(cuda: Cuda) -> None:
    library = cuda.library()
    assert {name: cuda.slots(cuda.kernel(name, library)) for name in KERNELS} == KERNELS
    assert cuda("cuLibraryGetKernel", ctypes.byref(ctypes.c_void_p()), library, b"no such kernel") == 500
    assert cuda.driver.calls("cuLibraryGetKernel")[-1]["name"] == "no such kernel"


def test_the_wide_form_of_parameter_records_is_read_too(cuda: Cuda) -> None:
    image, at = bytearray(CUBIN.read_bytes()), 0
    while (at := image.find(b"\x04\x17\x0c\x00", at)) >= 0:  # what compilers write for kernels with a large parameter
        size = struct.unpack_from("<I", image, at + 12)[0] >> 18
        image[at + 1] = 0x45
        struct.pack_into("<I", image, at + 12, size | 5 << 24)  # 13.0 marks pointers on sm_100 and later
    assert image != CUBIN.read_bytes()
    library = cuda.library(bytes(image))
    assert {name: cuda.slots(cuda.kernel(name, library)) for name in KERNELS} == KERNELS


@pytest.mark.parametrize(
    ("kernel", "attribute", "value"),
    [
        ("bounded", 0, 128),
        ("add_one", 0, 1024),
        ("mixed", STATIC_SHARED, 128),
        ("empty", STATIC_SHARED, 0),
        ("mixed", MAX_DYNAMIC_SHARED, 49152 - 128),
        ("bounded", 10, 1),
        ("bounded", 11, 2),
        ("bounded", 12, 1),
    ],
)
def test_function_attributes(cuda: Cuda, kernel: str, attribute: int, value: int) -> None:
    found, function = ctypes.c_int(-1), ctypes.c_void_p()
    handle = cuda.kernel(kernel)
    assert cuda("cuKernelGetAttribute", ctypes.byref(found), attribute, handle, 0) == 0
    assert found.value == value
    assert cuda("cuKernelGetFunction", ctypes.byref(function), handle) == 0
    assert cuda("cuFuncGetAttribute", ctypes.byref(found), attribute, function) == 0
    assert found.value == value


def test_bytes_that_are_no_cubin_fail_when_a_kernel_is_asked_for(cuda: Cuda) -> None:
    library = cuda.library(b"not a cubin")
    assert cuda("cuLibraryGetKernel", ctypes.byref(ctypes.c_void_p()), library, b"empty") == 200


def test_a_cubin_for_another_architecture_fails_where_it_is_used(cuda: Cuda) -> None:
    cuda.driver.set_capability(1, 8, 0)
    kernel = cuda.kernel("empty")
    assert cuda.launch(kernel) == 0
    cuda.driver.use_device(1)
    assert cuda("cuKernelGetFunction", ctypes.byref(ctypes.c_void_p()), kernel) == 209
    assert cuda.launch(kernel) == 209


def test_variables_are_read_and_written_for_each_device(cuda: Cuda) -> None:
    library = cuda.library()

    def find(name: str) -> tuple[ctypes.c_uint64, int]:
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        assert cuda("cuLibraryGetGlobal", ctypes.byref(address), ctypes.byref(size), library, name.encode()) == 0
        return address, size.value

    def read(name: str) -> bytes:
        address, size = find(name)
        data = ctypes.create_string_buffer(size)
        assert cuda("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size)) == 0
        return data.raw

    assert struct.unpack("4i", read("coefficients")) == (1, 2, 3, 4)
    assert struct.unpack("8f", read("table")) == (0.0,) * 8
    assert struct.unpack("d", read("seeded")) == (2.5,)
    assert cuda("cuMemcpyHtoD_v2", find("seeded")[0], struct.pack("d", -1.5), ctypes.c_size_t(8)) == 0
    assert struct.unpack("d", read("seeded")) == (-1.5,)
    cuda.driver.use_device(1)
    assert struct.unpack("d", read("seeded")) == (2.5,)
    assert cuda("cuLibraryGetGlobal", ctypes.byref(ctypes.c_uint64()), None, library, b"missing") == 500


def test_an_unloaded_library_is_gone(cuda: Cuda) -> None:
    library = cuda.library()
    kernel = cuda.kernel("empty", library)
    assert cuda("cuLibraryUnload", library) == 0
    assert cuda.launch(kernel) == 400
    assert cuda("cuLibraryUnload", library) == 400


def test_get_proc_address_knows_when_functions_came(cuda: Cuda) -> None:
    found, status = ctypes.c_void_p(), ctypes.c_int()
    answers = []
    for name, version in ((b"cuFuncLoad", 12040), (b"cuFuncLoad", 12030), (b"cuNothing", 12040)):
        arguments = (name, ctypes.byref(found), version, ctypes.c_uint64(), ctypes.byref(status))
        assert cuda("cuGetProcAddress_v2", *arguments) == 0
        answers.append((status.value, found.value))
    assert answers == [(0, ctypes.cast(cuda.driver.library.cuFuncLoad, ctypes.c_void_p).value), (2, None), (1, None)]
    cuda.driver.set_driver_version(12020)
    assert cuda("cuGetProcAddress_v2", b"cuFuncLoad", ctypes.byref(found), 12040, ctypes.c_uint64(), None) == 1


def test_private_tables_are_refused_and_not_missing(cuda: Cuda) -> None:
    table = ctypes.c_void_p(1)
    assert cuda("cuGetExportTable", ctypes.byref(table), bytes(16)) == 500
    assert table.value is None


def test_a_tensor_map_must_be_aligned(cuda: Cuda) -> None:
    words = (ctypes.c_uint64 * 32)()
    aligned = (ctypes.addressof(words) + 63) & ~63
    extents, one = (ctypes.c_uint64 * 1)(64), (ctypes.c_uint32 * 1)(1)
    for offset, expected in ((0, 0), (8, 1)):
        arguments = (7, 1, ctypes.c_void_p(4096), extents, None, one, one, 0, 0, 0, 0)
        assert cuda("cuTensorMapEncodeTiled", ctypes.c_void_p(aligned + offset), *arguments) == expected
    assert ctypes.c_uint64.from_address(aligned).value == 4096


# ---- the log and forced failures -------------------------------------------------------------------------------------


def test_calls_are_recorded_until_they_are_cleared_or_reset(cuda: Cuda) -> None:
    cuda.driver.clear()
    assert cuda("cuCtxSetCurrent", None) == 0
    assert cuda("cuStreamSynchronize", ctypes.c_void_p(7)) == 201
    first, second = cuda.driver.calls()
    assert (first.name, first.result, first["device"]) == ("cuCtxSetCurrent", 0, "-1")
    assert (second.name, second.result, second.number("stream")) == ("cuStreamSynchronize", 201, 7)
    cuda.driver.reset()
    assert cuda.driver.calls() == []


def test_failures_come_when_and_as_often_as_asked(cuda: Cuda) -> None:
    kernel = cuda.kernel("empty")
    cuda.driver.fail("cuLaunchKernel", 700, skip=1, count=2)
    assert [cuda.launch(kernel) for _ in range(5)] == [0, 700, 700, 0, 0]
    assert len(cuda.driver.launches()) == 3
    assert [call["kernel"] for call in cuda.driver.calls("cuLaunchKernel")] == ["empty"] * 5
    cuda.driver.fail("cuCtxGetDevice", 999)
    assert [cuda("cuCtxGetDevice", ctypes.byref(ctypes.c_int())) for _ in range(3)] == [999] * 3
    with pytest.raises(StubError, match="no driver function 'cuLaunchKernels'"):
        cuda.driver.fail("cuLaunchKernels", 1)


def test_threads_share_one_log(cuda: Cuda) -> None:
    kernel, each = cuda.kernel("empty"), 200

    def work(device: int) -> None:
        cuda.driver.use_device(device)
        for _ in range(each):
            cuda.launch(kernel)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launches = cuda.driver.launches()
    assert sorted(launch.device for launch in launches) == [0] * 2 * each + [1] * 2 * each
    assert len({launch.thread for launch in launches}) == 4
