"""Where `"native"` is the CPU, and where it must not be."""

import logging

import pytest
import torch

import jitload
from jitload import Launch
from jitload.errors import CacheError, JitLoadError, ToolchainError, warn_once

SOURCE = """
extern "C" __global__ void twice(float* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= 2;
}"""
FUNCTIONS = {"twice": Launch(grid=1, block=32, args={"n": "x.numel()"})}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    monkeypatch.setattr("jitload.toolchain.arch.driver_error", lambda: 0)
    warn_once.cache_clear()


def doubles(mod: jitload.Module) -> bool:
    x = torch.ones(100)
    mod.twice(x)
    return torch.equal(x, torch.full((100,), 2.0))


def test_loading_takes_the_cpu_and_says_so_once(caplog, tmp_path):
    with caplog.at_level(logging.WARNING, "jitload"):
        assert doubles(jitload.load_inline("native", cuda_sources=SOURCE, functions=FUNCTIONS))
        (tmp_path / "twice.cu").write_text(SOURCE)
        assert doubles(jitload.load("native", sources=tmp_path / "twice.cu", functions=FUNCTIONS))
        assert doubles(jitload.load_inline("native", cuda_sources=SOURCE, functions=FUNCTIONS, arch=("native", "cpu")))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("arch='native', and there is no GPU here: kernels are compiled for the CPU")


BUILDS = {
    "build_inline": lambda: jitload.build_inline("b", cuda_sources=SOURCE),
    "compile_cubin": lambda: jitload.compile_cubin(SOURCE),
    "nvrtc_compile": lambda: jitload.nvrtc.nvrtc_compile(SOURCE),
    "native and cpu": lambda: jitload.build_inline("b", cuda_sources=SOURCE, arch=("native", "cpu")),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_building_refuses_and_names_the_variable(build):
    with pytest.raises(
        ToolchainError, match=r"there is none here\. Name an architecture, arch='sm_90a', or set JITLOAD_ARCH=sm_90a"
    ):
        build()


def test_load_only_refuses_too(monkeypatch):
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    with pytest.raises(ToolchainError, match="set JITLOAD_ARCH=sm_90a"):
        jitload.load_inline("native", cuda_sources=SOURCE, functions=FUNCTIONS)
    with pytest.raises(CacheError, match="load-only"):
        jitload.load_inline("never built", cuda_sources=SOURCE, arch="cpu")


def test_the_variable_may_say_cpu(monkeypatch, caplog):
    monkeypatch.setenv("JITLOAD_ARCH", "cpu")
    assert doubles(jitload.load_inline("asked", cuda_sources=SOURCE, functions=FUNCTIONS))
    path = jitload.build_inline("asked", cuda_sources=SOURCE, functions=FUNCTIONS)
    assert doubles(jitload.load_module(path))
    monkeypatch.setenv("JITLOAD_ARCH", "90,cpu")
    both = jitload.load_inline("asked", cuda_sources=SOURCE, functions=FUNCTIONS)
    assert "sm_90, cpu" in repr(both)
    assert doubles(both)
    assert jitload.compile_cubin(SOURCE).arch == "sm_90"
    assert not caplog.records


HOST = "void f() {}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f);"
GPU_ONLY = [
    (lambda: jitload.compile_cubin(SOURCE, arch="cpu"), "only for GPUs, not for 'cpu'"),
    (lambda: jitload.nvrtc.nvrtc_compile(SOURCE, arch="cpu"), "nvrtc_compile() compiles only for GPUs"),
    (
        lambda: jitload.load_inline("mixed", cuda_sources=SOURCE, cpp_sources=HOST, arch="cpu"),
        "kernels with C++ of your own are compiled only for GPUs",
    ),
]


@pytest.mark.parametrize(("build", "said"), GPU_ONLY)
def test_functions_for_gpus_refuse_the_cpu(build, said):
    with pytest.raises(ToolchainError) as caught:
        build()
    assert said in str(caught.value)


def test_an_option_that_has_no_meaning_on_the_cpu_is_refused():
    with pytest.raises(JitLoadError, match="extra_cuda_cflags has '--bogus', which has no meaning on the CPU"):
        jitload.load_inline("options", cuda_sources=SOURCE, arch="cpu", extra_cuda_cflags=["--bogus"])


def test_another_compiler_than_gcc_is_refused(monkeypatch, tmp_path):
    clang = tmp_path / "clang++"
    clang.write_text('#!/bin/sh\n[ "$1" = -v ] && echo "clang version 19.1" >&2\nexit 0\n')
    clang.chmod(0o755)
    monkeypatch.setenv("JITLOAD_CXX", str(clang))
    with pytest.raises(ToolchainError, match="kernels on the CPU are compiled by g"):
        jitload.load_inline("clang", cuda_sources=SOURCE, arch="cpu")
