"""Spilled registers: what ptxas reports of them, in every kind of code that a linker of NVIDIA's assembles."""

import re

import pytest
from support.kernels import SPILLS

import jitload
from jitload.cuda.messages import read_spills, without_report
from jitload.elf.cubin import read_image

ARCH = "sm_90a"
# NVRTC 13.0; 12.4 has no barriers and no times, and its lines are the same otherwise.
LOG = """\
k.cu(1): warning #177-D: variable "unused" was declared but never referenced

ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Overriding global maxrregcount 64 with entry-specific value 32 computed using thread count
ptxas info    : 3 bytes gmem
ptxas info    : Compiling entry function 'calls' for 'sm_90a'
ptxas info    : Function properties for calls
ptxas         .     1008 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1008 bytes cumulative stack size
ptxas info    : Compile time = 158.469 ms
ptxas info    : Function properties for _Z4workPf
ptxas         .     0 bytes stack frame, 1116 bytes spill stores, 2008 bytes spill loads
ptxas info    : Compiling entry function '_Z5plainPf' for 'sm_90a'
ptxas info    : Function properties for _Z5plainPf
ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
 ptxas error   : Entry function 'calls' uses too much shared data (0x61a80 bytes, 0x38c00 max)
"""


def test_the_functions_that_a_kernel_calls_count():
    assert read_spills(LOG) == {"calls": 1124, "_Z5plainPf": 0}
    assert read_spills(LOG, is_linked=True) == {}  # another kernel may call the function
    assert read_spills(LOG.replace("1116 bytes", "0 bytes"), is_linked=True) == {"calls": 8, "_Z5plainPf": 0}
    assert read_spills("") == {}


def test_messages_are_kept_and_the_report_is_not():
    lines = LOG.splitlines()
    kept = [*lines[:3], lines[-1].strip()]
    assert without_report(LOG, ["-O3", "--ptxas-options=-O1", "-DV=-v"]).splitlines() == kept


@pytest.fixture(scope="module")
def cubin():
    return jitload.compile_cubin(SPILLS, arch=ARCH)


def test_spills_are_told_apart_from_local_arrays(cubin):
    spills = {kernel.name: (kernel.spill_bytes, kernel.local_bytes) for kernel in cubin.kernels}
    assert spills["plain"] == (0, 0)
    assert spills["local_array"] == (0, 256)
    assert spills["spilling"][0] > 0
    assert spills["spilling_function"][0] > 0
    assert cubin.log == ""


def test_the_report_costs_neither_code_nor_log(cubin):
    with_report = jitload.compile_cubin(SPILLS, arch=ARCH, extra_cuda_cflags=["-Xptxas=-v"])
    assert "bytes spill stores" in with_report.log
    assert with_report.data == cubin.data
    assert with_report.kernels == cubin.kernels


def test_ptx_and_code_that_was_compiled_elsewhere(cubin):
    linked = jitload.compile_cubin(cubin.ptx, arch=ARCH)
    assert linked.log == ""
    for kernels in (linked.kernels, read_image(cubin.data).kernels):  # a function that spills is linked to a kernel
        spills = {kernel.symbol: kernel.spill_bytes for kernel in kernels}
        assert spills == {"plain": 0, "spilling": None, "spilling_function": None, "local_array": None}
    without_function = re.sub(r"\.func.*?\n}|\.visible \.entry spilling_function.*?\n}", "", cubin.ptx, flags=re.DOTALL)
    kernels = jitload.compile_cubin(without_function, arch=ARCH).kernels
    spills = {kernel.symbol: kernel.spill_bytes for kernel in kernels}
    assert spills.pop("spilling") > 0
    assert spills == {"local_array": 0, "plain": 0}


def test_a_built_module_and_a_cached_one_show_spills(cache, cubin, monkeypatch):
    for origin in ("built in", "from the cache"):
        monkeypatch.setattr("jitload.pipeline._modules", {})
        module = jitload.load_inline("m", cuda_sources=SPILLS, arch=ARCH)
        assert f"m: {origin}" in module._repr_html_()
        assert module.spilling.kernel in cubin.kernels
        assert module.local_array.kernels[ARCH].spill_bytes == 0
        assert module._repr_html_().count(" B !</td>") == 2
