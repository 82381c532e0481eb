"""NVRTC on a thread and in a child process: results, advice, forks, and what happens when somebody ends it."""

import ctypes
import fcntl
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import ARCH, build, kernel, python_command, python_env, run_python, start_python, work_dirs

import jitload
from jitload import Launch, build_inline, compile_cubin
from jitload.building.child_process import ChildProcess
from jitload.cache.locks import hold_lock
from jitload.cuda import isolated
from jitload.cuda.interruptible import Cancellation, run_interruptible
from jitload.cuda.nvrtc import log_warnings
from jitload.errors import CompileError, SignatureError, ToolchainError
from jitload.nvrtc import nvrtc_compile
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

# Without the lines that prevent it, this name expression crashes NVRTC.
CRASHING = "template <const int N = 256> __global__ void k(whatever_t*, int*) {}"


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitload.signature.probe.instantiations", lambda _: "")


def compile_alone(text: str, *, isolate: bool | None = True) -> bytes:
    return jitload.compile_cubin(text, arch=ARCH, isolate=isolate).data


def worker() -> int:
    """Return the process id of the idle child."""
    return isolated._children.idle[-1]._process.pid


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_death(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


@pytest.mark.usefixtures("crashes")
def test_a_crash_is_an_error_that_names_the_source_and_the_next_build_works(cache):
    with pytest.raises(CompileError) as caught:
        build(CRASHING, name="bad", functions={"k": Launch(kernel="k<256>")}, isolate=True)
    assert "was ended by SIGSEGV while it compiled 'bad.cu'" in str(caught.value)
    assert caught.value.stage == "nvrtc"
    assert build(kernel("good"), isolate=True).is_file()


def test_results_and_errors_are_those_of_this_process():
    text = kernel("f", "x[0] = sinf(x[1]);")
    assert compile_alone(text) == compile_alone(text, isolate=False)
    errors = []
    for isolate in (True, False):
        with pytest.raises(CompileError) as caught:
            compile_alone("__global__ void k(float* x) {\n  y; }", isolate=isolate)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    assert errors[0].diagnostics == errors[1].diagnostics
    assert [message[:3] for message in errors[0].diagnostics] == [("kernel.cu", 2, "error")]
    with pytest.raises(ToolchainError, match="does not know sm_19"):
        nvrtc_compile(text, arch="sm_19", isolate=True)


def test_the_variable_is_for_programs_that_cannot_be_changed(cache):
    """The program loads no NVRTC then, and an argument overrides the variable."""
    code = """
import sys, pathlib, builds, jitload
from jitload.nvrtc import nvrtc_compile
builds.build(builds.kernel("f"), isolate=None)
nvrtc_compile(builds.kernel("f"), arch=builds.ARCH)
assert "cuda.bindings" not in sys.modules and "libnvrtc" not in pathlib.Path("/proc/self/maps").read_text()
jitload.compile_cubin(builds.kernel("f"), arch=builds.ARCH, isolate=False)
assert "cuda.bindings" in sys.modules
"""
    done = run_python(code, {"JITLOAD_ISOLATE": "1"})
    assert (done.returncode, done.stderr) == (0, "")


def test_isolation_is_not_part_of_the_key(cache):
    assert build(kernel("f"), isolate=True) == build(kernel("f"), isolate=False)


def test_a_child_that_died_while_idle_is_replaced():
    compile_alone(kernel("f"))
    first = worker()
    os.kill(first, signal.SIGKILL)
    assert compile_alone(kernel("g"))
    assert worker() != first


def test_the_child_has_the_environment_and_the_directory_of_its_parent(tmp_path, monkeypatch):
    (tmp_path / "here.h").write_text("#define VALUE 1\n")
    compile_alone(kernel("f"))
    monkeypatch.chdir(tmp_path)
    assert nvrtc_compile('#include "here.h"\n' + kernel("f", "x[0] = VALUE;"), arch=ARCH, isolate=True)


def test_ctrl_c_ends_a_compile_at_once_and_the_next_one_works(cache):
    code = """
import os, jitload, builds, test_nvrtc
from jitload.building import child_process
ask = child_process.ChildProcess.ask
def telling(self, question):
    print(self._process.pid, flush=True)
    return ask(self, question)
child_process.ChildProcess.ask = telling
try:
    builds.build(test_nvrtc._MANY)
except KeyboardInterrupt:
    print("interrupted", flush=True)
builds.build(builds.kernel("f"))
print("went on", flush=True)
"""
    build(kernel("g"))  # what all libraries share is built before
    process = start_python(code, {"JITLOAD_ISOLATE": "1"})
    assert process.stdout is not None
    child = int(process.stdout.readline())
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert not is_alive(child)
    assert process.communicate(timeout=60)[0].splitlines()[-1] == "went on"
    assert process.returncode == 0


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "pass"])
def test_the_child_ends_with_its_parent(end):
    """A process that the parent forked, and that keeps the pipe to the child open, is still there."""
    code = f"""
import os, time, test_nvrtc
test_nvrtc.compile_alone(test_nvrtc.kernel("f"))
ours = os.fork()
if ours == 0:
    os.close(1)
    time.sleep(60)
print(test_nvrtc.worker(), ours, flush=True)
{end}
"""
    process = start_python(code)
    assert process.stdout is not None
    with process.stdout:
        child, fork = map(int, process.stdout.readline().split())
    process.wait()
    try:
        await_death(child)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_forked_process_has_children_of_its_own():
    code = """
import os, test_nvrtc
test_nvrtc.compile_alone(test_nvrtc.kernel("f"))
before = test_nvrtc.worker()
forked = os.fork()
if forked == 0:
    test_nvrtc.compile_alone(test_nvrtc.kernel("g"))
    assert test_nvrtc.worker() != before
    test_nvrtc.isolated._end_children()
    os._exit(0)
assert os.waitpid(forked, 0)[1] == 0
test_nvrtc.compile_alone(test_nvrtc.kernel("h"))
assert test_nvrtc.worker() == before
"""
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def alarm() -> Iterator[None]:
    """Raise a TimeoutError in the main thread, which is an OSError, like errors of pipes and files."""

    def ring(*_: object) -> None:
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_timeout_of_the_caller_is_not_the_end_of_the_child():
    child = ChildProcess("import time; time.sleep(60)")
    with pytest.raises(TimeoutError, match="too late"):
        child.ask("a question")
    child.kill()


@pytest.mark.usefixtures("alarm")
def test_a_timeout_of_the_caller_ends_the_wait_for_a_lock(tmp_path):
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="too late"), hold_lock(tmp_path / "lock", "it"):
            pytest.fail("the lock is held")


# ---- a compile that Ctrl-C ends, on a thread of its own --------------------------------------------------------------

# Twenty kernels, some seconds in all.
_MANY = """
template <int N> struct Sum { static __device__ float of(float x) { return Sum<N - 1>::of(x) * 1.5f + sinf(x); } };
template <> struct Sum<0> { static __device__ float of(float x) { return x; } };
#define K(n) extern "C" __global__ void k##n(float* x) { x[0] = Sum<9 + n % 7>::of(x[0]); }
#define K10(n) K(n##0) K(n##1) K(n##2) K(n##3) K(n##4) K(n##5) K(n##6) K(n##7) K(n##8) K(n##9)
K10(1) K10(2)
"""
_PROGRAM = """
import jitload, test_nvrtc
from jitload.cuda import program as nvrtc

make_error = nvrtc._compile_error
def tell(bindings, path, job, status, log):
    print(status.name, flush=True)
    return make_error(bindings, path, job, status, log)
nvrtc._compile_error = tell
watch = nvrtc.Cancellation.watch
nvrtc.Cancellation.watch = lambda *arguments: (watch(*arguments), print("begin", flush=True))
try:
    jitload.build_inline("many", cuda_sources=test_nvrtc._MANY, arch="sm_90a")
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


KIT = Path("/site/nvidia/cu13/include")
OF_THE_KIT = f'{KIT}/cuda_fp8.h(7): warning #1215-D: type "double4" was declared deprecated\n'
OF_THE_USER = 'vec.cu(2): warning #177-D: variable "i" was declared but never referenced\n'


def test_warnings_about_the_kit_are_no_warnings(caplog):
    with caplog.at_level(logging.DEBUG, logger="jitload"):
        for log in (OF_THE_KIT, OF_THE_USER, OF_THE_KIT + OF_THE_USER):
            log_warnings(log, (KIT,))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]


FORK = """
import os, jitload
from pathlib import Path
from types import SimpleNamespace
from jitload.cuda import bindings

def fork_and_compile():
    child = os.fork()
    if child == 0:
        try:
            jitload.compile_cubin("__global__ void k() {}", arch="sm_90a")
            print("compiled", flush=True)
        except jitload.JitLoadError as error:
            print(type(error).__name__, str(error).partition(",")[0], flush=True)
        os._exit(0)
    os.waitpid(child, 0)

with bindings.inside_nvrtc():          # as a thread inside NVRTC does
    fork_and_compile()
ctypes = bindings.ctypes
bindings.ctypes = SimpleNamespace(CDLL=lambda _: SimpleNamespace(dlopen=lambda *_: fork_and_compile()))
bindings.open_nvrtc(Path("libnvrtc.so"))
bindings.ctypes = ctypes
fork_and_compile()
"""


def test_a_child_forked_inside_nvrtc_is_told():
    *refusals, compiled = run_python(FORK).stdout.splitlines()
    assert refusals == ["ToolchainError this process was forked while another thread was compiling with NVRTC"] * 2
    assert compiled == "compiled"


def test_nvrtc_compile_knows_the_names_that_nvcc_brings():
    text = 'extern "C" __global__ void k(float* x, int64_t n) { x[n] = INFINITY; }'
    assert nvrtc_compile(text, arch="sm_80").startswith(b"\x7fELF")
    with pytest.raises(CompileError, match=r'kernel\.cu:1: identifier "RAND_MAX" is undefined'):
        nvrtc_compile(text.replace("INFINITY", "RAND_MAX"), arch="sm_80")
    with pytest.raises(ToolchainError, match=r"does not know sm_90f; it knows .*sm_90"):
        nvrtc_compile(text, arch="sm_90f")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("__global__ void k(T* x) {}", ["-DT=float"], "also reads one of the macros -DT=float: #define it"),
        ("__global__ void k() {} void run() {}", [], "Put host functions such as main() between"),
        ("__global__ void k() { auto f = [] __device__ () {}; f(); }", [], "Remove __device__ from the lambda"),
        ("__global__ void k() {} __global__ void l() { k<<<1, 1>>>(); }", [], "NVRTC cannot compile kernels that"),
        ("__global__ void größe(int* x) {}", [], "NVRTC reads only ASCII"),
        ("#include <span>\n__global__ void k() { std::span<int> x; }", [], "pip install 'jitload[cu13]'"),
    ],
)
def test_an_error_says_what_to_do_next(text, options, words):
    with pytest.raises(CompileError) as caught:
        nvrtc_compile(text, arch="sm_80", extra_opts=options)
    assert words in caught.value.hint
    assert nvrtc_compile("#define T float\n__global__ void k(T* x) {}", arch="sm_80")


def test_a_kernel_with_the_name_of_another_function():
    text = 'namespace n { __device__ int k(int x) { return x; } } using namespace n; extern "C" __global__ void k() {}'
    with pytest.raises(SignatureError, match=r"has another function of this name\. Give .*Launch\('k\("):
        compile_cubin(text, arch="sm_80")
    assert build_inline("m", cuda_sources=text, functions={"f": Launch("k()", grid=1, block=1)}, arch="sm_80")


BUILD = 'builds.build(builds.kernel("f"))'


def test_without_cuda_bindings_the_error_names_the_command(cache):
    code = f"""
import sys
sys.modules["cuda"] = None
import builds, jitload
try:
    {BUILD}
except jitload.errors.ToolchainError as error:
    print(error)
"""
    done = run_python(code)
    assert done.stdout.startswith("compiling for a GPU needs cuda-bindings, which cannot be imported ("), done.stderr
    assert done.stdout.endswith("). Install it with: pip install 'cuda-bindings>=12.9.4,<14'\n")


@pytest.fixture(scope="module")
def other_nvrtc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another library of the name by which a loaded NVRTC is recognised; this one compiles nothing."""
    toolchain = find_cuda_toolchain(read_settings())
    directory = tmp_path_factory.mktemp("other") / "lib"
    directory.mkdir()
    (directory / "other.c").write_text("int nvrtcVersion(int* major, int* minor) { return *major = *minor = 9, 0; }")
    name = f"libnvrtc.so.{toolchain.major}"
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "other.c", "-o", name]
    subprocess.run(command, cwd=directory, check=True)
    return directory / name


def test_the_nvrtc_that_another_package_has_loaded_is_not_used(cache, other_nvrtc):
    """As torch loads the one that it came with, and JITLOAD_NVRTC names another."""
    done = run_python(f"import ctypes; ctypes.CDLL({str(other_nvrtc)!r})\nimport builds; print({BUILD})")
    assert done.stdout.endswith("/m.so\n"), done.stderr


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("import ctypes; ctypes.CDLL(other); from cuda.bindings import nvrtc; print(nvrtc.nvrtcVersion()[1])", ""),
        ("{BUILD}; print(9)", 'os.environ["JITLOAD_NVRTC"] = other'),
    ],
    ids=["another package has compiled", "JITLOAD_NVRTC has changed"],
)
def test_a_second_nvrtc_in_a_process_is_an_error(cache, other_nvrtc, first, second):
    code = f"""
import os, builds, jitload
other = {str(other_nvrtc)!r}
{first.replace("{BUILD}", BUILD)}
{second}
try:
    builds.build(builds.kernel("g"), "other")
except jitload.errors.ToolchainError as error:
    print(error)
"""
    done = run_python(code)
    number, _, message = done.stdout.partition("\n")
    assert number == "9", done.stderr
    assert message.startswith("this process cannot use NVRTC from /")
    assert "cuda.bindings already uses another NVRTC, and it can use only one per process. Start a new" in message
    assert not list(cache.glob("other-*"))  # nothing is kept of what one NVRTC made in the name of another
