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
__device__ float plus(float a, float b) { return a + b; }
__device__ int place() { return blockIdx.x * blockDim.x + threadIdx.x; }
extern "C" __global__ void guarded(const float* x, const float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void returning(const float* x, const float* y, float* z, int n) {
  const unsigned i = threadIdx.x + blockDim.x * blockIdx.x;
  if (i >= n) return;
  z[i] = x[i] + y[i];
}
extern "C" __global__ void wide_index(const float* __restrict__ x, const float* y, float* __restrict__ z, long long n) {
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void widened(const float* x, const float* y, float* z, long long n) {
  long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
extern "C" __global__ void calling(const float* x, const float* y, float* z, int n) {
  int i = place();
  if (i < n) z[i] = plus(x[i], y[i]);
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
extern "C" __global__ void in_two(const float* x, const float* y, float* z, int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < rows && column < columns) z[row * columns + column] = x[row * columns + column] + y[row * columns + column];
}
template <class T> __global__ void any(const T* x, const T* y, T* z, int n) {
  int i = place();
  if (i < n) z[i] = x[i] + y[i];
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
LINEAR = ("guarded", "returning", "wide_index", "widened", "calling", "strided", "four")
FUNCTIONS = {
    **{name: Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"}) for name in LINEAR},
    "strided": Launch(grid=5, block=96, args={"n": "x.numel()"}),
    "in_two": Launch(
        grid=("ceil_div(columns, 32)", "ceil_div(rows, 8)"), block=(32, 8),
        args={"rows": "x.shape[0]", "columns": "x.shape[1]"},
    ),
    **{
        f"any_{name}": Launch(kernel=f"any<{name}>", grid="ceil_div(n, 128)", block=128, args={"n": "x.numel()"})
        for name in ("float", "double", "int")
    },
    "any_bytes": Launch(kernel="any<unsigned char>", grid="ceil_div(n, 128)", block=128, args={"n": "x.numel()"}),
    "any_longs": Launch(kernel="any<long long>", grid="ceil_div(n, 128)", block=128, args={"n": "x.numel()"}),
    "places": Launch(grid=(3, 2), block=(5, 3, 2)),
    "wrapping": Launch(grid="ceil_div(n, 256)", block=256, args={"n": "product.numel()"}),
    "mark": Launch(grid="out.numel()", block=1),
    "waits": Launch(grid=1, block=32),
}  # fmt: skip


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("loops", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu", extra_cflags=OPTIMIZED)


@pytest.mark.parametrize("n", [1, 255, 256, 8191, 70_001])
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


@pytest.mark.parametrize("shape", [(1, 1), (9, 33), (100, 257), (300, 31)])
def test_two_dimensions(mod, shape):
    x, y = torch.rand(2, *shape)
    z = torch.zeros(shape)
    mod.in_two(x, y, z)
    assert torch.equal(z, x + y)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float", "float32"), ("double", "float64"), ("int", "int32"), ("bytes", "uint8"), ("longs", "int64")],
)
def test_loops_over_elements_of_any_type(mod, name, dtype):
    x, y = (np.random.default_rng(seed).integers(0, 100, 10_007).astype(dtype) for seed in (1, 2))
    z = np.zeros_like(x)
    getattr(mod, f"any_{name}")(x, y, z)
    assert (z == x + y).all()


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
    assert len(in_vectors) >= 4  # g++ keeps one of several loops that are equal
