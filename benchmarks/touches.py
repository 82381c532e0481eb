"""What do the checks of what a launch touches cost: in runs on the CPU, in calls on a GPU, and in builds?

    python benchmarks/touches.py
    python benchmarks/touches.py --runs
    python benchmarks/touches.py --save-library after.so
    python benchmarks/touches.py --library before.so --library after.so

The terms of `requires=` are also measured in calls of functions for the CPU that launch nothing. Each number is the
least time, compared with that of a function without terms. `--library` only measures this, in libraries that
`--save-library` has written, such as those of two checkouts. `--runs` only measures runs on the CPU. Their numbers are
the least CPU time of all threads, which other programs on the machine change less than the time of a clock.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import MATMUL, least_ns, machine_line, make_library_parser

import jitload
from jitload import Launch

SOURCE = (
    r"""
extern "C" __global__ void add_one(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
extern "C" __global__ void row_sum(const float* x, float* y, int n) {
  __shared__ float part[256];
  float sum = 0;
  for (int k = threadIdx.x; k < n; k += blockDim.x) sum += x[blockIdx.x * n + k];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
extern "C" __global__ void stencil(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i > 0 && i < n - 1) y[i] = 0.25f * x[i - 1] + 0.5f * x[i] + 0.25f * x[i + 1];
}
extern "C" __global__ void histogram(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&y[x[i] & 255], 1);
}
extern "C" __global__ void add_shorts(const short* x, short* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
extern "C" __global__ void gather(const float* x, const int* at, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[at[i]];
}
extern "C" __global__ void transpose(const float* x, float* y, int n) {
  __shared__ float tile[16][17];
  int i = blockIdx.x * 16, k = blockIdx.y * 16;
  tile[threadIdx.y][threadIdx.x] = x[(k + threadIdx.y) * n + i + threadIdx.x];
  __syncthreads();
  y[(i + threadIdx.y) * n + k + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
extern "C" __global__ void warp_sum(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = x[i];
  for (int k = 16; k > 0; k /= 2) sum += __shfl_down_sync(0xffffffffu, sum, k);
  if (threadIdx.x % 32 == 0) y[i / 32] = sum;
}
"""
    + MATMUL
)
ELEMENTS = {"grid": "ceil_div(n, 256)", "block": 256}
TILES = {"grid": ("n // 16", "n // 16"), "block": (16, 16)}
FUNCTIONS = {
    "add_one": ELEMENTS,
    "add_shorts": ELEMENTS,
    "stencil": ELEMENTS,
    "gather": ELEMENTS,
    "histogram": ELEMENTS,
    "warp_sum": ELEMENTS,
    "row_sum": {"grid": "y.numel()", "block": 256},
    "transpose": TILES,
    "matmul": TILES,
}
TERMS = ("y.numel() >= n", "x.shape == y.shape", "n % 4 == 0", "n > 0")
CHECKS: dict[str, dict[str, Any]] = {
    "no check": {},
    "no check, built again": {},
    'bounds="check"': {"bounds": "check"},
    **{f"requires= with {count} terms": {"requires": TERMS[:count]} for count in (1, 2, 4)},
}


def arguments(device: str) -> dict[str, tuple[Any, ...]]:
    x, square = torch.rand(1 << 18, device=device), torch.rand(128, 128, device=device)
    ints, shorts = (torch.randint(0, 256, x.shape, dtype=dtype, device=device) for dtype in (torch.int32, torch.int16))
    return {
        "add_one": (x, torch.empty_like(x), x.numel()),
        "stencil": (x, torch.empty_like(x), x.numel()),
        "add_shorts": (shorts, torch.empty_like(shorts), x.numel()),
        "gather": (x, ints, torch.empty_like(x), x.numel()),
        "histogram": (ints, torch.zeros_like(ints[:256]), x.numel()),
        "row_sum": (x, torch.empty(256, device=device), 1 << 10),
        "warp_sum": (x, torch.empty(1 << 13, device=device), x.numel()),
        "transpose": (x.view(512, 512), torch.empty(512, 512, device=device), 512),
        "matmul": (square, square, torch.empty_like(square), 128),
    }


def cpu_seconds(call: Callable[[], Any], repeats: int = 30) -> float:
    """Return the least time of a call on all processors, of calls that take a few milliseconds together."""
    times = []
    count = 1
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(count):
            call()
        times.append((time.process_time() - start) / count)
        count = max(1, int(0.003 / min(times)))
    return min(times)


def measure_runs() -> None:
    launches = {name: Launch(**fields) for name, fields in FUNCTIONS.items()}
    builds = {
        label: jitload.load_inline("touches", cuda_sources=SOURCE, functions=launches, arch="cpu", sanitize=sanitize)
        for label, sanitize in (("no check", None), ("address", "address"), ("race", "race"))
    }
    print("run on the CPU, ms of CPU time:", ", ".join(builds))
    for name, args in arguments("cpu").items():
        times = [cpu_seconds(lambda mod=mod: mod[name](*args)) for mod in builds.values()]  # noqa: B023  called at once
        print(f"  {name:10}", *(f"{1e3 * t:9.3f}" for t in times), *(f"{t / times[0]:7.1f} x" for t in times[1:]))


def measure_builds() -> None:
    print("build for a GPU, ms:")
    for label in ("no check", 'bounds="check"'):
        start = time.perf_counter()
        functions = {"add_one": Launch(**FUNCTIONS["add_one"], **CHECKS[label])}
        text = SOURCE.partition('extern "C" __global__ void row_sum')[0] + f"// {uuid.uuid4()}"
        jitload.load_inline("touches", cuda_sources=text, functions=functions, arch="sm_90a")
        print(f"  {label:24} {1e3 * (time.perf_counter() - start):7.1f}")


def measure_calls(rounds: int = 3000, count: int = 64) -> None:
    """Measure calls in turns, so that a change of the machine's speed affects all.

    Each turn begins with another function. What two builds without checks differ by is noise.
    """
    functions = {}
    for label, checks in CHECKS.items():
        launch = Launch(**FUNCTIONS["add_one"], **checks)
        text = f"{SOURCE}// {label}"
        functions[label] = jitload.load_inline("touches", cuda_sources=text, functions={"add_one": launch}).add_one
    for sizes, name in (([256], "the same size"), ([*range(256, 512, 4)], "64 sizes in turns")):
        tensors = [torch.zeros(2, size, device="cuda").unbind() for size in sizes]
        calls = [(x, y, x.numel()) for x, y in tensors] * (count // len(sizes))
        times: dict[str, list[float]] = {label: [] for label in functions}
        for turn in range(rounds):
            for number in range(len(functions)):
                label = [*functions][(turn + number) % len(functions)]
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                for args in calls:
                    functions[label](*args)
                times[label].append((time.perf_counter_ns() - start) / len(calls))
        base = times["no check"]
        print(f"a call on the GPU, {name}, ns: the least and the median of {rounds}, and their differences")
        for label, samples in times.items():
            least, middle = min(samples), median(samples)
            print(f"  {label:24} {least:7.0f} {middle:7.0f} {least - min(base):+7.1f} {middle - median(base):+7.1f}")


def build_terms(output: Path) -> str:
    """Build a library of functions that launch nothing, and require no, one and more terms."""
    functions = {
        f"terms_{count}": Launch(
            kernel="add_one", grid="n * 0", block=64, args={"n": "x.numel()"}, requires=TERMS[:count]
        )
        for count in (0, 1, 2, 4)
    }
    return jitload.build_inline("terms", cuda_sources=SOURCE, functions=functions, arch="cpu", output=output)


def measure_terms(libraries: Sequence[Path], rounds: int = 300) -> None:
    sizes = {"the same size": [256], "64 sizes in turns": range(256, 512, 4)}
    calls = {label: [(torch.zeros(size), torch.zeros(size)) for size in each] for label, each in sizes.items()}
    best = least_ns({(str(path), name, label): (mod[name], args) for path in libraries
                     for mod in [jitload.load_module(path)] for name in mod for label, args in calls.items()},
                    rounds)  # fmt: skip
    for (path, name, label), ns in best.items():
        added = ns - best[path, "terms_0", label]
        print(f"requires, {name}, {label}: {ns:.1f} ns, {added:+.1f} ({Path(path).name})")


def main() -> None:
    parser = make_library_parser(__doc__)
    parser.add_argument("--runs", action="store_true", help="only measure runs on the CPU")
    options = parser.parse_args()
    if options.runs:
        print(machine_line())
        measure_runs()
        return
    if options.save_library:
        print(build_terms(options.save_library))
        return
    if options.library:
        measure_terms(options.library)
        return
    print(machine_line())
    with tempfile.TemporaryDirectory() as directory:
        measure_terms([Path(build_terms(Path(directory, "terms.so")))])
    measure_runs()
    measure_builds()
    if torch.cuda.is_available():
        measure_calls()
    else:
        print("calls on a GPU are not measured: there is no GPU")


if __name__ == "__main__":
    main()
