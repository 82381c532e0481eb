"""CUDA C++ on the CPU: the same exports as from NVRTC, what a user's own names may be, what is refused and how."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_kernels import MACRO_C, ZOO

import jitload
from jitload.building.ninja import run_ninja
from jitload.cpu.build import compile_for_cpu
from jitload.errors import CompileError
from jitload.kernels.source import DeviceSource
from jitload.model import CompiledSource
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_headers
from jitload.toolchain.host import find_compiler, find_ninja


def compile_text(work_dir: Path, text: str, **options: Any) -> CompiledSource:
    settings = read_settings()
    source = DeviceSource(name="zoo", pieces=(("zoo.cu", text),), **options)
    tools = find_compiler(settings), find_cuda_headers(settings), find_ninja(settings)
    return compile_for_cpu(source, *tools, work_dir).compiled


def load(text: str, **options: Any) -> Any:
    return jitload.load_inline("m", cuda_sources=text, arch="cpu", **options)


@pytest.mark.parametrize("case", ZOO)
def test_unusual_sources_have_the_kernels_that_nvrtc_finds(case, tmp_path):
    text, signatures = ZOO[case]
    assert sorted(map(str, compile_text(tmp_path, text).cubin.kernels)) == sorted(signatures.split("\n"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that gets an element for each run of the compiler."""
    ran: list[Path] = []

    def counted(ninja: Path, work_dir: Path, **options: Any) -> None:
        ran.append(work_dir)
        run_ninja(ninja, work_dir, **options)

    monkeypatch.setattr("jitload.cpu.build.run_ninja", counted)
    return ran


KERNEL = 'extern "C" __global__ void k(float* x, int n) {\n  if (n > 3) x[0] = 1;\n}\n'
# A mistake, and what its first message says.
MISTAKES = {
    "an unknown name": (KERNEL.replace("= 1", "= y"), r"zoo\.cu:2: .y. was not declared"),
    "one closing brace too many": (KERNEL + "}", r"zoo\.cu:4: expected declaration"),
    "a header that is missing": ('#include "missing.h"\n' + KERNEL, r"zoo\.cu:1: missing\.h: No such file"),
    "a barrier, and an error behind it": (
        KERNEL.replace("if", "__syncthreads(); for (int i = threadIdx.x; i < n; i += 32) x[i] = z; if"),
        r"zoo\.cu:2: .z. was not declared",
    ),
    "a narrow float without its header": (
        KERNEL.replace("= 1", "= bfloat16(1)"),
        r"zoo\.cu:2: .bfloat16. was not declared(?s:.*)#include <cuda_bf16\.h> declares CUDA's .*: __nv_bfloat16",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_costs_one_run(case, tmp_path, runs):
    text, said = MISTAKES[case]
    with pytest.raises(CompileError, match=said) as caught:
        compile_text(tmp_path, text)
    assert len(runs) == 1
    assert {diagnostic.file for diagnostic in caught.value.diagnostics} == {"zoo.cu"}
    assert "GPU only" not in str(caught.value)
    assert "__jitload_" not in str(caught.value.log)
    assert "<kernel" not in str(caught.value.log)


def test_kernels_that_launches_name(tmp_path):
    text = "template <class T, int N> __global__ void k(T* x) {}\n__global__ void o(int* x) {}\n"
    text += "__global__ void o(float* x) {}\n" + MACRO_C
    compiled = compile_text(tmp_path, text, kernels=("k<float, 4>", "k<int, 2>", "o(float*)"))
    assert set(compiled.symbols) == {"k<float, 4>", "k<int, 2>", "o(float*)"}
    names = {str(kernel) for kernel in compiled.cubin.kernels}
    assert {"k<float, 4>(float* x)", "k<int, 2>(int* x)", "o(float* x)", "made(float* arg0)"} <= names


# Of the headers of C, of POSIX, and of Linux, those that programs include at their top.
C_HEADERS = """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
    alloca dirent dlfcn endian err error execinfo fcntl getopt libgen malloc memory poll pthread regex sched semaphore
    strings sys/ioctl sys/mman sys/param sys/resource sys/select sys/socket sys/stat sys/time sys/types sys/wait syslog
    unistd values
"""


def test_headers_of_c_come_first():
    includes = "".join(f"#include <{name}.h>\n" for name in C_HEADERS.split())
    text = (
        f'extern "C" {{\n#include <stdlib.h>\n#include <math.h>\n}}\n{includes}'
        'extern "C" __global__ void k(int64_t* x, float* y) { x[0] = labs(x[0]) + INT_MAX; y[0] = fabsf(y[0]); }'
    )
    x, y = torch.tensor([-7]), torch.tensor([-2.5])
    load(text, gpu_check=False).k[1, 1](x, y)
    assert (x.item(), y.item()) == (7 + 2**31 - 1, 2.5)


def test_macros_of_options_reach_no_header_of_ours():
    flags = ["-Dv=7", "-Dp=BROKEN(", "-Da=b", "-Dx=out", "-DWIDTH(n)=((n) * 2)", "-DNDEBUG", "-DT=float"]
    text = 'extern "C" __global__ void k(T* x) { assert(false); x[0] = WIDTH(v); }'
    out = torch.zeros(1)
    load(text, extra_cuda_cflags=flags).k[1, 1](out)
    assert out.item() == 14


def test_a_users_header_counts(tmp_path):
    home = tmp_path / "a$b #c d"  # which makefiles write otherwise
    home.mkdir()
    (home / "mine.h").write_text("#include <cuda_runtime.h>\n__device__ inline int seven() { return 7; }\n")
    text = '#include "mine.h"\nextern "C" __global__ void k(int* x) { x[0] = seven(); }'
    out = torch.zeros(1, dtype=torch.int32)
    load(text, extra_include_paths=[str(home)]).k[1, 1](out)
    assert out.item() == 7
    (home / "mine.h").write_text('__device__ inline int seven() { asm("bar.sync 0;"); return 8; }\n')
    with pytest.raises(CompileError, match=r"mine\.h:1: GPU only: inline PTX"):
        load(text, extra_include_paths=[str(home)])
    (home / "mine.h").write_text('#if 1\nint seven() { return 9; }\n#else\n#define G asm("bar.sync 0; ret;")\n#endif\n')
    load(text, extra_include_paths=[str(home)]).k[1, 1](out)
    assert out.item() == 9


GROUPS = "#include <cooperative_groups/memcpy_async.h>\nnamespace cg = cooperative_groups;\n"
K = "__global__ void k(float* x) {\n"
GPU_ONLY = {
    "inline PTX": (K + ' asm volatile("bar.sync 0;");\n}', "m.cu:2: GPU only: inline PTX"),
    "PTX of a float": (K + ' asm("sqrt.approx.f32 %0, %0;" : "+f"(x[0]));\n}', "m.cu:2: GPU only: inline PTX"),
    "a register": (K + ' int i;\n asm("mov.u32 %0, %laneid;" : "=r"(i));\n}', "m.cu:3: GPU only: inline PTX"),
    "PTX in a macro": ('#define B asm("bar.sync 0;")\n' + K + " B;\n}", "m.cu:3: GPU only: inline PTX"),
    "cub": (
        "\n#include <cub/block/block_reduce.cuh>\n" + K + " cub::BlockReduce<float, 32> r;\n}",
        "m.cu:2: GPU only: cub, which",
    ),
    "cuda::barrier": (
        "#include <cuda/barrier>\n" + K + " __shared__ cuda::barrier<cuda::thread_scope_block> b;\n}",
        "m.cu:3: GPU only: barriers that are objects",
    ),
    "a return": ("#define P(x) asm(#x)\n" + K + " if (x[0]) P(ret;);\n}", "m.cu:3: GPU only: inline PTX"),
    "PTX of libcu++": ("#include <cuda/ptx>\n" + K + "}", r"m.cu:1: GPU only: PTX \(cuda::ptx\), which cuda/ptx"),
    "dynamic parallelism": ("__global__ void j() {}\n" + K + " j<<<1, 1>>>();\n}", "m.cu:3: GPU only: launches with"),
    "grid sync": (GROUPS + K + " cg::this_grid().sync();\n}", "m.cu:4: GPU only: a barrier of the whole grid"),
    "tiles of several warps": (
        GROUPS + K + " cg::tiled_partition<64>(cg::this_thread_block()).sync();\n}",
        "m.cu:4: GPU only: tiles of more than 32 threads",
    ),
    "DPX": (K + " x[0] = __vimax3_s32(1, 2, 3);\n}", r"m.cu:2: GPU only: instructions for dynamic programming \(DPX\)"),
    "pairs of floats": (K + " x[0] = __fadd2_rn({}, {}).x;\n}", "m.cu:2: GPU only: pairs of floats"),
    "one thread of a group": (
        GROUPS + K + " cg::invoke_one(cg::this_thread_block(), [] {});\n}",
        "m.cu:4: GPU only: rare functions of cooperative groups",
    ),
    "clusters": (GROUPS + K + " cg::this_cluster().sync();\n}", "m.cu:4: GPU only: thread block clusters"),
    "textures": (
        "__global__ void k(unsigned long long t, float* x) {\n x[0] = tex2D<float>(t, 0, 0);\n}",
        "m.cu:2: GPU only: textures and surfaces",
    ),
    "the runtime": (K + " cudaDeviceSynchronize();\n}", "m.cu:2: GPU only: CUDA's runtime within a kernel"),
    "ifdef": (K + "#ifdef __CUDA_ARCH__\n x[0] = 1;\n#endif\n}", "m.cu:2: GPU only: the CPU has no __CUDA_ARCH__"),
    "defined": (
        K + "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n x[0] = 1;\n#else\n x[0] = 2;\n#endif\n}",
        r"write #if defined\(__CUDA_ARCH__\) \|\| defined\(JITLOAD_CPU\)",
    ),
    "no else": (K + "#if __CUDA_ARCH__ >= 800\n x[0] = 1;\n#endif\n}", r"&& !defined\(JITLOAD_CPU\) to leave it out"),
    "an empty else": (
        K + "#if __CUDA_ARCH__ >= 800\n x[0] = 1;\n#else\n // nothing\n#endif\n}",
        "m.cu:2: GPU only: a branch for some values",
    ),
    "CUDACC": (K + "#ifdef __CUDACC__\n x[0] = 1;\n#endif\n}", "m.cu:2: GPU only: __CUDACC__ is not defined"),
}


@pytest.mark.parametrize("case", GPU_ONLY)
def test_what_only_a_gpu_has_names_its_line(case):
    text, said = GPU_ONLY[case]
    with pytest.raises(CompileError, match=said) as caught:
        load(text)
    assert 'leave "cpu" out of arch' in str(caught.value)


def kernels_of(bodies: Iterable[str]) -> str:
    """Return one source of kernels `k0`, `k1`, … with these bodies; it is compiled once."""
    names = enumerate(bodies)
    return "".join(f'extern "C" {K.replace(" k(", f" k{number}(")}{body}\n}}\n' for number, body in names)


PORTABLE = {
    "a launch in a macro that nothing uses": "\n#define RUN(k, ...) k<<<1, 1>>>(__VA_ARGS__)\nx[0] = 2;\n",
    "an else": "#if __CUDA_ARCH__ >= 800\n x[0] = 1;\n#else\n x[0] = 2;\n#endif\n",
    "PTX in a dead branch": '#if __CUDA_ARCH__ >= 800\n asm("bar.sync 0;");\n#else\n x[0] = 2;\n#endif\n',
    "old GPUs": "#if __CUDA_ARCH__ < 600\n x[0] = 2;\n#endif\n",
    "not for the CPU": "x[0] = 2;\n#if __CUDA_ARCH__ >= 800 && !defined(JITLOAD_CPU)\n x[0] = 1;\n#endif\n",
    "a barrier for the compiler": 'x[0] = 2; asm volatile("" ::: "memory");',
    "words": 'const char* text = "asm (1)"; /* asm("x") */ x[0] = text[0] == 97 ? 2 : 1;',
    "HD": "\n#ifdef __CUDACC__\n#define HD __host__\n#else\n#define HD\n#endif\nx[0] = 2;\n",
}


def test_portable_code_runs_on_the_cpu():
    module = load(kernels_of(PORTABLE.values()))
    for number, case in enumerate(PORTABLE):
        x = torch.zeros(1)
        module[f"k{number}"][1, 1](x)
        assert x.item() == 2, case


def test_a_failed_assertion_of_libcxx_ends_the_launch():
    """C's function would end the process."""
    text = "#include <cuda/std/type_traits>\n" + K + ' __assert_fail("x", "f.h", 3, "k");\n}'
    with pytest.raises(RuntimeError, match=r"f\.h:3: assertion `x` failed in block \(0, 0, 0\), thread \(0, 0, 0\)"):
        load(text, gpu_check=False).k[1, 1](torch.zeros(1))


ENDS = {
    "assert": ("assert(x[threadIdx.x] < 2);",
        r"m.cu:4: assertion `x\[threadIdx.x\] < 2` failed in block \(0, 0, 0\), thread \(2, 0, 0\)"),
    "assert after a barrier": ("__syncthreads(); assert(threadIdx.x != 3);", r"assertion .* thread \(3, 0, 0\)"),
    "trap": ("if (threadIdx.x == 1) __trap();", r"k2\(\): __trap\(\) in block \(0, 0, 0\), thread \(1, 0, 0\)"),
    "division": (
        "x[0] = (int)threadIdx.x / (int)x[0];",
        r"k3\(\): an integer division by zero at m\.cu:13 in block \(0, 0, 0\), thread \(0, 0, 0\)$",
    ),
    "division after a barrier": (
        "__syncthreads(); if (threadIdx.x == 3) x[0] = 5 % (unsigned)x[0];",
        r"division by zero at m\.cu:16 in .* thread \(3, 0, 0\)",
    ),
    "a lane that does not come": (
        "if (threadIdx.x < 2) x[0] = __shfl_sync(3, 1, 7);", r"reads from lane 7, which does not take part"
    ),
    "a copy of a pipeline": (
        "__pipeline_memcpy_async(x, x + 1, 8);", r"__pipeline_memcpy_async\(\) of 8 bytes with an address that is not"
    ),
    "a rank that a group lacks": (
        "if (threadIdx.x < 2) x[0] = cg::coalesced_threads().shfl(1, 2);", r"shfl\(\) reads from a thread that does not"
    ),
    "a mask without its caller": ("__syncwarp(1u);", r"__syncwarp\(\) with mask 0x00000001, which lacks lane 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_an_error_of_a_thread_ends_the_launch(case):
    module = load(GROUPS + kernels_of(body for body, _ in ENDS.values()))
    function = module[f"k{list(ENDS).index(case)}"]
    with pytest.raises(RuntimeError, match=ENDS[case][1]):
        function[1, 4](torch.tensor([0.0, 1, 2, 3]))
    if "division" in case:
        function[1, 1](torch.tensor([1.0]))  # and goes on


def test_printf_comes_in_order(capfd):
    module = load('__global__ void k(int n) { printf("%d of %d\\n", threadIdx.x, n); }')
    os.write(1, b"before\n")
    module.k[1, 2](7)
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "before\n0 of 7\n1 of 7\nafter\n"
