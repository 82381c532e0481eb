"""Options written for nvcc: quotes for a shell, architectures that agree with `arch=`, and libraries to link."""

import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from builds import ADD, ARCH
from support.nvcc import needs_nvcc

import jitload
from jitload.elf.cubin import read_cubin
from jitload.errors import ToolchainError
from jitload.request.arguments import read_flags, read_options
from jitload.request.options import OPTIONS as ROWS
from jitload.request.options import cpu_options, host_options, nvrtc_options
from jitload.request.request import Call, make_request
from jitload.request.sources import inline_sources
from jitload.toolchain import arch


@pytest.mark.parametrize("option", [r"-DNAME=\"x y", r"-DNAME=\"x y\"", "'-DN=4", "'-DN=4' x.o"])
def test_quotes_that_no_shell_accepts_are_an_error_that_names_the_option(option):
    with pytest.raises(jitload.JitLoadError, match=re.escape(f"extra_cflags has {option!r}, whose quotes are wrong")):
        read_flags([option], "extra_cflags")


OPTIONS = (
    *(("-isystem", "/x"), ("-I/y",), ("-DN=4",), ("--define-macro", "M=1"), ("-UN",), ("-include", "a.h")),
    *(("-std", "c++17"), ("-O2",), ("-Xptxas", "-v"), ("-maxrregcount", "32"), ("-Xcompiler", "-Wall,-g"), ("-t", "4")),
    ("-nohdmoveforward",),
)
FOR_NVRTC = (
    *("-I/x", "-I/y", "-DN=4", "-DM=1", "-UN", "--pre-include=a.h", "--std=c++17", "--ptxas-options=-v"),
    *("--maxrregcount=32", "--builtin-move-forward=false"),
)
FOR_HOST = ("-isystem/x", "-I/y", "-DN=4", "-DM=1", "-UN", "-include", "a.h", "-std=c++17", "-O2", "-Wall", "-g")
FOR_CPU = ("-I/x", "-I/y", "-DN=4", "-DM=1", "-UN", "-include", "a.h", "-std=c++17")


@pytest.mark.parametrize("words", [[*chain(*OPTIONS)], *([mark.join(option) for option in OPTIONS] for mark in "= ")])
def test_options_of_nvcc_reach_each_compiler_in_its_own_spelling(words):
    words = read_flags(words, "extra_cuda_cflags")
    assert nvrtc_options(words) == FOR_NVRTC
    assert host_options(words) == FOR_HOST
    assert cpu_options(nvrtc_options(words)) == FOR_CPU
    with pytest.raises(jitload.JitLoadError, match="extra_cuda_cflags ends with '-std', which takes a value"):
        nvrtc_options(["-std"])


def test_the_manual_names_the_options_that_gcc_gets():
    page = (Path(__file__).parents[1] / "docs" / "cpu.md").read_text()
    missing = [row.names[0] for row in ROWS if row.nvrtc and row.host and f"`{row.names[0]}`" not in page]
    assert missing == [], f"name {missing} in docs/cpu.md, where it says what g++ gets from extra_cuda_cflags"


FAST = [
    ([], ["--Ofast-compile=mid"]), (["-DN=4"], ["-DN=4", "--Ofast-compile=mid"]),
    (["-Ofc max"], ["--Ofast-compile=max"]), (["--Ofast-compile", "0"], ["--Ofast-compile=0"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), FAST)
def test_fast_compile_is_an_option_that_the_users_own_replaces(options, expected):
    flags = read_options(extra_cuda_cflags=options, fast_compile=True).cuda
    assert [*nvrtc_options(flags)] == expected
    assert not any("fast" in option for option in cpu_options(nvrtc_options(flags)))
    assert "--Ofast-compile=mid" not in read_options(extra_cuda_cflags=options, fast_compile=False).cuda


def test_code_that_was_compiled_fast_is_other_code_with_the_same_contractions():
    text = 'extern "C" __global__ void k(float* x) { for (int i = 0; i < 8; ++i) x[i] = x[i + 1] * x[0] + x[i + 2]; }'
    usual = jitload.load_inline("fast", cuda_sources=text, arch=ARCH).k
    fast = jitload.load_inline("fast", cuda_sources=text, arch=ARCH, fast_compile=True).k
    assert usual.sass().count("FFMA") == 8
    assert "FFMA" in fast.sass()
    assert "FMUL" not in fast.sass()
    assert len(fast.sass()) < len(usual.sass())


def test_options_name_headers_for_kernels_on_the_gpu_and_on_the_cpu(tmp_path):
    (tmp_path / "one.h").write_text("#define ONE 1\n")
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "two.h").write_text("#define TWO 2\n")
    source = "#include <two.h>\n__global__ void f(int* x) { *x = ONE + TWO; }"
    options = ["-include", str(tmp_path / "one.h"), "-isystem", str(tmp_path / "system")]
    mod = jitload.load_inline("headers", cuda_sources=source, arch=(ARCH, "cpu"), extra_cuda_cflags=options)
    x = np.zeros(1, np.int32)
    mod.f[1, 1](x)
    assert x[0] == 3
    with pytest.raises(
        jitload.JitLoadError, match=r"kernels on the CPU need C\+\+17 or newer, not -std=gnu\+\+14: leave"
    ):
        jitload.load_inline("old", cuda_sources=ADD, arch="cpu", gpu_check=False, extra_cuda_cflags=["-std=gnu++14"])
    with pytest.raises(
        jitload.JitLoadError, match=r"headers of tvm-ffi need C\+\+17 or newer: leave -std=c\+\+11 out\."
    ):
        jitload.load_inline("old", cpp_sources="int f() { return 1; }", functions=["f"], extra_cflags=["-std=c++11"])


AGREEING = [
    ("sm_90a", ["-arch=sm_90a"], "sm_90a"),
    ("sm_90a", ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"], "sm_90a"),
    ("native", ["-gencode", "arch=compute_86,code=[sm_86,compute_86]"], "sm_86"),
    ("sm_80", ["--gpu-architecture=compute_80"], "sm_80"),
]


@pytest.mark.parametrize(("name", "options", "expected"), AGREEING)
def test_a_cubin_takes_options_that_agree_with_its_architecture(name, options, expected, monkeypatch):
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    monkeypatch.setattr(arch, "current_capability", lambda: None)
    assert jitload.compile_cubin(ADD, arch=name, extra_cuda_cflags=options).arch == expected
    code = jitload.nvrtc.nvrtc_compile(ADD, arch=name, extra_opts=options)
    assert read_cubin(code, name="code").arch == expected


def test_a_cubin_refuses_options_for_another_architecture():
    message = "arch= is sm_90a, and the compiler options are for sm_80, sm_86: leave one of them out"
    options = ["-gencode=arch=compute_80,code=sm_80", "-arch=sm_86"]
    with pytest.raises(ToolchainError, match=message):
        jitload.compile_cubin(ADD, arch="sm_90a", extra_cuda_cflags=options)
    with pytest.raises(ToolchainError, match=message):
        jitload.nvrtc.nvrtc_compile(ADD, arch="sm_90a", extra_opts=options)


@pytest.mark.parametrize(
    ("options", "expected"), [(["-arch=sm_90"], ("sm_90",)), (["-arch=sm_80"], ("sm_90a", "sm_80"))]
)
def test_options_that_fit_the_gpu_take_the_place_of_native(options, expected, monkeypatch):
    monkeypatch.setattr(arch, "current_capability", lambda: (9, 0))
    sources = inline_sources("m", ADD)
    call = Call("m", sources, makes="library", options=read_options(extra_cuda_cflags=options))
    assert make_request(call).archs == expected


def test_libraries_in_the_options_of_nvcc_are_linked():
    text = "__global__ void k() {} void run() { k<<<1, 1>>>(); }"
    sources = inline_sources("m", text)
    options = read_options(extra_cuda_cflags=["-lineinfo", "-lcudadevrt", "-L", "/x"], extra_ldflags=["-lm"])
    request = make_request(Call("m", sources, makes="library", arch=ARCH, functions=["run"], options=options))
    assert request.host.link_flags == ("-lm", "-lcudadevrt", "-L/x")
    assert request.host.units[0].flags == ("-lineinfo",)


@needs_nvcc
def test_relocatable_code_in_an_old_dialect_is_linked_with_the_device_runtime():
    source = """
    __global__ void child(float* x) { *x = 2; }
    __global__ void parent(float* x) { child<<<1, 1>>>(x); }
    void run(float* x) { parent<<<1, 1>>>(x); }"""
    options = ["-rdc true -std=c++11", "-lcudadevrt", "-gencode=arch=compute_90,code=sm_90"]
    path = jitload.build_inline("rdc", cuda_sources=source, functions=["run"], arch="sm_90", extra_cuda_cflags=options)
    assert "run(float* x)" in repr(jitload.load_module(path))
