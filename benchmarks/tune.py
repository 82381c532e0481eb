"""Tuning: the builds of 24 variants beside one build, the time to choose in a call, and the best that is found.

    python benchmarks/tune.py [--exhaustive SECONDS] [--search]
    python benchmarks/tune.py --save-library after.so
    python benchmarks/tune.py --library before.so --library after.so

The builds are for sm_90a, and need no GPU. `choose` is what a choice adds to a call of a function that launches
nothing: functions with a table of 300 keys are compared with one without, in turns, and each number is a minimum.
`--library` only measures this, in libraries that `--save-library` has written, such as those of two checkouts. With
--exhaustive on a GPU, the five kernels of examples/tuning are tuned, and then each variant is measured for as long as
--exhaustive says. With --search on a GPU, f.tune and Triton's autotuner search 24 variants of a sum of rows, builds
included.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from common import least_ns, make_library_parser

import jitload
from jitload import Launch, Tune
from jitload.request.rows import Row
from jitload.tuning.tuner import build_variants

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
    variants = enumerate(tune.space(("cpu",))[:count])
    rows = {f"variant_{n}": Row(function="row_sum", gpu="cpu", values=values, number=n) for n, values in variants}
    started = time.perf_counter()
    assert len(build_variants(rows, request, launch, None)) == count
    return (time.perf_counter() - started) * 1000


KEYS = {"one_key": "n", "two_keys": ("next_power_of_2(n)", "x.shape[0]")}


def build_choices(output: Path) -> Path:
    """Build a library of a function without a choice, and of functions that choose by keys."""
    kernel = "__global__ void {}(const float* x, int n) {{}}\n"
    launch = {"grid": "n * 0", "args": {"n": "x.numel()"}}
    functions = {name: Launch(block="B", tune=Tune(B=(64, 32), key=key), **launch) for name, key in KEYS.items()}
    has_gpu = torch.cuda.is_available()
    gpu = torch.cuda.get_device_name() if has_gpu else "cpu"
    rows = [
        Row(function=name, gpu=gpu, key=key, values=(("B", 32),), number=1, median_us=1.0)
        for n in range(1000, 1300)
        for name, key in (
            ("one_key", (("n", n),)),
            ("two_keys", (("next_power_of_2(n)", 1 << (n - 1).bit_length()), ("x.shape[0]", n))),
        )
    ]
    return jitload.build_inline(
        "choose",
        cuda_sources="".join(map(kernel.format, ("plain", *KEYS))),
        functions={"plain": Launch(block=64, **launch), **functions},
        arch="native" if has_gpu else "cpu",
        tuned=jitload.Tuning(rows),
        output=output,
    )


def choose_ns(libraries: Sequence[Path], rounds: int = 500) -> dict[tuple[str, str], float]:
    """Return what choices add to a call, in nanoseconds, for each library and each kind of call."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    same, turns = [(torch.zeros(1234, device=device),)], [(torch.zeros(n, device=device),) for n in (1234, 1100)]
    calls = {"plain": ("plain", same), "plain, in turns": ("plain", turns), "one key": ("one_key", same),
             "two keys": ("two_keys", same), "calls with two sizes in turns": ("one_key", turns)}  # fmt: skip
    best = least_ns({(str(path), label): (jitload.load_module(path)[name], tensors)
                     for path in libraries for label, (name, tensors) in calls.items()}, rounds)  # fmt: skip
    added = {}
    for (path, label), ns in best.items():
        if not label.startswith("plain"):
            added[path, label] = ns - best[path, "plain, in turns" if "turns" in label else "plain"]
    return added


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


def search(columns: int = 8192) -> None:
    """Print how long f.tune and Triton's autotuner search 24 variants, builds included."""
    from triton_kernel import row_sum

    x, y = torch.rand(8192, columns, device="cuda"), torch.empty(8192, device="cuda")
    for label in ("builds included", "built before"):
        row_sum.cache.clear()
        torch.cuda.synchronize()
        started = time.perf_counter()
        row_sum[(x.shape[0],)](x, y, columns)
        torch.cuda.synchronize()
        print(f"search, Triton's autotuner, {label}: {time.perf_counter() - started:.2f} s, {row_sum.best_config}")
    tune = Tune(B=(32, 64, 128, 256, 512, 1024), V=(1, 2, 4, 8), key="columns")
    launch = Launch(
        kernel="row_sum<{B}, {V}>", grid="sums.numel()", block="B", args={"columns": "x.shape[1]"}, tune=tune
    )
    for seconds in (5.0, 1.0, 0.3):
        text = f"// {time.time_ns()}\n{SOURCE}"
        mod = jitload.load_inline("search", cuda_sources=text, functions={"row_sum": launch})
        started = time.perf_counter()
        found = mod.row_sum.tune(
            x, y, seconds=seconds, reference=lambda x, _: x.sum(1), rtol=1e-3, outputs="sums", progress=False
        )
        took = time.perf_counter() - started
        print(f"search, f.tune(seconds={seconds}), builds included: {took:.2f} s, {found.best.label}")


def main() -> None:
    parser = make_library_parser(__doc__)
    parser.add_argument("--exhaustive", type=float, metavar="SECONDS")
    parser.add_argument("--search", action="store_true")
    options = parser.parse_args()
    if options.save_library:
        print(build_choices(options.save_library))
        return
    os.environ["JITLOAD_PRECOMPILE"] = "0"  # each build reads the headers, as the first one does
    for label, header in HEADERS.items() if not options.library else ():
        one = statistics.median(build_ms(header, 1) for _ in range(3))
        all_ms = build_ms(header, 24)
        print(f"build, {label}: one {one:.0f} ms, 24 variants {all_ms:.0f} ms ({all_ms / one:.1f} times)")
    with tempfile.TemporaryDirectory() as directory:
        libraries = options.library or [build_choices(Path(directory, "choose.so"))]
        for (path, label), ns in choose_ns(libraries).items():
            print(f"choose, {label}: {ns:.1f} ns ({Path(path).name})")
    if options.search and torch.cuda.is_available():
        search()
    if options.exhaustive and torch.cuda.is_available():
        for name in ("elementwise", "reduction", "transpose", "stencil", "gemm"):
            exhaustive(name, options.exhaustive)


if __name__ == "__main__":
    main()
