"""Threads and blocks on the CPU that wait for each other through memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.calls import run_python
from support.headers import OPTIMIZED

import jitload

SPINS = {
    "add": "while (atomicAdd(x + 1, 0) == 0);",
    "add_float": "while (atomicAdd((float*)x + 1, 0.f) == 0);",
    "exchange": "while (atomicCAS(x + 1, 0, 0) == 0);",
    "reads": "while (((volatile int*)x)[1] == 0);",  # each loop of this source may switch to another thread
    "lock": "while (atomicCAS(x + 1, 1, 2) == 0) { }",
    "sleeps": "for (int ns = 8; ((volatile int*)x)[1] == 0; ns = ns < 256 ? 2 * ns : ns) __nanosleep(ns);",
}
HALF_SPINS = 'extern "C" __global__ void {}(int* x) {{ if (threadIdx.x == 63) x[1] = 1; else {} }}\n'
WITH_VOLATILE = r"""
extern "C" __global__ void meets(int* x) { /* nothing changes but memory, between barriers */
  while (*(volatile int*)x < 10000) {
    __syncthreads();
    if (threadIdx.x == 0) *x = *x + 1;
    __syncthreads();
  }
}
extern "C" __global__ void computes(int* x) { /* one thread computes and allocates while the others read memory */
  volatile int* flag = x;
  if (threadIdx.x == 0) {
    unsigned value = 1;
    for (int i = 0; i < 1000000; ++i) value = value * 1664525 + (value >> 7);
    for (int i = 0; i < 100000; ++i) free(malloc(16 + (i & 4095)));
    *flag = value | 1;
  }
  while (*flag == 0);
}
"""
CHAIN = r"""
extern "C" __global__ void chain(int* x) { /* a block waits for an earlier one, which computes */
  unsigned value = 1;
  if (blockIdx.x == 0) for (int i = 0; i < 20000000; ++i) value = value * 1664525 + (value >> 7);
  else while (atomicAdd(x, 0) == 0);
  atomicAdd(x, value | 1);
}
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (CHAIN, ("add", "add_float", "exchange", "chain")),
        (WITH_VOLATILE, ("reads", "lock", "sleeps", "meets", "computes")),
    ],
    ids=["atomics", "volatile"],
)
def test_threads_that_wait_for_each_other(text: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process whose pool has two threads, so that blocks wait for each other, too."""
    text += "".join(HALF_SPINS.format(name, SPINS[name]) for name in names if name in SPINS)
    path = jitload.build_inline("waits", cuda_sources=text, arch="cpu", extra_cflags=OPTIMIZED)
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "2")
    monkeypatch.setenv("JITLOAD_CPU_TIMEOUT", "30")
    program = f"""
import numpy as np
mod = jitload.load_module(sys.argv[1])
for name in {names}:
    x = np.zeros(64, np.int32)
    mod[name][(64, 1) if name == "chain" else (1, 64)](x)
    print(name, x.any())
"""
    assert run_python(program, path) == "".join(f"{name} True\n" for name in names)


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
