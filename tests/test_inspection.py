"""Tests of what a loaded kernel shows of itself: PTX, machine code, occupancy."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from builds import kernel, load

import jitload
from jitload import Launch
from jitload.elf.cubin import read_cubin
from jitload.inspection.occupancy import MULTIPROCESSORS, block_limits
from jitload.model import Kernel
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

SOURCE = r"""
__constant__ float coeffs[4];
__device__ int table[2] = {1, 2};
__device__ __noinline__ float square(float x) { return x * x + coeffs[1]; }
__device__ float root(float x) { return sqrtf(x) + coeffs[0]; }
extern "C" __global__ void first(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = square(x[i]) + root(x[i]) + table[i & 1];
}
extern "C" __global__ void __launch_bounds__(512) second(const float* x, float* y, int n) {
    __shared__ float s[512];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= n) printf("%d; }\n", n);  // text with what ends a directive
    y[threadIdx.x] = square(s[511 - threadIdx.x]);
}
namespace deep { template <class T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; } }
"""
FUNCTIONS = {"first": Launch(), "second": Launch(), "twice": Launch(kernel="deep::twice<float>")}


@pytest.fixture(scope="module")
def mod(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        options = {"arch": ("sm_80", "sm_90a"), "extra_cuda_cflags": ["-lineinfo"], "functions": FUNCTIONS}
        yield jitload.load_inline("shown", cuda_sources=SOURCE, **options)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_ptx_is_that_of_all_kernels_of_the_source(mod, arch):
    text = mod.first.ptx(arch=arch)
    assert f".target {arch}" in text
    cubin = jitload.compile_cubin(text, arch=arch)
    assert {kernel.symbol for kernel in cubin.kernels} == {mod[name].kernel.symbol for name in FUNCTIONS}


def test_ptx_of_a_library_that_was_copied_says_how_to_get_it(mod, tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    source = 'extern "C" __global__ void k(float* x) { *x = 1; }'
    path = jitload.build_inline("copied", cuda_sources=source, arch="sm_80", output=tmp_path / "copied.so")
    copy = jitload.load_module(path)
    with pytest.raises(jitload.JitLoadError, match=r"copied\.so has only machine code for sm_80.*load_inline\(\)"):
        copy.k.ptx()
    assert "EXIT" in copy.k.sass()
    in_directory = jitload.load_inline("copied", cuda_sources=source, arch="sm_80", build_directory=tmp_path / "b")
    assert ".entry k(" in in_directory.k.ptx()
    cubin = jitload.compile_cubin(source, arch="sm_80")
    assert ".entry k(" in cubin.ptx
    functions = {"k": Launch(signature="void k(float* x)")}
    without_source = jitload.load_inline("bare", embed_cubin={"k": cubin.data}, functions=functions)
    with pytest.raises(jitload.JitLoadError, match="its cubin was compiled elsewhere"):
        without_source.k.ptx()


def test_ptx_beside_a_library_is_not_taken_from_another_build(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    text = 'extern "C" __global__ void k(int* x) { *x = N; }'
    flags = (["-DN=1"], ["-DN=2"])
    path, other = (Path(jitload.build_inline("m", cuda_sources=text, arch="sm_80", extra_cuda_cflags=f)) for f in flags)
    shutil.copyfile(path, other.with_name("other.so"))
    with pytest.raises(jitload.JitLoadError, match="has no PTX"):
        jitload.load_module(other.with_name("other.so")).k.ptx()


@pytest.mark.parametrize(("name", "arch"), [("first", "sm_80"), *((name, "sm_90a") for name in FUNCTIONS)])
def test_sass_is_that_of_one_kernel(mod, name, arch):
    text = mod[name].sass(arch=arch)
    registers = mod[name].kernels[arch].registers
    assert text.startswith(f"// {name}, {arch}: {registers} registers, ")
    assert "EXIT" in text
    assert ("BAR" in text) == (name == "second")
    assert ("square" in text) == (name != "twice")
    assert ".section" not in text


def test_sass_with_source_names_lines_above_their_instructions(mod):
    lines = mod.second.sass(arch="sm_90a", source=True).splitlines()
    number = next(n for n, line in enumerate(SOURCE.splitlines(), 1) if "__syncthreads" in line)
    index = next(n for n, line in enumerate(lines) if "BAR.SYNC" in line)
    assert lines[index - 1].endswith(f'shown.cu", line {number}')
    assert re.search(r'line 5 inlined at ".*shown.cu", line 8', mod.first.sass(arch="sm_90a", source=True))


def test_sass_with_source_needs_line_information():
    plain = load(kernel("a", "*x = 1;"), arch="sm_80")
    with pytest.raises(jitload.JitLoadError, match=r"extra_cuda_cflags=\['-lineinfo'\]"):
        plain.a.sass(source=True)


def test_a_missing_nvdisasm_names_the_extra(mod, monkeypatch):
    monkeypatch.setattr("jitload.toolchain.nvcc._candidates", lambda *_: iter(()))
    with pytest.raises(jitload.errors.ToolchainError, match=r"pip install 'jitload\[inspect\]'"):
        mod.first.sass(arch="sm_80")


def test_a_triton_kernel_shows_its_own_ptx_and_python(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    import triton_kernels

    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    types = {"X_ptr": "*fp32:16", "Y_ptr": "*fp32:16", "n": "i32"}
    options = {"signature": types, "constexprs": {"BLOCK": 256}, "grid": "ceil_div(n, BLOCK)", "arch": "sm_90a"}
    function = jitload.load_triton("shown", triton_kernels.square_kernel, **options).square_kernel
    assert function.ptx().count(".entry") == 1
    assert "triton_kernels.py" in function.sass(source=True)
    record = function.occupancy()
    assert (record.block, record.arch) == (128, "sm_90a")
    with pytest.raises(ValueError, match="the block of this Triton kernel always has 128 threads"):
        function.occupancy(256)


@pytest.mark.parametrize("method", ["ptx", "sass", "occupancy"])
def test_the_architecture_has_to_be_named_or_be_the_gpus(mod, method, monkeypatch):
    call = getattr(mod.first, method)
    monkeypatch.setattr("jitload.inspection.code.current_capability", lambda: None)
    with pytest.raises(jitload.JitLoadError, match=r"first\(\) has code for sm_80, sm_90a: name one of these"):
        call()
    with pytest.raises(jitload.JitLoadError, match=r"has no code for sm_75.*sm_80, sm_90a"):
        call(arch="sm_75")
    with pytest.raises(jitload.JitLoadError, match=r"shows only code for GPUs: the library has code for sm_80"):
        call(arch="cpu")
    for arch in (90, ["sm_90a"]):
        with pytest.raises(jitload.errors.ToolchainError, match=r"first\(\): arch= must be a str such as 'sm_80', got"):
            call(arch=arch)
    with pytest.raises(jitload.errors.ToolchainError, match="is not an architecture"):
        call(arch="hopper")


def test_the_gpu_decides_between_architectures(mod, monkeypatch):
    for capability, arch in (((8, 6), "sm_80"), ((9, 0), "sm_90a")):
        monkeypatch.setattr("jitload.inspection.code.current_capability", lambda capability=capability: capability)
        assert f".target {arch}\n" in mod.first.ptx()


@pytest.mark.parametrize("method", ["ptx", "sass", "occupancy"])
def test_functions_without_one_kernel_for_a_gpu(method):
    host = jitload.load_inline("host", cpp_sources="int f(float* x) { return 1; }", functions=["f"])
    text = "template <class T> __global__ void k(T* x) { *x = 1; }"
    several = load(text, functions={"k": [Launch(kernel="k<float>"), Launch(kernel="k<int>")]}, arch="sm_80")
    for function, words in ((host.f, "is a host function"), (several.k, "chooses one of several kernels by the dtype")):
        with pytest.raises(jitload.JitLoadError, match=rf"\(\) {words}"):
            getattr(function, method)()


REFERENCE = r"""
#include <climits>
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  int number, blocks, warps, shared, reserved, registers, statics, barriers, threads, block, dynamic;
  while (scanf("%d%d%d%d%d%d%d%d%d%d%d", &number, &blocks, &warps, &shared, &reserved, &registers, &statics,
               &barriers, &threads, &block, &dynamic) == 11) {
    cudaOccDeviceProp device;
    device.computeMajor = number / 10, device.computeMinor = number % 10;
    device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = 32 * warps;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.warpSize = 32, device.numSms = 1;
    device.sharedMemPerBlock = 48 << 10, device.sharedMemPerMultiprocessor = shared;
    device.sharedMemPerBlockOptin = shared - reserved, device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = threads, kernel.numRegs = registers, kernel.sharedSizeBytes = statics;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.numBlockBarriers = barriers;
    kernel.maxDynamicSharedSizeBytes = device.sharedMemPerBlockOptin - statics;
    cudaOccDeviceState state;
    cudaOccResult result;
    int limit = 0;
    cudaOccMaxBlocksPerMultiprocessor(&limit, &device);
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, block, dynamic)) return 1;
    printf("%d %d\n", result.activeBlocksPerMultiprocessor, limit);
  }
}
"""


def test_occupancy_is_that_of_nvidias_header(tmp_path):
    include_dirs = find_cuda_toolchain(read_settings()).include_dirs
    include = next(path for path in include_dirs if (path / "cuda_occupancy.h").is_file())
    release = int(re.search(r"define CUDART_VERSION +(\d+)", (include / "cuda_runtime_api.h").read_text())[1])
    if release < 13050:
        pytest.skip("an older header has other numbers of barriers for sm_103")
    (tmp_path / "reference.cc").write_text(REFERENCE)
    command = ["c++", "-w", f"-I{include}", str(tmp_path / "reference.cc"), "-o", str(tmp_path / "reference")]
    subprocess.run(command, check=True)
    facts = itertools.product((8, 16, 33, 64, 97, 168, 255), (0, 1, 4096, 40000), (1024, 96), (0, 1, 5))
    kernels = [
        Kernel("k", "k", (), registers=r, shared_bytes=s, local_bytes=0, max_threads=t, barriers=b)
        for r, s, t, b in facts
    ]
    cases = list(itertools.product(MULTIPROCESSORS, kernels, (1, 95, 256, 608, 1000), (0, 100, 50000)))
    questions = "\n".join(
        " ".join(map(str, (number, sm.blocks, sm.warps, sm.shared_bytes, sm.reserved_bytes, k.registers, k.shared_bytes,
                           k.barriers, k.max_threads, block, dynamic)))
        for number, k, block, dynamic in cases
        for sm in [MULTIPROCESSORS[number]]
    )  # fmt: skip
    answers = subprocess.check_output([tmp_path / "reference"], input=questions, text=True)
    for case, line in zip(cases, answers.splitlines(), strict=True):
        number, facts, block, dynamic = case
        sm = MULTIPROCESSORS[number]
        blocks = min(block_limits(facts, block, dynamic, sm).values()) if block <= facts.max_threads else None
        expected, most = map(int, line.split())
        assert blocks in (expected, None), case
        assert sm.blocks == most, case


def test_occupancy_of_a_loaded_kernel(mod):
    record = mod.second.occupancy(arch="sm_90a")
    assert (record.block, record.shared_bytes, record.max_warps) == (256, 0, 64)
    assert record.warps == 8 * record.blocks
    assert record.blocks == min(record.limits.values())
    assert record.limits["barriers"] == 64
    assert mod.second[1, (64, 2), 100_000].occupancy(arch="sm_90a").limited_by == ("shared memory",)
    assert mod.second.occupancy((8, 8), arch="sm_80").block == 64
    too_large = mod.first.occupancy(shared_bytes=10**9, arch="sm_80")
    assert (too_large.blocks, too_large.share) == (0, 0.0)
    assert "0 blocks and 0 of 64 warps per multiprocessor (0%), limited by shared memory" in str(too_large)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ((1024,), ValueError, "a block of this kernel has 1 to 512 threads"),
    (((8, 8, 8, 8),), TypeError, "one to three dimensions"),
    ((1.5,), TypeError, "block must be an int"),
    ((64, -1), ValueError, "shared_bytes=-1 is negative"),
])  # fmt: skip
def test_occupancy_of_an_impossible_launch(mod, arguments, error, message):
    with pytest.raises(error, match=message):
        mod.second.occupancy(*arguments, arch="sm_90a")


def test_limits_of_the_current_gpu_are_the_drivers(mod, monkeypatch):
    limits = {106: 12, 39: 40 * 32, 81: 100_000, 111: 2048}
    monkeypatch.setattr("jitload.inspection.occupancy.current_capability", lambda: (9, 0))
    monkeypatch.setattr("jitload.inspection.code.current_capability", lambda: (9, 0))
    monkeypatch.setattr("jitload.inspection.occupancy.device_attribute", limits.get)
    record = mod.second.occupancy(32)
    assert (record.max_warps, record.limits["blocks"], record.limits["warps"]) == (40, 12, 40)
    assert mod.second.occupancy(32, 48_000).limits["shared memory"] == 1  # with the bytes that the driver reserves
    assert mod.second.occupancy(32, arch="sm_90a").max_warps == 64


BODIES = {
    "nothing": "",
    "one_barrier": "__syncthreads(); x[0] = 1;",
    "ten_barriers": 'asm volatile("bar.sync 9, 1024;");',
    "shared": "__shared__ float s[1024]; s[threadIdx.x] = x[0]; __syncthreads(); x[1] = s[7];",
    "registers": """float v[90]; for (int i = 0; i < 90; ++i) v[i] = x[i * 1031]; __syncthreads();
        for (int i = 0; i < 90; ++i) v[i] *= v[(i + 7) % 90]; for (int i = 0; i < 90; ++i) x[i * 977] = v[i];""",
}


def test_the_facts_that_occupancy_needs_are_those_that_ptxas_reports():
    source = "".join(kernel(name, body) for name, body in BODIES.items())
    cubin = jitload.compile_cubin(source, arch="sm_90a", extra_cuda_cflags=["-Xptxas=-v"])
    form = r"entry function '(\w+)'[^U]*Used (\d+) registers, used (\d+) barriers(?:, (\d+) bytes smem)?"
    reported = {name: tuple(map(int, (*facts, shared or 0))) for name, *facts, shared in re.findall(form, cubin.log)}
    read = {each.symbol: (each.registers, each.barriers, each.shared_bytes) for each in read_cubin(cubin.data).kernels}
    assert read == reported
    assert {barriers for _, barriers, _ in read.values()} == {0, 1, 10}


@pytest.mark.gpu
def test_occupancy_and_code_during_a_capture(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    mod = load(kernel("k", "x[threadIdx.x] += 1;"), arch="native")
    x = torch.zeros(32, device="cuda")
    mod.k[1, 32](x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mod.k[1, 32](x)
        assert mod.k.occupancy(32).blocks > 0
        assert "EXIT" in mod.k.sass()
        assert ".entry k(" in mod.k.ptx()
    before = x.sum().item()
    graph.replay()
    assert x.sum().item() == before + 32
