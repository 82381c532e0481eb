"""How fast do kernels run on the CPU, compared with NumPy, torch, and the same loops in C++ with OpenMP?"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import MATMUL, machine_line

import jitload
from jitload import Launch

ADD = r"""
extern "C" __global__ void add_int(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void add_long_long(const float* x, const float* y, float* z, long long n) {
  long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
"""
WAITING = (
    r"""
__device__ float block_reduce(float value, bool is_max) {
  __shared__ float part[32];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    float other = __shfl_xor_sync(~0u, value, lanes);
    value = is_max ? fmaxf(value, other) : value + other;
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  value = part[0];
  for (int i = 1; i < blockDim.x / 32; ++i) value = is_max ? fmaxf(value, part[i]) : value + part[i];
  __syncthreads();
  return value;
}
extern "C" __global__ void softmax(const float* x, float* y, int columns) {
  x += (size_t)blockIdx.x * columns, y += (size_t)blockIdx.x * columns;
  float most = -1e30f, sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, x[i]);
  most = block_reduce(most, true);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += y[i] = expf(x[i] - most);
  sum = block_reduce(sum, false);
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[i] /= sum;
}
extern "C" __global__ void barriers(int n) { for (int i = 0; i < n; ++i) __syncthreads(); }
extern "C" __global__ void shuffles(int n, int* out) {
  int value = threadIdx.x;
  for (int i = 0; i < n; ++i) value += __shfl_xor_sync(~0u, value, 1);
  if (value == 1) *out = value;
}
extern "C" __global__ void votes(int n, int* out) {
  int value = threadIdx.x;
  for (int i = 0; i < n; ++i) value += __any_sync(~0u, value);
  if (value == 1) *out = value;
}
extern "C" __global__ void tiny(float* x) { x[threadIdx.x] += 1; }
"""
    + MATMUL
)
LOOPS = r"""
extern "C" void add(const float* x, const float* y, float* z, int n) {
#pragma omp parallel for
  for (int i = 0; i < n; ++i) z[i] = x[i] + y[i];
}
extern "C" void matmul(const float* a, const float* b, float* c, int n) {
#pragma omp parallel for collapse(2)
  for (int rows = 0; rows < n; rows += 16)
    for (int columns = 0; columns < n; columns += 16) {
      float sums[16][16] = {};
      for (int k = 0; k < n; k += 16)
        for (int i = 0; i < 16; ++i)
          for (int j = 0; j < 16; ++j)
            for (int l = 0; l < 16; ++l) sums[i][j] += a[(rows + i) * n + k + l] * b[(k + l) * n + columns + j];
      for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) c[(rows + i) * n + columns + j] = sums[i][j];
    }
}
"""
ADD_LAUNCH = Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
LAUNCHES = {
    "softmax": Launch(grid="x.shape[0]", block=256, args={"columns": "x.shape[1]"}),
    "matmul": Launch(grid=("n // 16", "n // 16"), block=(16, 16), args={"n": "a.shape[0]"}),
    "barriers": Launch(grid=1, block=256),
    "shuffles": Launch(grid=1, block=256),
    "votes": Launch(grid=1, block=256),
    "tiny": Launch(grid=1, block=1),
}


def median_s(work: Callable[[], object], seconds: float = 0.6) -> float:
    """Return the median time of a call, after a first one."""
    work()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 5:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def build_loops() -> ctypes.CDLL:
    """Compile the loops with OpenMP."""
    home = Path(tempfile.mkdtemp())
    (home / "loops.cc").write_text(LOOPS)
    command = ["c++", "-O3", "-fopenmp", "-shared", "-fPIC", "loops.cc", "-o", "loops.so"]
    subprocess.run(command, cwd=home, check=True)
    return ctypes.CDLL(str(home / "loops.so"))


def load_add(threads: int | None = None) -> jitload.Module:
    """Compile the elementwise kernels; their pool gets its threads at the first launch."""
    name = f"cpu_add_{threads or 'all'}"
    functions = {"add_int": ADD_LAUNCH, "add_long_long": ADD_LAUNCH}
    mod = jitload.load_inline(name, cuda_sources=ADD, functions=functions, arch="cpu")
    if threads:
        os.environ["JITLOAD_CPU_THREADS"] = str(threads)
    x = torch.zeros(1 << 20)
    mod.add_int(x, x, x)
    os.environ.pop("JITLOAD_CPU_THREADS", None)
    return mod


def pointer(x: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def print_row(name: str, seconds: dict[str, float]) -> None:
    """Print the time of jitload, which comes first, and of each peer with its ratio."""
    (_, ours), *peers = seconds.items()
    cells = (f"{peer} {1e3 * s:.3f} ms ({s / ours:.2f} x)" for peer, s in peers)
    print(f"{name:<36} {1e3 * ours:9.3f} ms  | {'  '.join(cells)}", flush=True)


def measure_add(modules: dict[str, jitload.Module], loops: ctypes.CDLL, numbers: int) -> None:
    """Measure an elementwise kernel; a ratio below 1 is a faster peer."""
    x, y = torch.rand(2, numbers)
    z = torch.empty(numbers)
    peers = {
        "NumPy": median_s(lambda: np.add(x.numpy(), y.numpy(), out=z.numpy())),
        "torch": median_s(lambda: torch.add(x, y, out=z)),
        "OpenMP": median_s(lambda: loops.add(pointer(x), pointer(y), pointer(z), numbers)),
    }
    for threads, mod in modules.items():
        for index in ("int", "long_long"):
            kernel = mod[f"add_{index}"]
            z.zero_()
            ours = median_s(lambda kernel=kernel: kernel(x, y, z))
            assert torch.equal(z, x + y)
            print_row(f"add, {numbers:,} numbers, {index}, {threads}", {"jitload": ours, **peers})


def measure_waiting(loops: ctypes.CDLL) -> None:
    """Measure kernels whose threads wait for each other, and calls."""
    mod = jitload.load_inline("cpu_waiting", cuda_sources=WAITING, functions=LAUNCHES, arch="cpu")
    a, b = torch.rand(2, 512, 512)
    c = torch.empty(512, 512)
    ours = median_s(lambda: mod.matmul(a, b, c))
    torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-3)
    openmp = median_s(lambda: loops.matmul(pointer(a), pointer(b), pointer(c), 512))
    print_row("matmul, 512, in tiles", {"jitload": ours, "OpenMP": openmp, "torch": median_s(lambda: a @ b)})
    rows = torch.rand(2500, 1000)
    result = torch.empty_like(rows)
    ours = median_s(lambda: mod.softmax(rows, result))
    torch.testing.assert_close(result, torch.softmax(rows, 1))
    print_row("softmax, 10 MB", {"jitload": ours, "torch": median_s(lambda: torch.softmax(rows, 1))})
    out = torch.zeros(1, dtype=torch.int32)
    waits = {"barriers": (1000,), "shuffles": (1000, out), "votes": (1000, out)}
    for name, arguments in waits.items():
        seconds = median_s(lambda name=name, arguments=arguments: mod[name](*arguments))
        print(f"{name}: {1e9 * seconds / 256_000:.1f} ns for each thread")
    x = torch.zeros(1)
    print(f"a call of a kernel with one thread: {1e3 * median_s(lambda: [mod.tiny(x) for _ in range(1000)]):.2f} us")


def main() -> None:
    """Measure."""
    print(machine_line())
    print(f"{len(os.sched_getaffinity(0))} processors, load average {os.getloadavg()[0]:.1f}")
    modules = {"one thread": load_add(1), "all threads": load_add()}
    loops = build_loops()
    for numbers in (65_536, 250_000, 2_500_000, 25_000_000):
        measure_add(modules, loops, numbers)
    measure_waiting(loops)
    start = time.perf_counter()
    jitload.load_inline(f"cold{os.getpid()}", cuda_sources=ADD[: ADD.index('extern "C"', 2)], arch="cpu")
    print(f"cold build of a trivial kernel: {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
