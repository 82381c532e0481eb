"""The driver's errors at every step of a launch, and machines that cannot launch at all."""

from pathlib import Path

import pytest
from support.calls import array, assert_refused, fresh, run_python
from support.driver import build_stub

import jitload
from jitload import Launch

SOURCE = """
extern "C" __global__ void copy(const float* x, float* y) {}
extern "C" __global__ void __launch_bounds__(128) tick(int n) {}
"""
EACH = {"copy": Launch(grid=2, block=(8, 4), shared_bytes=64), "tick": Launch(grid="n", block=64)}


@pytest.fixture(scope="module")
def path() -> str:
    return jitload.build_inline("errors", cuda_sources=SOURCE, functions=EACH, arch="sm_90a")


@pytest.fixture(scope="module")
def two_archs() -> str:
    return jitload.build_inline("archs", cuda_sources=SOURCE, functions=EACH, arch=("sm_80", "sm_89", "sm_90a"))


NEWER = "; the code may be newer than the driver: update the driver, or build with an older NVRTC (JITLOAD_NVRTC)"
COOPERATIVE = "; the blocks of a cooperative launch must all fit the device at once: launch fewer or smaller ones"
SPAWN = "after CUDA was initialised cannot use it: start workers with the 'spawn' or 'forkserver' method"
ELSEWHERE = "a stream or a context may belong to another device, or no longer exist"
CODES = {
    1: "CUDA_ERROR_INVALID_VALUE (invalid argument)",
    2: "CUDA_ERROR_OUT_OF_MEMORY (out of memory); free device memory, or use less of it",
    3: f"CUDA_ERROR_NOT_INITIALIZED (initialization error); a process that forked {SPAWN}",
    200: f"CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid){NEWER}",
    201: f"CUDA_ERROR_INVALID_CONTEXT (invalid device context); {ELSEWHERE}",
    209: f"CUDA_ERROR_NO_BINARY_FOR_GPU (no kernel image is available for execution on the device){NEWER}",
    400: f"CUDA_ERROR_INVALID_HANDLE (invalid resource handle); {ELSEWHERE}",
    500: "CUDA_ERROR_NOT_FOUND (named symbol not found); the library may be damaged: build it again",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (too many resources requested for launch); "
    "use fewer threads per block, or give the kernel __launch_bounds__",
    720: f"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE (too many blocks in cooperative launch){COOPERATIVE}",
    912: "CUDA_ERROR_INVALID_CLUSTER_SIZE (cluster misconfiguration); use a smaller cluster or smaller blocks",
    12345: "CUDA error 12345, which this driver has no name for",
}
STICKY = {
    700: "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT (the launch timed out and was terminated)",
    719: "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)",
    721: "CUDA error 721, which this driver has no name for",
}
HINT = "The context is lost; run the earlier launches one at a time, or with CUDA_LAUNCH_BLOCKING=1, to find which one"


@pytest.mark.parametrize("code", CODES)
def test_a_launch_that_fails_tells_code_and_configuration(unused, stub_driver, code):
    stub_driver.fail("cuLaunchKernel", code, count=1)
    text, _, advice = CODES[code].partition("; ")
    where = "grid (2, 1, 1), block (8, 4, 1), 64 bytes of dynamic shared memory, cuda:0"
    message = f"copy(): the launch failed: {text}; {where}{advice and '; '}{advice}"
    assert_refused(RuntimeError, message, unused.copy, array(), array())
    unused.copy(array(), array())
    assert len(stub_driver.launches()) == 1


@pytest.mark.parametrize("code", STICKY)
def test_an_error_that_a_launch_cannot_make_is_earlier_works(unused, stub_driver, code):
    stub_driver.fail("cuLaunchKernel", code)
    message = f"copy(): not launched on cuda:0: earlier work had failed with {STICKY[code]}. {HINT}"
    assert_refused(RuntimeError, message, unused.copy, array(), array())


STEPS = {
    "cuLibraryLoadData": "the driver cannot load the cubin",
    "cuLibraryGetKernel": "the driver cannot load the kernel",
    "cuKernelGetFunction": "the driver cannot load the kernel",
    "cuFuncLoad": "the driver cannot load the kernel",
    "cuDeviceGetCount": "no CUDA device can be used",
}


@pytest.mark.parametrize("step", STEPS)
def test_errors_before_a_first_launch_name_the_step(unused, stub_driver, step):
    stub_driver.fail(step, 200, count=1)
    assert_refused(RuntimeError, f"tick(): {STEPS[step]}: {CODES[200]}", unused.tick, 1)
    stub_driver.fail(step, 700, count=1)
    message = f"tick(): {STEPS[step]}: earlier work had failed with {STICKY[700]}. {HINT}"
    assert_refused(RuntimeError, message, unused.tick, 1)
    assert stub_driver.launches() == []
    unused.tick(1)
    assert len(stub_driver.launches()) == 1


def test_too_many_threads_are_refused_with_the_kernels_limit(unused, stub_driver):
    unused.tick[1, 128](1)
    message = (
        "tick(): the launch failed: CUDA_ERROR_INVALID_VALUE (invalid argument); grid (1, 1, 1), block (16, 8, 2), "
        "0 bytes of dynamic shared memory, cuda:0; a block of this kernel can have at most 128 threads (registers or "
        "__launch_bounds__), not 256"
    )
    assert_refused(RuntimeError, message, unused.tick[1, (16, 8, 2)], 1)


def test_each_device_gets_the_code_that_suits_it(two_archs, stub_driver):
    mod = fresh(two_archs)
    stub_driver.set_device_count(5)
    for device, capability in enumerate([(9, 0), (8, 0), (8, 6), (8, 9), (9, 0)]):
        stub_driver.set_capability(device, *capability)
        mod.copy(array(device=device), array(device=device))
        assert stub_driver.launches()[-1].device == device
    assert [call["capability"] for call in stub_driver.calls("cuLibraryLoadData")] == ["90", "80", "89"]


@pytest.mark.parametrize(("major", "minor"), [(7, 5), (9, 1), (12, 1)])
def test_a_device_without_code_is_an_error_that_lists_the_code(two_archs, stub_driver, major, minor):
    stub_driver.set_capability(0, major, minor)
    arch = f"sm_{major}{minor}"
    text = f'tick(): this library has sm_80, sm_89, sm_90a; this GPU, cuda:0, is {arch}: build it with arch="{arch}"'
    assert_refused(RuntimeError, text, fresh(two_archs).tick, 1)
    assert stub_driver.calls("cuLibraryLoadData") == []


VISIBLE = "see nvidia-smi, and the environment variable CUDA_VISIBLE_DEVICES"
MISMATCH = (
    "cuda driver combination); the driver's libraries and its kernel module differ in version: restart the machine"
)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (100, f"CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected); {VISIBLE}"),
        (803, f"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (system has unsupported display driver / {MISMATCH}"),
    ],
)
def test_a_driver_that_does_not_start(path, stub_driver, code, text):
    stub_driver.set_initialized(False)
    mod = fresh(path)
    stub_driver.fail("cuInit", code, count=1)
    assert_refused(RuntimeError, f"tick(): the CUDA driver cannot start: {text}", mod.tick, 1)
    mod.tick(1)
    assert len(stub_driver.launches()) == 1


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_without_a_driver_arguments_are_still_checked(path):
    program = """
mod = jitload.load_module(sys.argv[1])
mod.tick(0)
for arguments in ((), (1.5,), (2**40,), (-1,), (1,)):
    try:
        mod.tick(*arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""
    *checks, driver = run_python(program, path, environment={"LD_LIBRARY_PATH": ""}).splitlines()
    assert checks == [
        "TypeError: tick() takes 1 argument (n), got 0",
        "TypeError: tick(): argument 'n' must be an int, got float",
        "ValueError: tick(): argument 'n' (int) must be from -2147483648 to 2147483647, got 1099511627776",
        "ValueError: tick(): grid (-1, 1, 1) must not be negative",
    ]
    if "libcuda.so.1: cannot open shared object file" in driver:  # otherwise the machine has a driver
        assert driver.startswith(
            "RuntimeError: tick(): launching needs an NVIDIA driver, and libcuda.so.1 was not found: libcuda.so.1: "
        )


def test_a_driver_that_is_too_old(path, stub_driver, tmp_path):
    old = build_stub(tmp_path / "old", without=("cuKernelGetFunction",))
    environment = {**stub_driver.environment(), "LD_LIBRARY_PATH": str(old.parent)}
    program = """
mod = jitload.load_module(sys.argv[1])
for _ in range(2):
    try:
        mod.tick(1)
    except RuntimeError as error:
        print(error)
"""
    text = "tick(): the CUDA driver has no cuKernelGetFunction: it must support CUDA 12.0 or newer"
    assert run_python(program, path, environment=environment).splitlines() == [text, text]


def test_a_driver_without_cufuncload_works(path, stub_driver, tmp_path):
    old = build_stub(tmp_path / "old", without=("cuFuncLoad",))
    log = tmp_path / "log"
    environment = {**stub_driver.environment(log), "LD_LIBRARY_PATH": str(old.parent)}
    run_python("jitload.load_module(sys.argv[1]).tick(1)", path, environment=environment)
    assert "cuLaunchKernel result=0" in log.read_text()


FORKED = (
    "tick(): CUDA was used in this process before it forked, and cannot be used in the child; start workers with the "
    "'spawn' or 'forkserver' method"
)
FORK = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
mod = jitload.load_module(sys.argv[1])
{before}
sys.stdout.flush()
if os.fork() == 0:
    for call in (mod.tick, mod.tick[1, 1]):
        for _ in range(2):
            try:
                print(call(1))
            except RuntimeError as error:
                print(error)
    sys.stdout.flush()
    os._exit(0)
print(os.wait()[1])
{after}
"""


def test_a_child_of_a_process_that_used_cuda_gets_an_error(path, stub_driver, tmp_path):
    log = tmp_path / "log"
    program = FORK.format(before="mod.tick(1)", after="mod.tick(1)")
    printed = run_python(program, path, environment=stub_driver.environment(log)).splitlines()
    assert printed == [*[FORKED] * 4, "0"]
    assert log.read_text().count("cuLaunchKernel result=0") == 2


def test_a_child_may_use_cuda_where_its_parent_did_not(path, stub_driver):
    program = FORK.format(before="", after="mod.tick(1)")
    printed = run_python(program, path, environment=stub_driver.environment()).splitlines()
    assert printed == [*["None"] * 4, "0"]


def test_a_child_forked_while_the_driver_starts_gets_an_error(path, stub_driver, tmp_path):
    before = """
import signal, threading, time
thread = threading.Thread(target=mod.tick, args=(1,))
thread.start()
while not os.path.exists(os.environ["STUB_CUDA_SLOW_START"]):
    time.sleep(0.01)
signal.alarm(20)  # a child keeps no alarm, and sets its own
os.register_at_fork(after_in_child=lambda: signal.alarm(20))
"""
    program = FORK.format(before=before, after="thread.join(); mod.tick(1)")
    environment = {**stub_driver.environment(), "STUB_CUDA_SLOW_START": str(tmp_path / "begun")}
    printed = run_python(program, path, environment=environment).splitlines()
    assert printed == [*[FORKED] * 4, "0"]
