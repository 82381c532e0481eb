"""What do heavy headers cost NVRTC, what does a precompiled header save, and which options make compiles faster?

Five sources: block algorithms of CUB, `cuda::std`, CuTe, `thrust::complex`, and a large generated source. The times are
milliseconds of the processor. All compiles run in this process, and the columns take turns. "Precompiles" is the
compile that creates the precompiled header, and "precompiled" are the later ones.
"""

from __future__ import annotations

import argparse
import time

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
    "generated": generated_source(),
}


COLUMNS = ["source", *WAYS, "precompiles", "precompiled", "note"]


def main() -> None:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--rounds", type=int, default=5, help="compiles in each column")
    parser.add_argument("--sources", default=",".join(SOURCES), help="which sources")
    parser.add_argument("--columns", default=",".join((*WAYS, "precompiled")), help="which columns")
    parser.add_argument("--include", action="append", default=[], help="a directory of headers, such as another CCCL")
    parser.add_argument("--arch", default="sm_90a", help="architecture to compile for")
    options = parser.parse_args()
    machine = machine_line()
    print(machine, flush=True)
    times, rows = {}, []
    for name in options.sources.split(","):
        times[name], note = _measure(name, options)
        rows.append([name, *(f"{median(row):.0f}" if row else "-" for row in times[name].values()), note])
        print(f"…{rows[-1]}", flush=True)
    print_table(COLUMNS, rows)
    write_json(options.json, {"machine": machine, "milliseconds": times})


def _measure(name: str, options: argparse.Namespace) -> tuple[dict[str, list[float]], str]:
    """Return the milliseconds of the compiles in each column, which take turns, and why a column is empty."""
    import jitload
    from jitload.cuda import isolated

    isolated.is_needed = False  # NVRTC runs here, so that the processor's time can be read
    ways: dict[str, dict[str, object]] = {way: {"isolate": False, "extra_cuda_cflags": WAYS[way]} for way in WAYS}
    ways["precompiled"] = {"isolate": True}
    ways = {way: ways[way] for way in options.columns.split(",")}
    times: dict[str, list[float]] = {column: [] for column in COLUMNS[1:-1]}
    note, number = "", 0

    def compile_once(**keywords: object) -> float:
        text = SOURCES[name].replace("NUMBER", str(number))
        start = time.process_time()
        jitload.compile_cubin(
            text, name=name.replace("::", "_"), arch=options.arch, extra_include_paths=options.include, **keywords
        )
        return (time.process_time() - start) * 1e3

    for is_first in (True, *(False,) * options.rounds):
        for way, keywords in list(ways.items()):
            number += 1
            took, problem = attempt(lambda: compile_once(**keywords))  # noqa: B023  called here
            if problem:
                del ways[way]
                note = note or f"{way}: {problem}"
            elif not is_first:
                times[way].append(took)
            elif way == "precompiled":
                times["precompiles"].append(took)
    return times, note


if __name__ == "__main__":
    main()
