"""Kernels on the CPU whose threads never wait and which run as plain loops, beside one that waits."""

import platform
import re
import subprocess

import numpy as np
import pytest
import torch
from support.headers import OPTIMIZED

import jitload
from jitload import Launch

SOURCE = r"""
__device__ int place() { return blockIdx.x * blockDim.x + threadIdx.x; }
extern "C" __global__ void guarded(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void strided(const float* x, const float* y, float* z, int n) {
  for (int i = place(); i < n; i += gridDim.x * blockDim.x) z[i] = x[i] + y[i];
}
extern "C" __global__ void four(const float* x, const float* y, float* z, int n) {
  int i = place();
  if (i < n / 4) {
    float4 a = reinterpret_cast<const float4*>(x)[i], b = reinterpret_cast<const float4*>(y)[i];
    reinterpret_cast<float4*>(z)[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
  if (i < n % 4) z[n / 4 * 4 + i] = x[n / 4 * 4 + i] + y[n / 4 * 4 + i];
}
/* Whole indices, by value and by reference, and several of their parts at once. */
__device__ unsigned volume(const dim3& d) { return d.x * d.y * d.z; }
__device__ unsigned rank(uint3 t) { return (t.z * blockDim.y + t.y) * blockDim.x + t.x; }
template <class T> __device__ T last(T a) { return a; }
extern "C" __global__ void places(int* out) {
  dim3 d = blockDim, direct(threadIdx);
  uint3 t = threadIdx, g;
  g = gridDim;
  auto b = blockIdx;
  const uint3& same = threadIdx;
  int4 all = make_int4(threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x);
  const bool is_same =
      direct.y == t.y && same.z == t.z && last(threadIdx).x == t.x && b.z == blockIdx.z && g.y == gridDim.y;
  int4* to = reinterpret_cast<int4*>(out) + (b.y * gridDim.x + b.x) * volume(blockDim) + rank(threadIdx);
  *to = is_same && volume(d) == volume(blockDim) && max(threadIdx.x, 1u) >= 1 ? all : make_int4(-1, -1, -1, -1);
}
extern "C" __global__ void wrapping(unsigned long long* narrow, long long* wide, unsigned* product, int n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const long long before = blockIdx.x * blockDim.x + threadIdx.x - 5;
  const long long signed_before = (long long)blockIdx.x * blockDim.x + threadIdx.x - 5;
  if (i - 5 < n) narrow[i] = i - 5 + 7ull;
  if (before < 0xfffffffcll) wide[i] = before + signed_before;
  if ((int)(i * 0x1000001) < 0) product[i] = i * i * i * 2654435761u;
}
extern "C" __global__ void mark(unsigned char* out) { out[blockIdx.x] += 1 + (blockIdx.x & 3); }
extern "C" __global__ void waits(float* x) {
  __shared__ int at[4];
  for (int i = 0; i < 3; ++i) {
    at[threadIdx.x & 3] = threadIdx.y + threadIdx.z;
    __syncthreads();
    x[threadIdx.x] += __shfl_xor_sync(~0u, x[threadIdx.x], 1) + at[0];
  }
}
"""
LINEAR = ("guarded", "strided", "four")
FUNCTIONS = {
    **{name: Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"}) for name in LINEAR},
    "strided": Launch(grid=5, block=96, args={"n": "x.numel()"}),
    "places": Launch(grid=(3, 2), block=(5, 3, 2)),
    "wrapping": Launch(grid="ceil_div(n, 256)", block=256, args={"n": "product.numel()"}),
    "mark": Launch(grid="out.numel()", block=1),
    "waits": Launch(grid=1, block=32),
}  # fmt: skip


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("loops", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu", extra_cflags=OPTIMIZED)


@pytest.mark.parametrize("n", [1, 256, 70_001])
@pytest.mark.parametrize("name", LINEAR)
def test_elementwise_kernels_of_any_form_and_size(mod, name, n):
    x, y = torch.rand(n), torch.rand(n)  # each begins where float4 may
    z = torch.full((n + 64,), -1.0)
    getattr(mod, name)(x, y, z)
    assert torch.equal(z[:n], x + y)
    assert (z[n:] == -1).all()


@pytest.mark.parametrize("name", LINEAR)
def test_one_tensor_for_all(mod, name):
    x = torch.rand(5003)
    twice = x * 2
    getattr(mod, name)(x, x, x)
    assert torch.equal(x, twice)


def test_indices_as_values(mod):
    out = np.zeros((2, 3, 2, 3, 5, 4), np.int32)
    mod.places(out)
    for (by, bx, z, y, x), values in zip(np.ndindex(out.shape[:-1]), out.reshape(-1, 4), strict=True):
        assert tuple(values) == (x, y, z, bx), by


def test_indices_wrap_as_on_a_gpu(mod):
    n = 70_144
    narrow, wide, product = np.zeros(n, np.uint64), np.zeros(n, np.int64), np.zeros(n, np.uint32)
    mod.wrapping(narrow, wide, product)
    i = np.arange(n, dtype=np.uint64)
    before = (i - np.uint64(5)) & np.uint64(0xFFFFFFFF)
    np.testing.assert_array_equal(narrow, np.where(before < n, before + np.uint64(7), 0))
    sums = before.astype(np.int64) + i.astype(np.int64) - 5
    np.testing.assert_array_equal(wide, np.where(before < 0xFFFFFFFC, sums, 0))
    word = i.astype(np.uint32)
    is_negative = (word * np.uint32(0x1000001)).view(np.int32) < 0
    np.testing.assert_array_equal(product, np.where(is_negative, word * word * word * np.uint32(2654435761), 0))


def test_more_blocks_than_the_loops_take(mod):
    out = np.zeros((1 << 21) + 5, np.uint8)
    mod.mark(out)
    assert (out == 1 + (np.arange(out.size) & 3)).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the names of instructions are those of x86-64")
def test_indices_stay_in_registers(mod):
    """A kernel that waits must not make the others of its source store their indices, in loops without vectors."""
    options = {"arch": "cpu", "extra_cflags": OPTIMIZED}
    library = jitload.build_inline("loops", cuda_sources=SOURCE, functions=FUNCTIONS, **options)  # that of `mod`
    disassembly = subprocess.run(["objdump", "-d", library], check=True, capture_output=True, text=True).stdout
    loops = [text for text in disassembly.split("\n\n") if "loop_for_avx512" in text.partition("\n")[0]]
    in_vectors = [text for text in loops if re.search(r"\bvaddps\b.*%[yz]mm", text)]
    assert any("guarded" in text.partition("\n")[0] for text in in_vectors)
