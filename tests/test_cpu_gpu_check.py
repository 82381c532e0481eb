"""What a GPU would refuse is refused on the CPU, too: by NVRTC's front end, and at the launch."""

import logging
import re
from typing import Any

import pytest
import torch

import jitload
from jitload import Launch
from jitload.cpu import library
from jitload.errors import CompileError
from jitload.kernels.compilation import check_device_code
from jitload.kernels.source import DeviceSource
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

KERNEL = 'extern "C" __global__ void k(float* x, int n) {{ {} }}'
# A text that g++ compiles, and what NVRTC says about it.
REFUSED = {
    "a host function": (
        "float f(float x) { return x; }\n" + KERNEL.format("x[0] = f(1);"),
        "considered a host function",
    ),
    "an exception": (KERNEL.format("if (n) throw 1;"), "does not support exception handling"),
    "a host variable": ("float g = 3;\n" + KERNEL.format("x[0] = g;"), "considered a host variable"),
    "an atomic that CUDA lacks": (
        'extern "C" __global__ void k(long long* x) { atomicAdd(x, 1ll); }',
        'no instance of overloaded function "atomicAdd"',
    ),
    "a template that a launch names": (
        "float f(float x) { return x; }\ntemplate <int N> __global__ void t(float* x) { x[0] = f(N); }",
        "considered a host function",
    ),
}


@pytest.fixture(autouse=True)
def _checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITLOAD_CPU_GPU_CHECK")


def load(text: str, **options: Any) -> Any:
    if "template" in text:
        options["functions"] = {"t": Launch(kernel="t<3>")}
    return jitload.load_inline("m", cuda_sources=text, arch="cpu", **options)


@pytest.mark.parametrize("case", REFUSED)
def test_code_that_nvrtc_refuses_is_refused(case):
    text, words = REFUSED[case]
    kernels = ("t<3>",) if "template" in text else ()
    source = DeviceSource(name="m", pieces=(("m.cu", text),), kernels=kernels)
    with pytest.raises(CompileError, match=re.escape(words)):
        check_device_code(source, "sm_90", find_cuda_toolchain(read_settings()))


def test_what_nvrtc_refuses_is_refused_in_its_words():
    text, words = REFUSED["a template that a launch names"]
    with pytest.raises(CompileError) as caught:
        load(text)
    assert caught.value.stage == "nvrtc"
    assert words in str(caught.value)
    assert "JITLOAD_CPU_GPU_CHECK=0" in caught.value.hint
    assert "A GPU cannot run" not in caught.value.hint  # nvcc might compile it
    assert caught.value.diagnostics[0].file == "m.cu"


def test_the_check_can_be_turned_off(monkeypatch):
    text, _ = REFUSED["a host function"]
    x = torch.zeros(1)
    load(text, gpu_check=False).k[1, 1](x, 1)
    monkeypatch.setenv("JITLOAD_CPU_GPU_CHECK", "0")
    load(text).k[1, 1](x, 1)
    with pytest.raises(CompileError):  # what was built without the check is another entry
        load(text, gpu_check=True)


def test_code_for_the_cpu_alone():
    text = "#ifdef JITLOAD_CPU\nfloat f() { return 1; }\n#else\n__device__ float f() { return 2; }\n#endif\n"
    x = torch.zeros(1)
    load(text + KERNEL.format("x[0] = f();")).k[1, 1](x, 1)
    assert x.item() == 1


def test_a_header_that_only_the_gpu_reads_counts(cache, tmp_path):
    text = '#ifndef JITLOAD_CPU\n#include "gpu.h"\n#endif\n' + KERNEL.format("")
    (tmp_path / "gpu.h").write_text("// fine\n")
    load(text, extra_include_paths=[tmp_path])
    (tmp_path / "gpu.h").write_text("__device__ int f() { return undeclared; }\n")
    with pytest.raises(CompileError, match=r'gpu\.h:1: .*"undeclared" is undefined'):
        load(text, extra_include_paths=[tmp_path])


@pytest.mark.parametrize("missing", ["NVRTC", "headers"])
def test_without_nvrtc_it_says_so_once(missing, cache, caplog, monkeypatch):
    text = KERNEL.format("if (n) throw 1;")
    toolchain = None
    if missing == "headers":
        toolchain = find_cuda_toolchain(read_settings())._replace(include_dirs=())
        text = f"#include <cooperative_groups.h>\n{text}"
    monkeypatch.setattr("jitload.sources.cpu.find_cuda_headers", lambda _: toolchain)
    library.warn_once.cache_clear()
    with caplog.at_level(logging.INFO, "jitload"):
        load(text)
        if "NVRTC" in missing:
            load(f"{text}\n")
    messages = [record for record in caplog.records if "not checked for GPUs" in record.message]
    assert [record.levelname for record in messages] == ["INFO"]
    assert "pip install" in messages[0].message


def test_more_shared_memory_than_a_gpu_gives_is_an_error():
    text = """
    struct S { int value; __device__ S() {} };
    __device__ __noinline__ float f(float x) {
      __shared__ float s[N];
      s[threadIdx.x] = x;
      __syncthreads();
      return s[0];
    }
    extern "C" __global__ void k(float* x) {
      __shared__ float s[2048];
      __shared__ S t;
      extern __shared__ float d[];
      d[threadIdx.x] = s[threadIdx.x] = t.value = x[threadIdx.x];
      __syncthreads();
      x[threadIdx.x] = f(s[1]) + d[0] + t.value;
    }
    extern "C" __global__ void small(float* x) { *x = f(*x); }"""
    load(text, extra_cuda_cflags=[f"-DN={(48 << 10) // 4 - 2049}"])
    message = r"kernel 'k' has __shared__ variables of 49156 bytes, and on a GPU they can have 49152 bytes at most"
    for options in ({}, {"debug": True}):
        with pytest.raises(CompileError, match=message):
            load(text, extra_cuda_cflags=[f"-DN={(48 << 10) // 4 - 2048}"], **options)


BOUNDS = """
template <class T, int N> struct Config { static const int threads = sizeof(T) * N; };
#define KERNEL extern "C" __launch_bounds__(32) __global__
__global__ void __launch_bounds__(128) a(float* x) { x[0] = threadIdx.x; }
extern "C" __launch_bounds__(64 * (1 + 1), 2)
  __global__ void c(float* x) { x[0] = 1; }
extern "C" __global__ __launch_bounds__(100) void d(float* x);
extern "C" __global__ void d(float* x) { x[0] = 1; }
KERNEL void e(float* x) { x[0] = 1; }
__global__ void f(float* x) { x[0] = 1; }
extern "C" __global__ void __launch_bounds__(2048) g(float* x) { x[0] = 1; }
template <class T, int N> __global__ void __launch_bounds__(Config<T, N>::threads) t(T* x) { x[0] = 1; }
template __global__ void t<float, 40>(float* x);
"""
MOST_THREADS = {"a": 128, "c": 128, "d": 100, "e": 32, "f": 1024, "g": 1024, "t": 160, "u": 96}


def test_a_block_larger_than_the_launch_bounds_is_an_error():
    kernels = {"t": "t<float, 40>", "u": "t<float, 24>"}
    functions = {name: Launch(kernel=kernels.get(name)) for name in MOST_THREADS}
    mod = jitload.load_inline("bounds", cuda_sources=BOUNDS, arch="cpu", functions=functions)
    x = torch.zeros(1)
    for name, threads in MOST_THREADS.items():
        function = mod[name]
        assert function.kernel.max_threads == threads
        function[1, threads](x)
        if threads < 1024:
            message = (
                f"{name}\\(\\): a block of this kernel can have at most {threads} threads \\(__launch_bounds__\\), not "
            )
            with pytest.raises(RuntimeError, match=f"{message}{threads + 1}$"):
                function[1, threads + 1](x)
            with pytest.raises(RuntimeError, match=message):
                function[1, (threads, 2)](x)
