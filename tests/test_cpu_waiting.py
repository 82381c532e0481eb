"""Threads, lanes and blocks on the CPU that wait for each other, at barriers and through memory, and shuffles."""

import numpy as np
import pytest
import torch
from support.calls import run_python
from support.headers import OPTIMIZED

import jitload
from jitload import Launch

SPINS = {
    "add": "while (atomicAdd(x + 1, 0) == 0);",
    "add_float": "while (atomicAdd((float*)x + 1, 0.f) == 0);",
    "exchange": "while (atomicCAS(x + 1, 0, 0) == 0);",
    "reads": "while (((volatile int*)x)[1] == 0);",  # each loop of this source may switch to another thread
    "lock": "while (atomicCAS(x + 1, 1, 2) == 0) { }",
    "atomic_ref": "while (cuda::atomic_ref<int, cuda::thread_scope_device>(x[1]).load() == 0 && clock() != 0);",
    "sleeps": "for (int ns = 8; ((volatile int*)x)[1] == 0; ns = ns < 256 ? 2 * ns : ns) __nanosleep(ns);",
}
HALF_SPINS = 'extern "C" __global__ void {}(int* x) {{ if (threadIdx.x == 63) x[1] = 1; else {} }}\n'
WITH_VOLATILE = r"""
#include <cuda/atomic>
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
        (WITH_VOLATILE, ("reads", "lock", "atomic_ref", "sleeps", "meets", "computes")),
    ],
    ids=["atomics", "volatile"],
)
def test_threads_that_wait_for_each_other(text, names, monkeypatch):
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
  ::__nv_atomic_load(x, x + 1, __NV_ATOMIC_RELAXED);
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


def test_atomics_with_an_order():
    module = jitload.load_inline("m", cuda_sources=NV_ATOMICS, arch="cpu")
    x, f, u = np.zeros(8, np.int32), np.ones(1, np.float32), np.ones(1, np.uint64)
    module.waits[1, 64](x)
    assert x[0] == 64
    module.changes[1, 1](x, f, u)
    assert x.tolist() == [7, 3, 3, 0, 50, 1, 7, 1]
    assert (f.item(), u.item()) == (2.5, 7)


MEETING = r"""
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


@pytest.fixture(scope="module")
def meeting() -> jitload.Module:
    functions = {"atomics": Launch(grid=1, block=200, shared_bytes=128), "stuck": Launch(grid=2, block=64)}
    return jitload.load_inline("meeting", cuda_sources=MEETING, functions=functions, arch="cpu")


def test_atomics_in_shared_memory_are_those_of_global_memory(meeting):
    kinds = (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
    results = []
    for is_own in (0, 1):
        arrays = [np.full(16 if np.issubdtype(kind, np.integer) else 1, 3, kind) for kind in kinds]
        meeting.atomics(*arrays, is_own)
        results.append(arrays)
    assert all((own == expected).all() for own, expected in zip(*results, strict=True))
    tripled = 3
    for _ in range(200):
        tripled = tripled * 3 + 1
    i, u, w, _, f, d = results[1]
    assert (i[0], i[1], i[2], i[6], i[7]) == (3 + 19900, 0, 199, 203, 9)
    assert (int(u[9]), int(w[9])) == (tripled % 2**32, (tripled + 2**63) % 2**64 - 2**63)
    assert (f[0], d[0], i[10]) == (19903, 19903, 3 - 19900)


def test_a_barrier_that_can_never_complete(meeting):
    said = (
        r"stuck\(\): a barrier can never complete: 60 threads, \(4, 0, 0\) first, wait at __syncthreads\(\) and "
        r"1 thread, \(1, 0, 0\) first, waits at __shfl_sync\(\) for lanes of the mask "
        r"that do not come in block \([01], 0, 0\)"
    )
    with pytest.raises(RuntimeError, match=said):
        meeting.stuck(torch.zeros(1))


STEPS = """
#define STEP(d) if (lane >= d) s[i] += s[i - d]
template <class T> __device__ void sum_warp(volatile T* s, int i) { /* as in code from before Volta */
  for (int distance = 32; distance > 0; distance >>= 1) s[i] += s[i + distance];
}
__device__ int scan_warp(volatile int* s, int i) {
  const int lane = i % 32;
  STEP(1); STEP(2); STEP(4); STEP(8); STEP(16);
  return lane > 0 ? s[i - 1] : 0;
}
extern "C" __global__ void sum(int* x) {
  __shared__ int s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 32) sum_warp(s, threadIdx.x);
  x[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void scan(int* x) {
  extern __shared__ int s[];
  volatile int* v = s;
  v[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = scan_warp(s, threadIdx.x);
}
extern "C" __global__ void sum_global(int* x) {
  volatile int* v = x;
  if (threadIdx.x < 32) sum_warp(v, threadIdx.x);
}
extern "C" __global__ void leader(int* x, int is_synchronized) {
  __shared__ volatile int s[2];
  if (threadIdx.x % 32 == 5) s[threadIdx.x / 32] = x[threadIdx.x];
  if (is_synchronized) __syncwarp();
  x[threadIdx.x] = s[threadIdx.x / 32];
}
extern "C" __global__ void one_by_one(int* x, int is_global) {
  __shared__ int count;
  volatile int* total = is_global ? x : &count;
  for (int lane = 0; lane < 32; ++lane) {
    if (threadIdx.x == lane) *total = *total + 1;
  }
}
extern "C" __global__ void locked(int* x) {
  __shared__ volatile int count;
  __shared__ int lock;
  if (threadIdx.x == 0) count = lock = 0;
  __syncthreads();
  for (bool is_done = false; !is_done;) {
    if (atomicCAS(&lock, 0, 1) != 0) continue;
    count = count + 1;
    __threadfence_block();
    atomicExch(&lock, 0);
    is_done = true;
  }
  __syncthreads();
  x[threadIdx.x] = count;
}"""


@pytest.mark.parametrize("options", [{}, {"sanitize": "address"}, {"sanitize": "race"}, {"debug": True}], ids=str)
def test_lanes_run_in_step_at_volatile_accesses(options):
    mod = jitload.load_inline("steps", cuda_sources=STEPS, arch="cpu", gpu_check=False, **options)
    start = torch.arange(64, dtype=torch.int32)
    mod.sum[1, 64](x := start.clone())
    assert x[0] == 2016
    mod.sum_global[1, 64](x := start.clone())
    assert x[0] == 2016
    mod.scan[1, 64, 256](x := start.clone())
    assert torch.equal(x.view(2, 32), start.view(2, 32).cumsum(1, dtype=torch.int32) - start.view(2, 32))
    mod.leader[1, 64](x := start.clone(), 1)
    assert torch.equal(x.view(2, 32), start.view(2, 32)[:, 5:6].expand(2, 32))
    mod.locked[1, 64](x)
    assert (x == 64).all()
    with pytest.raises(RuntimeError, match=r"write to a volatile .*thread \(0, 0, 0\).* accesses, in an unknown order"):
        mod.leader[1, 64](x, 0)
    for is_global in (0, 1):
        with pytest.raises(RuntimeError, match="write to a volatile variable"):
            mod.one_by_one[1, 32](x, is_global)


TYPES = {"int": "int32", "float": "float32", "double": "float64", "unsigned long long": "uint64"}
FARTHEST = 34  # the instruction reads five bits; a lane gets its own value if the source lane is out of range
KERNEL = """
extern "C" __global__ void k{number}(const {type}* x, {type}* y, int width) {{
  {type} value = x[blockIdx.x * blockDim.x + threadIdx.x];
  y += blockIdx.x * blockDim.x * 4 * {farthest} + threadIdx.x;
  for (int by = 0; by < {farthest}; ++by) {{
    y[0] = __shfl_sync(~0u, value, by, width);
    y[blockDim.x] = __shfl_up_sync(~0u, value, by, width);
    y[blockDim.x * 2] = __shfl_down_sync(~0u, value, by, width);
    y[blockDim.x * 3] = __shfl_xor_sync(~0u, value, by, width);
    y += blockDim.x * 4;
  }}
}}
"""
VOTES = ("__ballot_sync", "__any_sync", "__all_sync", "__uni_sync")
SOURCE = "".join(f'extern "C" __global__ void lacks{name}(int* x) {{ x[0] = {name}(1u, 1); }}\n' for name in VOTES)
SOURCE += 'extern "C" __global__ void uni(int* x, int* y) { y[threadIdx.x] = __uni_sync(~0u, x[threadIdx.x]); }\n'
SOURCE += "".join(KERNEL.format(number=number, type=name, farthest=FARTHEST) for number, name in enumerate(TYPES))


@pytest.fixture(scope="module")
def module() -> jitload.Module:
    return jitload.load_inline("shuffles", cuda_sources=SOURCE, arch="cpu")


def source_lanes(by: int, width: int) -> list[list[int]]:
    """Return the lane that each lane reads from: by index, up, down and xor."""
    lanes = range(32)
    by %= 32
    first = [lane // width * width for lane in lanes]
    return [
        [first[lane] + by % width for lane in lanes],
        [lane - by if lane - by >= first[lane] else lane for lane in lanes],
        [lane + by if lane + by < first[lane] + width else lane for lane in lanes],
        [lane ^ by if lane ^ by < min(first[lane] + width, 32) else lane for lane in lanes],
    ]


@pytest.mark.parametrize("threads", [32, 96])
@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize("number", range(len(TYPES)))
def test_every_shuffle_reads_from_the_lane_that_a_gpu_reads_from(module, number, width, threads):
    x = np.random.default_rng(0).integers(1, 1 << 30, 2 * threads).astype(list(TYPES.values())[number])
    y = np.zeros((2, FARTHEST, 4, threads), x.dtype)
    module[f"k{number}"][2, threads](x, y, width)
    warps = x.reshape(2, threads // 32, 32)
    for by in range(FARTHEST):
        for mode, lanes in enumerate(source_lanes(by, width)):
            np.testing.assert_array_equal(y[:, by, mode].reshape(warps.shape), warps[:, :, lanes], f"{mode}, by {by}")


@pytest.mark.parametrize("name", VOTES)
def test_a_vote_whose_mask_lacks_the_caller_names_the_function(module, name):
    with pytest.raises(RuntimeError, match=rf"{name}\(\) with mask 0x00000001, which lacks lane 1"):
        module[f"lacks{name}"][1, 4](np.zeros(1, np.int32))


def test_uni_tells_whether_lanes_agree(module):
    for first, remaining in ((0, 0), (1, 1), (2, 1), (0, 1), (1, 0)):
        x, y = np.full(32, remaining, np.int32), np.full(32, 7, np.int32)
        x[0] = first
        module.uni[1, 32](x, y)
        assert y.tolist() == [int(bool(first) == bool(remaining))] * 32
