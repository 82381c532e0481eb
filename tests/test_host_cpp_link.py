"""The link of hand-written C++: the fast linker, undefined symbols, and functions of the driver without libcuda."""

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builds import run_python
from support.wrappers import undefined_symbols

import jitload
from jitload.errors import LoadError
from jitload.host_cpp import link
from jitload.host_cpp.link import find_driver_calls
from jitload.toolchain.host import Compiler

EXPORT = "int add(int a, int b) { return a + b; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(add, add);"
needs_gold = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("ld.gold") is None, reason="needs GNU gold on x86-64"
)


@needs_gold
@pytest.mark.parametrize("works", [True, False])
def test_gold_is_tried_once_for_each_compiler(works, tmp_path):
    """gold fails with some relocated compilers, in whose directories links to libraries dangle."""
    script = tmp_path / "g++"
    refuse = "" if works else 'case "$*" in *gold*) exit 1;; esac\n'
    script.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/log\n{refuse}exec g++ "$@"\n')
    script.chmod(0o755)
    compiler = Compiler(command=(str(script),), path=script)
    assert [link.fast_linker(compiler, (), tmp_path) for _ in range(2)] == [("-fuse-ld=gold",) * works] * 2
    assert (tmp_path / "log").read_text().count("-fuse-ld=gold") == 1


@needs_gold
def test_gold_links():
    path = Path(jitload.build_inline("gold", cpp_sources=EXPORT))
    assert "-fuse-ld=gold" in (path.parent / "build.ninja").read_text()
    assert jitload.load_module(path).add(2, 3) == 5


def test_a_fast_linker_that_fails_is_not_needed(monkeypatch):
    monkeypatch.setattr(link, "fast_linker", lambda *_: ("-Wl,--no-such-option",))
    path = Path(jitload.build_inline("fast", cpp_sources=EXPORT))
    assert "--no-such-option" not in (path.parent / "build.ninja").read_text()
    assert jitload.load_module(path).add(2, 3) == 5


# ---- undefined symbols -------------------------------------------------------------------------------------------


def test_an_undefined_function_is_named():
    text = "namespace ns { int nobody(int, const char*); }\nint f() { return ns::nobody(1, nullptr); }"
    with pytest.raises(LoadError, match=r"u\.so needs ns::nobody\(int, char const\*\), which is not defined by any"):
        jitload.load_inline("u", cpp_sources=text, functions="f")
    with pytest.raises(LoadError, match=r"u\.so needs in_c, which .* \(for C, declare it extern \"C\"\)"):
        jitload.load_inline("u", cpp_sources='extern "C" int in_c(); int f() { return in_c(); }', functions="f")


def test_symbols_of_other_libraries_are_found_at_load(tmp_path):
    """Of libc, tvm-ffi, Python itself and a library of the user's."""
    (tmp_path / "own.c").write_text("int own(void) { return 4; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "own.c", "-o", "libown.so"], cwd=tmp_path, check=True)
    text = """\
#include <cmath>
#include <thread>
extern "C" int own(); extern "C" int Py_IsInitialized();
int f(int n) { int r = 0; std::thread([&] { r = own() + Py_IsInitialized() + int(std::sqrt(n)); }).join(); return r; }
"""
    flags = [f"-L{tmp_path}", "-lown", f"-Wl,-rpath,{tmp_path}"]
    assert jitload.load_inline("u", cpp_sources=text, functions="f", extra_ldflags=flags).f(9) == 8


# ---- functions of the driver -------------------------------------------------------------------------------------


def has_driver_header() -> bool:
    """Return whether one of NVIDIA's wheels has the driver's header."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec else ()
    return any(True for root in roots for _ in Path(root).glob("*/include/cuda.h"))


SOURCE = """
#include <cuda.h>
int64_t count_devices() {
  int count = -1;
  TVM_FFI_CHECK(cuInit(0) == CUDA_SUCCESS, RuntimeError) << "no driver";
  TVM_FFI_CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS, RuntimeError) << "no count";
  return count;
}
int64_t result_of_init() { return cuInit(0); }
int64_t retain() {
  CUcontext context = nullptr;
  return cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS;
}
"""
FUNCTIONS = ["count_devices", "result_of_init", "retain"]
needs_headers = pytest.mark.skipif(not has_driver_header(), reason="cuda.h is not installed: nvidia-cuda-runtime")


def build(**options: Any) -> str:
    return jitload.build_inline("calls", cuda_sources=SOURCE, functions=FUNCTIONS, **options)


@needs_headers
@pytest.mark.parametrize("flags", [(), ("-lcuda",)])
def test_calls_reach_the_driver(flags, stub_driver):
    stub_driver.set_device_count(2)
    module = jitload.load_module(build(extra_ldflags=flags))
    assert module.count_devices() == 2
    assert module.retain() == 1
    assert "cuDevicePrimaryCtxRelease" in {call.name for call in stub_driver.calls()}


def test_only_functions_of_the_driver_are_defined(tmp_path):
    (tmp_path / "cuda.h").write_text(
        "#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuMemAlloc(void);\nCUresult CUDAAPI cuInit(unsigned);\n"
    )
    symbols = ["cuInit", "cuMemAlloc_v2", "cuFileRead", "cublasCreate_v2", "cudaMalloc", "cuInit_ptsz", "_ZN2cuIxE"]
    assert find_driver_calls(symbols, [tmp_path]) == ("cuInit", "cuInit_ptsz", "cuMemAlloc_v2")


@needs_headers
def test_without_a_driver_a_library_loads_and_calls_return_an_error():
    path = build()
    assert not {name for name in undefined_symbols(Path(path)) if name.startswith("cu")}
    code = f"""
import ctypes, jitload
try:
    ctypes.CDLL("libcuda.so.1")
    print("there is a driver")
except OSError:
    print(jitload.load_module({path!r}).result_of_init())
"""
    assert run_python(code).stdout.strip() in ("100", "there is a driver")
