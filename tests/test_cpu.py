"""Kernels compiled for the CPU: the same source, typed functions that take CPU tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import jitload
from jitload import Launch

SOURCE = r"""
extern "C" __global__ void add_one(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}
extern "C" __global__ void sum(const float* x, float* out, int n) {
  __shared__ float part[32];
  float value = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += x[i];
  for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(0xffffffffu, value, by);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value += part[warp];
    atomicAdd(out, value);
  }
}
extern "C" __global__ void reverse(float* x) {
  extern __shared__ float copy[];
  copy[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void stuck(float* x) {
  if (threadIdx.x > 3) __syncthreads();
  else if (threadIdx.x == 1) *x = __shfl_sync(0xffffffffu, 1.0f, 0);
}
"""
FUNCTIONS = {
    "add_one": Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"}),
    "sum": Launch(grid=8, block=256),
    "reverse": Launch(grid=1, block="x.numel()", shared_bytes="4 * x.numel()"),
    "stuck": Launch(grid=2, block=64),
}


@pytest.fixture(scope="module")
def module() -> jitload.Module:
    return jitload.load_inline("on_cpu", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu")


def test_a_kernel_that_never_waits(module: jitload.Module) -> None:
    x = torch.arange(100_003, dtype=torch.float32)
    y = torch.empty_like(x)
    module.add_one(x, y)
    assert torch.equal(y, x + 1)


def test_numpy_arrays(module: jitload.Module) -> None:
    x, y = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    module.add_one(x, y)
    assert (y == x + 1).all()


def test_barriers_shuffles_shared_memory_and_atomics(module: jitload.Module) -> None:
    x = torch.ones(100_003)
    out = torch.zeros(1)
    module.sum(x, out, x.numel())
    assert out.item() == x.numel()


def test_dynamic_shared_memory(module: jitload.Module) -> None:
    x = torch.arange(96.0)
    module.reverse(x)
    assert torch.equal(x, torch.arange(96.0).flip(0))


def test_a_barrier_that_can_never_complete(module: jitload.Module) -> None:
    said = (
        r"stuck\(\): a barrier can never complete: 60 threads, \(4, 0, 0\) first, wait at __syncthreads\(\) and "
        r"1 thread, \(1, 0, 0\) first, waits at __shfl_sync\(\) for lanes of the mask "
        r"that do not come in block \([01], 0, 0\)"
    )
    with pytest.raises(RuntimeError, match=said):
        module.stuck(torch.zeros(1))
