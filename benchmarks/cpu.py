"""How fast do kernels run on the CPU, beside NumPy, torch and the same loops in C++ with OpenMP?"""

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
from common import machine_line

import jitload
from jitload import Launch

KERNELS = r"""
extern "C" __global__ void add(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
__device__ float block_reduce(float value, bool is_max) {
  __shared__ float part[32];
  for (int by = 16; by > 0; by /= 2) {
    float other = __shfl_xor_sync(~0u, value, by);
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
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float at[16][16], bt[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    at[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    bt[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += at[threadIdx.y][i] * bt[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
extern "C" __global__ void histogram(const unsigned char* x, int* bins, int n) {
  __shared__ int own[256];
  own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i]], 1);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}
extern "C" __global__ void reduce(const float* x, float* out, int n) {
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = block_reduce(sum, false);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}
extern "C" __global__ void barriers(int n) { for (int i = threadIdx.x & 0; i < n; ++i) __syncthreads(); } // on fibers
extern "C" __global__ void tiny(float* x) { x[threadIdx.x] += 1; }
"""
LOOPS = r"""
#include <math.h>
#include <stddef.h>
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
extern "C" float reduce(const float* x, int n) {
  float sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < n; ++i) sum += x[i];
  return sum;
}
"""


def median_s(work: Callable[[], object], seconds: float = 0.6) -> float:
    """Return the median time of a call, once it is warm."""
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
    loops = ctypes.CDLL(str(home / "loops.so"))
    loops.reduce.restype = ctypes.c_float
    return loops


def pointer(x: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())


def row(name: str, seconds: dict[str, float], size: float = 0.0) -> None:
    """Print a row: each peer's time, and the bandwidth of `size` bytes where there is one."""
    ours = seconds["jitload"]
    cells = [f"{peer} {1e3 * s:.3f} ms ({s / ours:.2f}x of ours)" for peer, s in seconds.items() if peer != "jitload"]
    speed = f", {size / ours / 1e9:.1f} GB/s" if size else ""
    print(f"{name:<24} jitload {1e3 * ours:9.3f} ms{speed}  | {'  '.join(cells)}", flush=True)


def measure_size(mod: jitload.Module, loops: ctypes.CDLL, megabytes: int) -> None:
    """Measure what reads its input once."""
    n = megabytes * 250_000
    x, y = torch.rand(2, n)
    z = torch.empty(n)
    out = torch.zeros(1)
    row(f"add, {megabytes} MB", {
        "jitload": median_s(lambda: mod.add(x, y, z)),
        "torch": median_s(lambda: torch.add(x, y, out=z)),
        "NumPy": median_s(lambda: np.add(x.numpy(), y.numpy(), out=z.numpy())),
        "OpenMP": median_s(lambda: loops.add(pointer(x), pointer(y), pointer(z), n)),
    }, 12.0 * n)  # fmt: skip
    row(f"reduce, {megabytes} MB", {
        "jitload": median_s(lambda: mod.reduce(x, out)),
        "torch": median_s(x.sum),
        "OpenMP": median_s(lambda: loops.reduce(pointer(x), n)),
    }, 4.0 * n)  # fmt: skip
    rows = x.view(-1, 1000)
    result = torch.empty_like(rows)
    row(f"softmax, {megabytes} MB", {
        "jitload": median_s(lambda: mod.softmax(rows, result)),
        "torch": median_s(lambda: torch.softmax(rows, 1)),
    })  # fmt: skip
    torch.testing.assert_close(result, torch.softmax(rows, 1))
    letters = torch.randint(0, 256, (megabytes * 1_000_000,), dtype=torch.uint8)
    bins = torch.zeros(256, dtype=torch.int32)
    row(f"histogram, {megabytes} MB", {
        "jitload": median_s(lambda: mod.histogram(letters, bins)),
        "NumPy": median_s(lambda: np.bincount(letters.numpy(), minlength=256)),
    })  # fmt: skip


def measure_rest(mod: jitload.Module, loops: ctypes.CDLL) -> None:
    """Measure what computes, waits or does nothing."""
    a, b = torch.rand(2, 512, 512)
    c = torch.empty(512, 512)
    row("matmul, 512", {
        "jitload": median_s(lambda: mod.matmul(a, b, c)),
        "OpenMP": median_s(lambda: loops.matmul(pointer(a), pointer(b), pointer(c), 512)),
        "torch": median_s(lambda: a @ b),
    })  # fmt: skip
    torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-3)
    print(f"barrier: {1e9 * median_s(lambda: mod.barriers(1000)) / 256_000:.1f} ns a thread")
    x = torch.zeros(1)
    print(f"tiny call: {1e6 * median_s(lambda: [mod.tiny(x) for _ in range(1000)]) / 1000:.2f} us")


def main() -> None:
    """Measure."""
    print(machine_line())
    print(f"{len(os.sched_getaffinity(0))} processors, load average {os.getloadavg()[0]:.1f}")
    functions = {
        "add": Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"}),
        "softmax": Launch(grid="x.shape[0]", block=256, args={"columns": "x.shape[1]"}),
        "matmul": Launch(grid=("n // 16", "n // 16"), block=(16, 16), args={"n": "a.shape[0]"}),
        "histogram": Launch(grid=64, block=256, args={"n": "x.numel()"}),
        "reduce": Launch(grid=64, block=256, args={"n": "x.numel()"}),
        "barriers": Launch(grid=1, block=256),
        "tiny": Launch(grid=1, block=1),
    }
    mod = jitload.load_inline("cpu_bench", cuda_sources=KERNELS, functions=functions, arch="cpu")
    loops = build_loops()
    for megabytes in (1, 10, 100):
        measure_size(mod, loops, megabytes)
    measure_rest(mod, loops)
    start = time.perf_counter()
    jitload.load_inline(f"cold{os.getpid()}", cuda_sources=KERNELS[: KERNELS.index("__device__")], arch="cpu")
    print(f"cold build of a trivial kernel: {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
