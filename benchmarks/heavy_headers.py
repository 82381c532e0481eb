"""What do heavy headers cost NVRTC, what do kept headers save, and which options make compiles faster?

Six sources: block algorithms of CUB, `cuda::std`, CuTe, `thrust::complex`, DeepGEMM, and a large generated source. The
columns with options take turns, and are milliseconds of the processor in this process. "Parses" is the first compile in
a child process, which parses and keeps the headers, and "kept" are the later ones, in milliseconds of wall time. The
second table has NVRTC's own report of its phases as usual, also in wall time. With `--rounds 1`, all of it takes two
minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import time
from collections.abc import Callable

from common import attempt, machine_line, make_parser, median, print_table, write_json

WAYS = {
    "as usual": (),
    "--Ofast-compile=min": ("--Ofast-compile=min",),
    "--Ofast-compile=mid": ("--Ofast-compile=mid",),
    "--Ofast-compile=max": ("--Ofast-compile=max",),
    "--split-compile=0": ("--split-compile=0",),
    "--minimal": ("--minimal",),
}
_CUB = """
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
__global__ void k(int* x) {
    using Sort = cub::BlockRadixSort<int, 128, 4>;
    using Scan = cub::BlockScan<int, 128>;
    __shared__ union { Sort::TempStorage sort; Scan::TempStorage scan; } storage;
    int keys[4];
    for (int i = 0; i < 4; ++i) keys[i] = x[threadIdx.x * 4 + i] + NUMBER;
    Sort(storage.sort).Sort(keys);
    __syncthreads();
    Scan(storage.scan).ExclusiveSum(keys, keys);
    for (int i = 0; i < 4; ++i) x[threadIdx.x * 4 + i] = keys[i];
}"""
_STD = """
#include <cuda/std/array>
#include <cuda/std/tuple>
#include <cuda/std/complex>
__global__ void k(cuda::std::complex<float>* z, int n) {
    cuda::std::array<int, 4> a{n, 1, 2, NUMBER};
    auto [x, y] = cuda::std::make_tuple(a[0], a[3]);
    if (x < y) z[x] = z[y] * z[y];
}"""
_CUTE = """
#include <cute/tensor.hpp>
using namespace cute;
__global__ void k(const float* x, float* y, int n) {
    auto from = make_tensor(make_gmem_ptr(x), make_layout(make_shape(n, n), make_stride(n, Int<1>{})));
    auto to = make_tensor(make_gmem_ptr(y), make_layout(make_shape(n, n), make_stride(Int<1>{}, n)));
    auto tile = make_shape(Int<32>{}, Int<32>{});
    auto thread = make_layout(make_shape(Int<8>{}, Int<32>{}), make_stride(Int<32>{}, Int<1>{}));
    auto place = make_coord(blockIdx.x, blockIdx.y + NUMBER);
    copy(local_partition(local_tile(from, tile, place), thread, threadIdx.x),
         local_partition(local_tile(to, tile, place), thread, threadIdx.x));
}"""
_THRUST = """
#include <thrust/complex.h>
__global__ void k(thrust::complex<float>* z) { z[threadIdx.x] = exp(z[threadIdx.x]) * sqrt(z[NUMBER]); }"""

# A kernel of DeepGEMM for another matrix each time. The wheel sgl-deep-gemm contains its headers, with CUTLASS.
_DEEPGEMM = """
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
using namespace deep_gemm;
using cute::UMMA::Major;
__global__ void k(void** kernel) {
    constexpr int n = 4096 + 128 * NUMBER;
    *kernel = (void*)sm90_bf16_gemm_impl<Major::K, Major::K, 0, n, 7168, 1, 128, 128, 64, 128, 128, 128, 4, 128, 256, 1,
                                         false, 132, GemmType::Normal, false, cutlass::bfloat16_t>;
}"""


def generated_source() -> str:
    """Return twelve kernels with unrolled loops of mathematical functions."""
    body = "for (int i = 0; i < 24; ++i) s = sinf(s) * {n}.0f + x[i] * expf(s);"
    kernels = (
        f"__global__ void k{n}(float* x) {{ float s = NUMBER;\n#pragma unroll\n{body.format(n=n)} x[0] = s; }}\n"
        for n in range(12)
    )
    return "".join(kernels)


SOURCES = {
    "cub": _CUB,
    "cuda::std": _STD,
    "cute": _CUTE,
    "thrust::complex": _THRUST,
    "deepgemm": _DEEPGEMM,
    "generated": generated_source(),
}


Compile = Callable[..., str]
COLUMNS = ["source", *WAYS, "parses", "kept", "note"]
PAUSE_S = 1.0  # between compiles with kept headers; the process for the next one copies memory meanwhile
PHASES = {"CUDA C++ Frontend": "front end", "NVVM Optimizer": "optimizer", "PTX Translation": "ptxas"}


def main() -> None:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--rounds", type=int, default=5, help="compiles in each column")
    parser.add_argument("--sources", default=",".join(SOURCES), help="which sources")
    parser.add_argument("--columns", default=",".join((*WAYS, "kept")), help="which columns")
    parser.add_argument("--include", action="append", default=[], help="a directory of headers, such as another CCCL")
    parser.add_argument("--flag", action="append", default=[], help="an option for all compiles")
    parser.add_argument("--arch", default="sm_90a", help="architecture to compile for")
    options = parser.parse_args()
    machine = machine_line()
    print(machine, flush=True)
    logging.disable()  # NVRTC reports its phases as messages
    make_compile("__global__ void k() {}", "warm_up", options)((), keeps=False)
    times, rows, phases = {}, [], []
    for name in options.sources.split(","):
        compile_once = make_compile(SOURCES[name], name.replace("::", "_"), options)
        times[name], note = measure(compile_once, options.columns.split(","), options.rounds)
        rows.append([name, *(f"{median(row):.0f}" if row else "-" for row in times[name].values()), note])
        print(f"…{rows[-1]}", flush=True)
        phases.append([name, *measure_phases(compile_once)])
    print_table(COLUMNS, rows)
    print_table(["source", *PHASES.values(), "note"], phases)
    write_json(options.json, {"machine": machine, "milliseconds": times, "phases": phases})


def make_compile(source: str, name: str, options: argparse.Namespace) -> Compile:
    """Return a function that compiles the source, each time with another number, and returns NVRTC's messages."""
    import jitload

    number = 0

    def compile_once(flags: tuple[str, ...], *, keeps: bool) -> str:
        nonlocal number
        number += 1
        os.environ["JITLOAD_PRECOMPILE"] = str(int(keeps))
        return jitload.compile_cubin(
            source.replace("NUMBER", str(number)),
            name=name,
            arch=options.arch,
            extra_include_paths=options.include,
            extra_cuda_cflags=(*options.flag, *flags),
            isolate=keeps,  # so that the first compile already keeps the headers
        ).log

    return compile_once


def measure(compile_once: Compile, columns: list[str], rounds: int) -> tuple[dict[str, list[float]], str]:
    """Return the milliseconds of the compiles in each column, and why a column is empty."""
    times: dict[str, list[float]] = {column: [] for column in COLUMNS[1:-1]}
    notes: dict[str, str] = {}

    def take(column: str, flags: tuple[str, ...], *, keeps: bool) -> None:
        clock = time.perf_counter if keeps else time.process_time
        start = clock()
        _, problem = attempt(lambda: compile_once(flags, keeps=keeps))
        if problem:
            notes[column] = problem
        else:
            times[column].append((clock() - start) * 1e3)

    for _ in range(rounds):
        for way in [way for way in WAYS if way in columns and way not in notes]:
            take(way, WAYS[way], keeps=False)
    if "kept" in columns:
        for column in ("parses", *["kept"] * rounds):
            take(column, (), keeps=True)
            time.sleep(PAUSE_S)
    return times, "; ".join(f"{column}: {problem}" for column, problem in notes.items())


def measure_phases(compile_once: Compile) -> list[str]:
    """Return NVRTC's phases in a compile without kept headers, and why there are none."""
    log, problem = attempt(lambda: compile_once(("-time=-",), keeps=False))
    return [*read_phases(log or ""), problem]


def read_phases(log: str) -> list[str]:
    """Return the milliseconds of each phase of the last compile that NVRTC reports with `-time=-`."""
    found = dict(re.findall(r", ([^,\n]+), (\d+), ms", log))
    return [found.get(phase, "-") for phase in PHASES]


if __name__ == "__main__":
    main()
