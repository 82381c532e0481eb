"""Threads on the CPU that wait for each other: endless waits are found, and threads that work are left alone."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.calls import run_python
from support.headers import OPTIMIZED

import jitload
from jitload.building import native, runtime

INTERVAL_S = 0.1  # between two looks at the memory; three looks find an endless wait

SPINS = {
    "add": "while (atomicAdd(x + 1, 0) == 0);",
    "add_float": "while (atomicAdd((float*)x + 1, 0.f) == 0);",
    "exchange": "while (atomicCAS(x + 1, 0, 0) == 0);",
    "reads": "while (((volatile int*)x)[1] == 0);",  # each loop of this source may switch to another thread
    "lock": "while (atomicCAS(x + 1, 1, 2) == 0) { }",
    "sleeps": "for (int ns = 8; ((volatile int*)x)[1] == 0; ns = ns < 256 ? 2 * ns : ns) __nanosleep(ns);",
}
HALF_SPINS = 'extern "C" __global__ void {}(int* x) {{ if (threadIdx.x < 16) __syncthreads(); else {} }}\n'
WORKING = r"""
extern "C" __global__ void counts(int* x, int n) { /* nothing changes but memory */
  volatile int* count = x;
  while (*count < n) *count = *count + 1;
}
extern "C" __global__ void meets(int* x, int n) { /* nothing changes but memory, between barriers */
  while (*(volatile int*)x < n) {
    __syncthreads();
    if (threadIdx.x == 0) *x = *x + 1;
    __syncthreads();
  }
}
extern "C" __global__ void computes(unsigned* x, int n) { /* one thread computes while the others read memory */
  volatile unsigned* flag = x;
  if (threadIdx.x == 0) {
    unsigned value = 1;
    for (int i = 0; i < n; ++i) value = value * 1664525 + (value >> 7);
    *flag = value | 1;
  }
  while (*flag == 0);
}
"""
CHAIN = r"""
extern "C" __global__ void chain(unsigned* x, int n) { /* a block waits for an earlier one, which computes */
  unsigned value = 1;
  if (blockIdx.x == 0) for (int i = 0; i < n; ++i) value = value * 1664525 + (value >> 7);
  else while (atomicAdd(x, 0u) == 0);
  atomicAdd(x, value | 1);
}
extern "C" __global__ void backwards(unsigned* x) {
  while (atomicAdd(x, 0u) != gridDim.x - 1 - blockIdx.x);
  atomicAdd(x, 1u);
}
"""


PLAIN = 'extern "C" __global__ void plain(int* x) { x[threadIdx.x] += 1; }\n'


@pytest.fixture(scope="module", autouse=True)
def short_interval(used_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile the runtime library so that it finds endless waits in a fifth of the usual time."""
    cache = tmp_path_factory.mktemp("waiting") / "cache"
    shutil.copytree(used_cache, cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_CACHE_DIR", str(cache))
        interval = f"-DJITLOAD_CPU_SEARCH_INTERVAL={int(INTERVAL_S * 1e9)}"
        patch.setitem(native._SOURCES, "cpu_runtime", {"cpu": (*native._CXX17, interval)})
        for module in (native, runtime):
            patch.setattr(module, "NATIVE_DIR", cache.parent / "native")
        yield


@pytest.mark.parametrize("names", [("add", "add_float", "exchange"), ("reads", "lock", "sleeps")])
def test_threads_that_wait_for_each_other(names: tuple[str, ...]) -> None:
    text = PLAIN + "".join(HALF_SPINS.format(name, SPINS[name]) for name in names)
    mod = jitload.load_inline("spins", cuda_sources=text, arch="cpu", extra_cflags=OPTIMIZED)
    for name in names:
        x = np.zeros(64, np.int32)
        said = (
            rf"{name}\(\): threads wait without end: 16 threads, \(0, 0, 0\) first, wait at __syncthreads\(\) and "
            r"48 threads, \(16, 0, 0\) first, read memory that does not change in block \(0, 0, 0\)$"
        )
        with pytest.raises(RuntimeError, match=said):
            mod[name][1, 64](x)
        for _ in range(50):  # nothing is left of it
            mod.plain[1, 64](x)
        assert (x == 50).all()


LOOPS = r"""
extern "C" __global__ void barriers(int* x) { while (x[1] == 0) __syncthreads(); }
extern "C" __global__ void votes(int* x) { while (__any_sync(~0u, x[1] == 0)) __syncwarp(); }
extern "C" __global__ void steps(int* x) { /* a state that repeats after two turns */
  __shared__ int s;
  do {
    if (threadIdx.x == 0) s ^= 1;
    __syncthreads();
    if (__shfl_sync(~0u, s, 0) > 1) return;
    __syncthreads();
  } while (x[1] == 0);
}
"""


@pytest.mark.parametrize(
    ("name", "wait"),
    [("barriers", r"__syncthreads\(\)"), ("votes", "__(any_sync|syncwarp)"), ("steps", "__s(yncthreads|hfl)")],
)
def test_loops_around_barriers(name: str, wait: str) -> None:
    mod = jitload.load_inline("loops", cuda_sources=LOOPS, arch="cpu", extra_cflags=OPTIMIZED)
    said = rf"{name}\(\): threads wait without end: .*\(0, 0, 0\) first, wait at {wait}"
    with pytest.raises(RuntimeError, match=said):
        mod[name][1, 64](np.zeros(2, np.int32))


@pytest.mark.parametrize(("name", "threads"), [("counts", 1), ("meets", 4), ("computes", 8)])
def test_threads_that_work_are_not_ended(name: str, threads: int) -> None:
    mod = jitload.load_inline("working", cuda_sources=WORKING, arch="cpu", extra_cflags=OPTIMIZED)
    x = np.zeros(1, np.uint32 if name == "computes" else np.int32)
    n, spent = 2_000_000, 0.0
    while spent < INTERVAL_S / 2:
        n *= 2
        x[:] = 0
        begin = time.monotonic()
        mod[name][1, threads](x, n)
        spent = time.monotonic() - begin
    x[:] = 0
    mod[name][1, threads](x, min(int(n / spent * 5 * INTERVAL_S), 2**31 - 1))  # threads that wait are found before
    assert x[0] != 0


def test_blocks_that_wait_for_other_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, whose pool has two threads."""
    path = jitload.build_inline("chain", cuda_sources=CHAIN, arch="cpu")
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "2")
    program = """
import numpy as np
mod = jitload.load_module(sys.argv[1])
x = np.zeros(1, np.uint32)
mod.chain[64, 1](x, 250_000_000)
print(x[0] != 0)
try:
    mod.backwards[4, 32](np.zeros(1, np.uint32))
except RuntimeError as error:
    print("a block that waits for a later one is GPU only" in str(error))
"""
    assert run_python(program, path) == "True\nTrue\n"


NV_ATOMICS = r"""
__global__ void waits(int* x) { /* the last thread's number is released by its predecessor's */
  while (__nv_atomic_load_n(x, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_BLOCK) != threadIdx.x) { }
  __nv_atomic_fetch_add(x, 1, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_BLOCK);
}
__global__ void changes(int* x, float* f, unsigned long long* u) {
  int expected = 0, desired = 7;
  __nv_atomic_store_n(x, 3, __NV_ATOMIC_RELEASE);
  __nv_atomic_load(x, x + 1, __NV_ATOMIC_RELAXED);
  x[2] = __nv_atomic_fetch_sub(x, 1, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
  __nv_atomic_max(x, 50, __NV_ATOMIC_RELAXED);
  x[3] = __nv_atomic_compare_exchange_n(x, &expected, 9, true, __NV_ATOMIC_ACQ_REL, __NV_ATOMIC_RELAXED);
  x[4] = expected;
  x[5] = __nv_atomic_compare_exchange(x, &expected, &desired, false, __NV_ATOMIC_SEQ_CST, __NV_ATOMIC_CONSUME);
  x[6] = __nv_atomic_exchange_n(x, 1, __NV_ATOMIC_ACQ_REL);
  __nv_atomic_exchange(x, &desired, x + 7, __NV_ATOMIC_ACQ_REL);
  __nv_atomic_add(f, 1.5f, __NV_ATOMIC_RELAXED);
  __nv_atomic_or(u, 6ull, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_CLUSTER);
  __nv_atomic_thread_fence(__NV_ATOMIC_SEQ_CST, __NV_THREAD_SCOPE_DEVICE);
}
"""


def test_atomics_with_an_order() -> None:
    module = jitload.load_inline("m", cuda_sources=NV_ATOMICS, arch="cpu")
    x, f, u = np.zeros(8, np.int32), np.ones(1, np.float32), np.ones(1, np.uint64)
    module.waits[1, 64](x)
    assert x[0] == 64
    module.changes[1, 1](x, f, u)
    assert x.tolist() == [7, 3, 3, 0, 50, 1, 7, 1]
    assert (f.item(), u.item()) == (2.5, 7)
