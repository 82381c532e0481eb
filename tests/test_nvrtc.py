"""NVRTC in this process: what it says of headers that are not the user's, and forks while it works."""

import logging
import subprocess
from pathlib import Path

import builds
import pytest
from support.calls import run_python

from jitload import Launch, build_inline, compile_cubin
from jitload.cuda.nvrtc import log_warnings
from jitload.errors import CompileError, SignatureError, ToolchainError
from jitload.nvrtc import nvrtc_compile
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

KIT = Path("/site/nvidia/cu13/include")
OF_THE_KIT = f'{KIT}/cuda_fp8.h(7): warning #1215-D: type "double4" was declared deprecated\n'
OF_THE_USER = 'vec.cu(2): warning #177-D: variable "i" was declared but never referenced\n'


def test_warnings_about_the_kit_are_no_warnings(caplog):
    with caplog.at_level(logging.DEBUG, logger="jitload"):
        for log in (OF_THE_KIT, OF_THE_USER, OF_THE_KIT + OF_THE_USER):
            log_warnings(log, (KIT,))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]


FORK = """
import os
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
    *refusals, compiled = run_python(FORK).splitlines()
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
    ],
)
def test_an_error_says_what_to_do_next(text, options, words):
    with pytest.raises(CompileError) as caught:
        nvrtc_compile(text, arch="sm_80", extra_opts=options)
    assert words in caught.value.hint
    assert nvrtc_compile("#define T float\n__global__ void k(T* x) {}", arch="sm_80")


def test_a_kernel_with_the_name_of_another_function():
    text = 'namespace n { __device__ int k(int x) { return x; } } using namespace n; extern "C" __global__ void k() {}'
    with pytest.raises(SignatureError, match=r"has another function of this name\. Give .*{'f': Launch\('k\(\)', "):
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
    done = builds.run_python(code)
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
    done = builds.run_python(f"import ctypes; ctypes.CDLL({str(other_nvrtc)!r})\nimport builds; print({BUILD})")
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
    done = builds.run_python(code)
    number, _, message = done.stdout.partition("\n")
    assert number == "9", done.stderr
    assert message.startswith("this process cannot use NVRTC from /")
    assert "cuda.bindings already uses another NVRTC, and it can use only one per process. Start a new" in message
    assert not list(cache.glob("other-*"))  # nothing is kept of what one NVRTC made in the name of another
