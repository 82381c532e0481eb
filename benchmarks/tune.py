"""Tuning: the builds of 24 variants beside one build, the time to choose in a call, and the best that is found.

    python benchmarks/tune.py [--exhaustive SECONDS]

The builds are for sm_90a, and need no GPU. `choose` is the difference between calls of two functions that launch
nothing: one with a table of 300 keys, and one without. With --exhaustive on a GPU, the five kernels of examples/tuning
are tuned, and then each variant is measured for as long as --exhaustive says.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType

import torch

import jitload
from jitload import Launch, Tune
from jitload.request.rows import Row
from jitload.request.tune import Device
from jitload.tuning.builds import build_candidates, make_candidates

EXAMPLES = Path(__file__).parent.parent / "examples" / "tuning"
SOURCE = r"""
template <int B, int V> __global__ void row_sum(const float* x, float* sums, int columns) {
    __shared__ float partial[B];
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += B * V)
        #pragma unroll
        for (int j = 0; j < V; ++j)
            if (i + j * B < columns) sum += x[size_t(blockIdx.x) * columns + i + j * B];
    partial[threadIdx.x] = sum;
    for (int width = B / 2; width > 0; width /= 2) {
        __syncthreads();
        if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
"""
HEADERS = {"no header": "", "cub/block/block_reduce.cuh": "#include <cub/block/block_reduce.cuh>\n"}


def build_ms(header: str, count: int) -> float:
    """Return the time to build variants, in milliseconds."""
    tune = Tune(B=(32, 64, 128, 256, 512, 1024), V=(1, 2, 4, 8))
    launch = Launch(kernel="row_sum<{B}, {V}>", grid=1, block="B", tune=tune)
    text = f"{header}// {time.time_ns()}\n{SOURCE}"  # never in the cache
    mod = jitload.load_inline("tune", cuda_sources=text, functions={"row_sum": launch}, arch="sm_90a")
    request = mod.row_sum._jitload_library.request  # noqa: SLF001
    candidates = make_candidates(launch, "row_sum", tune.space(Device(is_cpu=True))[:count], ())
    started = time.perf_counter()
    build_candidates(candidates, request, is_shown=False)
    assert all(candidate.function is not None for candidate in candidates)
    return (time.perf_counter() - started) * 1000


def choose_ns() -> tuple[float, float]:
    """Return the times of a call without a choice and with one, in nanoseconds."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = "__global__ void plain(const float* x, int n) {} __global__ void tuned(const float* x, int n) {}"
    launch = {"grid": "n * 0", "args": {"n": "x.numel()"}}
    tune = Tune(B=(64, 32), key="n")
    functions = {"plain": Launch(block=64, **launch), "tuned": Launch(block="B", tune=tune, **launch)}
    gpu = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    rows = [
        Row(function="tuned", gpu=gpu, key=(("n", n),), values=(("B", 32),), number=1, median_us=1.0)
        for n in range(1000, 1300)
    ]
    arch = "native" if device == "cuda" else "cpu"
    tuned = jitload.Tuning(rows)
    mod = jitload.load_inline("choose", cuda_sources=source, functions=functions, arch=arch, tuned=tuned)
    x = torch.zeros(1234, device=device)
    assert mod.tuned.variant(x).how == "tuned"
    samples: dict[str, list[float]] = {"plain": [], "tuned": []}
    for _ in range(50):
        for name, times in samples.items():
            function = mod[name]
            started = time.perf_counter_ns()
            for _ in range(20_000):
                function(x)
            times.append((time.perf_counter_ns() - started) / 20_000)
    return min(samples["plain"]), min(samples["tuned"])


def exhaustive(name: str, seconds: float) -> None:
    """Tune an example, measure each of its variants, and print how far the choice is from the fastest."""
    sys.path.insert(0, str(EXAMPLES))
    example = importlib.import_module(name)
    mod = importlib.import_module("run").load(example, "cuda")
    (function,) = mod
    for args in example.arguments("cuda"):
        started = time.perf_counter()
        found = mod[function].tune(*args, reference=example.reference, rtol=1e-2, atol=1e-3, progress=False)
        took = time.perf_counter() - started
        times = {row.label: variant_us(example, function, row, args, seconds) for row in found.rows if not row.reason}
        best = min(times, key=times.__getitem__)
        lost = times[found.best.label] / times[best] - 1
        key = ", ".join(f"{value}" for _, value in found.best.key)
        print(f"{name:12} {key:20} chosen {found.best.label:24} best {best:24} {lost:6.1%} slower, {took:5.1f} s")


def variant_us(example: ModuleType, function: str, row: Row, args: tuple[torch.Tensor, ...], seconds: float) -> float:
    """Return the time of one variant."""
    tune = Tune(**{name: (value,) for name, value in row.values})
    functions = {function: dataclasses.replace(example.FUNCTIONS[function], tune=tune)}
    mod = jitload.load_inline(
        example.__name__, cuda_sources=example.SOURCE, functions=functions, extra_cuda_cflags=example.OPTIONS
    )
    return mod[function].benchmark(*args, seconds=seconds).median_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exhaustive", type=float, metavar="SECONDS")
    options = parser.parse_args()
    for label, header in HEADERS.items():
        one = statistics.median(build_ms(header, 1) for _ in range(3))
        all_ms = build_ms(header, 24)
        print(f"build, {label}: one {one:.0f} ms, 24 variants {all_ms:.0f} ms ({all_ms / one:.1f} times)")
    plain, tuned = choose_ns()
    print(f"choose: {tuned - plain:.1f} ns ({plain:.1f} ns without, {tuned:.1f} ns with)")
    if options.exhaustive and torch.cuda.is_available():
        for name in ("elementwise", "reduction", "transpose", "stencil", "gemm"):
            exhaustive(name, options.exhaustive)


if __name__ == "__main__":
    main()
