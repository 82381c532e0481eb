"""A compile of NVRTC that Ctrl-C ends, and its room: on a thread of its own."""

import ctypes
import os
import signal
import subprocess
import threading
import time

import pytest
from builds import build, kernel, python_command, python_env, run_python, work_dirs

from jitload.cuda.interruptible import Cancellation, run_interruptible
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

# Twenty kernels, some seconds in all.
_MANY = """
template <int N> struct Sum { static __device__ float of(float x) { return Sum<N - 1>::of(x) * 1.5f + sinf(x); } };
template <> struct Sum<0> { static __device__ float of(float x) { return x; } };
#define K(n) extern "C" __global__ void k##n(float* x) { x[0] = Sum<9 + n % 7>::of(x[0]); }
#define K10(n) K(n##0) K(n##1) K(n##2) K(n##3) K(n##4) K(n##5) K(n##6) K(n##7) K(n##8) K(n##9)
K10(1) K10(2)
"""
_PROGRAM = """
import jitload, test_interruptible
from jitload.cuda import program as nvrtc

make_error = nvrtc._compile_error
def tell(bindings, path, job, status, log):
    print(status.name, flush=True)
    return make_error(bindings, path, job, status, log)
nvrtc._compile_error = tell
watch = nvrtc.Cancellation.watch
nvrtc.Cancellation.watch = lambda *arguments: (watch(*arguments), print("begin", flush=True))
try:
    jitload.build_inline("many", cuda_sources=test_interruptible._MANY, arch="sm_90a")
except KeyboardInterrupt:
    print("interrupted", flush=True)
nvrtc.Cancellation.watch = watch
jitload.build_inline("after", cuda_sources='extern "C" __global__ void f(float* x) {}', arch="sm_90a")
print("went on", flush=True)
"""


def test_ctrl_c_ends_a_long_compile_and_the_next_one_works(cache):
    if find_cuda_toolchain(read_settings()).version < (12, 8):
        pytest.skip("this NVRTC, older than 12.8, cannot be told to stop")
    build(kernel("g"))  # what all libraries share is built before
    process = subprocess.Popen(python_command(_PROGRAM), env=python_env(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    time.sleep(0.1)  # NVRTC 13.5 crashes if it is cancelled in a pass that it runs after a quarter of the compile
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # somebody is impatient
    assert process.communicate(timeout=120)[0] == "NVRTC_ERROR_CANCELLED\ninterrupted\nwent on\n"
    assert process.returncode == 0
    assert work_dirs(cache) == []
    assert {path.name.partition("-")[0] for path in cache.glob("[!.]*-*")} == {"m", "after"}


def test_deep_nesting_finds_room(cache):
    deep = "(" * 5000 + "x[1]" + "+ 1)" * 5000
    code = f"import builds; builds.build(builds.kernel('f', 'x[0] = {deep};'))"
    done = run_python(code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_exception_while_it_waits_is_passed_on_when_the_compile_has_ended(monkeypatch):
    """With a compile that looks at the word as NVRTC does."""
    seen: list[str] = []

    def work(cancellation: Cancellation) -> None:
        read = ctypes.CDLL(None).atoi
        while not read(cancellation._answer):
            time.sleep(0.01)
        seen.append("ended")

    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_interruptible(work)
    timer.join()
    assert seen == ["ended"]


def test_ctrl_c_interrupts_system_calls_after_a_compile_that_set_its_handler():
    """NVRTC 13.0 sets the handler by signal(3), after which system calls are restarted."""
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    run_interruptible(lambda _: libc.signal(signal.SIGINT, libc.signal(signal.SIGINT, signal.SIG_IGN)))
    reader, writer = os.pipe()
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    write = threading.Timer(10, os.write, (writer, b"late"))
    start = time.monotonic()
    for timer in (interrupt, write):
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        os.read(reader, 4)
    assert time.monotonic() - start < 5
    write.cancel()


def test_the_thread_has_exited_when_a_compile_returns():
    for _ in range(50):
        thread = run_interruptible(lambda _: threading.get_native_id())
        assert str(thread) not in os.listdir("/proc/self/task")
