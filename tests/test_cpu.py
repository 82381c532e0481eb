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
extern "C" __global__ void mixed(int* out) {
  __shared__ int total;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int value = threadIdx.x, votes = 0;
  if (threadIdx.x == 0) total = 0;
  if (warp == 5) return;
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < (warp + round) % 4; ++i) value += __shfl_xor_sync(~0u, value, 1 << i);
    if (lane < 16) votes += __popc(__ballot_sync(0x0000ffffu, value & 1));
    else votes += 100 * __any_sync(0xffff0000u, lane == 20);
    if (__syncthreads_count(value & 1) == 0) break;
    if (warp == 9 && round == 3) return;
    atomicAdd(&total, round);
    __syncthreads();
  }
  out[3 * threadIdx.x] = value, out[3 * threadIdx.x + 1] = votes, out[3 * threadIdx.x + 2] = total;
}
template <class T> __device__ void all_atomics(T* i, T v) {
  atomicAdd(&i[0], v), atomicMin(&i[1], v), atomicMax(&i[2], v), atomicAnd(&i[3], v | 0xf0), atomicOr(&i[4], v);
  atomicXor(&i[5], v), atomicAdd_block(&i[6], 1), atomicExch(&i[7], 9), atomicCAS(&i[8], 3, v), atomicOr(&i[8], 0);
  T old = i[9], seen;
  do old = atomicCAS(&i[9], seen = old, old * 3 + 1);
  while (old != seen);
}
__device__ void more_atomics(int* i, unsigned* u, float* f, double* d, unsigned v) {
  atomicSub(&i[10], v), atomicSub(&u[10], v), atomicInc(&u[11], 10), atomicDec(&u[12], 10);
  atomicAdd(&f[0], (float)v), atomicAdd(&d[0], (double)v);
}
extern "C" __global__ void atomics(int* i, unsigned* u, long long* w, unsigned long long* uw, float* f,
                                   double* d, int is_own) {
  __shared__ int si[16];
  __shared__ unsigned su[16];
  extern __shared__ long long sw[];
  __shared__ unsigned long long suw[16];
  __shared__ float sf[1];
  __shared__ double sd[1];
  const int at = threadIdx.x;
  if (at < 16) si[at] = i[at], su[at] = u[at], sw[at] = w[at], suw[at] = uw[at], sf[0] = f[0], sd[0] = d[0];
  __syncthreads();
  all_atomics(is_own ? si : i, at), all_atomics(is_own ? su : u, (unsigned)at);
  all_atomics(is_own ? sw : w, (long long)at << 33), all_atomics(is_own ? suw : uw, (unsigned long long)at << 33);
  more_atomics(is_own ? si : i, is_own ? su : u, is_own ? sf : f, is_own ? sd : d, at);
  __syncthreads();
  if (is_own && at < 16) i[at] = si[at], u[at] = su[at], w[at] = sw[at], uw[at] = suw[at], f[0] = sf[0], d[0] = sd[0];
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
    "mixed": Launch(grid=2, block=1024),
    "atomics": Launch(grid=1, block=200, shared_bytes=128),
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


def mixed_by_hand() -> np.ndarray:
    values, votes, total = np.arange(1024), np.zeros(1024, int), 0
    lanes, warps = np.arange(1024) % 32, np.arange(1024) // 32
    lives = warps != 5
    for turn in range(8):
        for i in range(3):
            values = np.where(lives & (i < (warps + turn) % 4), values + values[np.arange(1024) ^ (1 << i)], values)
        odd = np.where(lanes < 16, values & 1, 0).reshape(32, 32).sum(1)
        votes += lives * np.where(lanes < 16, odd[warps], 100)
        if not ((values & 1) * lives).any():
            break
        lives &= (warps != 9) | (turn != 3)
        total += turn * int(lives.sum())
    return np.where(lives[:, None], np.stack([values, votes, np.full(1024, total)], 1), -1)


def test_threads_that_wait_for_each_other_in_many_ways(module: jitload.Module) -> None:
    out = np.full((1024, 3), -1, np.int32)
    module.mixed(out)
    assert (out == mixed_by_hand()).all()


def test_atomics_in_shared_memory_are_those_of_global_memory(module: jitload.Module) -> None:
    kinds = (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
    found = []
    for is_own in (0, 1):
        arrays = [np.full(16 if np.issubdtype(kind, np.integer) else 1, 3, kind) for kind in kinds]
        module.atomics(*arrays, is_own)
        found.append(arrays)
    assert all((own == other).all() for own, other in zip(*found, strict=True))
    tripled = 3
    for _ in range(200):
        tripled = tripled * 3 + 1
    i, u, w, _, f, d = found[1]
    assert (i[0], i[1], i[2], i[6], i[7]) == (3 + 19900, 0, 199, 203, 9)
    assert (int(u[9]), int(w[9])) == (tripled % 2**32, (tripled + 2**63) % 2**64 - 2**63)
    assert (f[0], d[0], i[10]) == (19903, 19903, 3 - 19900)


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
