"""Sanitizers for kernels on the CPU: each error names the kernel, block, thread and line."""

import ctypes
import re

import numpy as np
import pytest
import torch
from support.headers import SANITIZED

import jitload
from jitload.errors import JitLoadError

SOURCE = r"""
struct Pair { int first, second; };
extern "C" __global__ void shift(const float* x, float* y, int n, int by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i + by];
}
extern "C" __global__ void store(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 1;
}
extern "C" __global__ void dynamic(float* y, int at) {
  extern __shared__ float s[];
  s[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x + at];
}
extern "C" __global__ void fixed(float* y, int at) {
  __shared__ float tile[8];
  float own[4] = {1, 2, 3, 4};
  tile[threadIdx.x] = own[threadIdx.x % 4];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x + at];
}
__device__ __noinline__ Pair pair_of(int n) { return Pair{n, n}; }
extern "C" __global__ void returned(Pair* y) { y[threadIdx.x] = pair_of(threadIdx.x); }
extern "C" __global__ void bytes(char* y, int n) { memset(y, 1, n); }
extern "C" __global__ void add(int* y, int by) { y[threadIdx.x] += by; }
extern "C" __global__ void bits(int* y, int by) { y[threadIdx.x] = 1 << by; }
extern "C" __global__ void divide(int* y, int by) { y[threadIdx.x] /= by; }
extern "C" __global__ void to_int(const float* x, int* y) { y[threadIdx.x] = (int)x[threadIdx.x]; }
extern "C" __global__ void to_byte(const double* x, unsigned char* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void saturated(const float* x, int* y) { y[threadIdx.x] = __float2int_rz(x[threadIdx.x]); }
extern "C" __global__ void barriers(float* y) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
}
extern "C" __global__ void one_line(float* y) {
  if (threadIdx.x < 32) __syncthreads(); else { y[0] = 1; __syncthreads(); }
}
extern "C" __global__ void loop(float* y) {
  for (int i = 0; i <= threadIdx.x; ++i) __syncthreads(); /* some threads leave it and end */
}
extern "C" __global__ void returning(float* y, int n) { /* as is usual */
  if (threadIdx.x >= n) return;
  for (int i = 0; i < 3; ++i) { __syncthreads(); y[0] = i; __syncthreads(); }
}
extern "C" __global__ void __launch_bounds__(64) bounded(float* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void sum(const float* x, float* out, Pair pair) {
  __shared__ float part[32];
  float value = x[threadIdx.x] * pair.second;
  for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(~0u, value, by);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < blockDim.x / 32) atomicAdd(out, part[threadIdx.x]);
}
"""


def line_of(text: str) -> int:
    (number,) = (number for number, line in enumerate(SOURCE.split("\n"), 1) if text in line)
    return number


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    sanitizers = ("address", "undefined")
    return jitload.load_inline("watched", cuda_sources=SOURCE, arch="cpu", sanitize=sanitizers, extra_cflags=SANITIZED)


INVALID_ACCESSES = [
    ("shift", (4, 64), (torch.zeros(256), torch.zeros(256), 256, 1), "y[i] = x",
     r"a read of 4 bytes at byte 1024 of 'x', which has 1024 bytes, in block \(3, 0, 0\), thread \(63, 0, 0\)"),
    ("shift", (1, 64), (torch.zeros(64), torch.zeros(64), 64, -2), "y[i] = x",
     r"a read of 4 bytes at byte -8 of 'x', which has 256 bytes, in block \(0, 0, 0\), thread \(0, 0, 0\)"),
    ("shift", (1, 32), (torch.zeros(64)[16:32], torch.zeros(64), 17, 0), "y[i] = x",
     r"a read of 4 bytes at byte 64 of 'x', which has 64 bytes, in block \(0, 0, 0\), thread \(16, 0, 0\)"),
    ("shift", (1, 1), (np.zeros((8, 8), "f")[4:4], torch.zeros(1), 1, -1), "y[i] = x",
     r"at byte -4 of 'x', which has 0 bytes"),
    ("store", (4, 64), (np.zeros(200, np.float32), 200), "if (i <= n)",
     r"a write of 4 bytes at byte 800 of 'y', which has 800 bytes, in block \(3, 0, 0\), thread \(8, 0, 0\)"),
    ("dynamic", (1, 64, 256), (torch.zeros(64), 1), "s[threadIdx.x + at]",
     (r"a read of 4 bytes at byte 256 of dynamic shared memory, which has 256 bytes, in block \(0, 0, 0\), "
     r"thread \(63, 0, 0\)")),
    ("fixed", (1, 8), (torch.zeros(64), 1), "tile[threadIdx.x + at]",
     r"index 8 of an array 'float \[8\]' at watched.cu:{line} in block \(0, 0, 0\), thread \(7, 0, 0\)"),
    ("returned", (1, 4), (np.zeros(7, np.int32),), "= pair_of", r"a write of 8 bytes at byte 24 of 'y', which has 28"),
    ("bytes", (1, 1), (torch.zeros(5, dtype=torch.int8), 6), "memset",
     r"a write of 6 bytes at byte 0 of 'y', which has 5 bytes"),
    ("add", (1, 4), (torch.full((4,), 2**31 - 1, dtype=torch.int32), 1), "+= by", r"a signed addition that overflows"),
    ("bits", (1, 4), (torch.zeros(4, dtype=torch.int32), 33), "1 << by", r"a shift by too many bits"),
    ("divide", (1, 4), (torch.ones(4, dtype=torch.int32), 0), "/= by", r"a division by zero"),
    ("to_int", (1, 3), (torch.tensor([1.0, -2.0**31, 2.0**31]), torch.zeros(3, dtype=torch.int32)), "(int)x",
     r"a floating-point number out of the range of 'int', which a GPU would saturate, at .*thread \(2, 0, 0\)"),
    ("to_byte", (1, 2), (np.array([255.9, 256.0]), np.zeros(2, np.uint8)), "void to_byte",
     r"a floating-point number out of the range of 'unsigned char', .*thread \(1, 0, 0\)"),
    ("barriers", (1, 32), (torch.zeros(4),), "  else", r"threads of one block meet at different barriers, at lines"),
    ("one_line", (1, 64), (torch.zeros(4),), "else { y[0] = 1;",
     r"threads of one block meet at different barriers, at lines {line} and {line} \(columns 38 and 72\),"),
    ("loop", (1, 32), (torch.zeros(4),), "++i) __syncthreads();",
     r"31 threads meet at the barrier at line {line}, where 32 met before: its loop has a different length"),
]  # fmt: skip


@pytest.mark.parametrize("access", INVALID_ACCESSES, ids=lambda access: f"{access[0]}-{access[3]}")
def test_an_invalid_access_is_found_with_its_line_and_thread(mod, access):
    name, config, arguments, text, said = access
    with pytest.raises(RuntimeError) as caught:
        mod[name][config](*arguments)
    message = str(caught.value)
    line = line_of(text)
    assert re.search(said.format(line=line), message), message
    if name not in ("barriers", "one_line", "loop"):
        assert f"watched.cu:{line}" in message
    assert message.startswith(f"{name}(): ")


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int), ("second", ctypes.c_int))


def test_what_is_right_is_not_found(mod):
    x, y = torch.arange(256.0), torch.zeros(256)
    mod.shift[4, 64](x, y, 256, 0)
    assert torch.equal(x, y)
    mod.dynamic[1, 64, 256](y, 0)
    mod.fixed[1, 8](y, 0)
    mod.returning[1, 64](y, 40)
    whole = torch.zeros(3, dtype=torch.int32)
    mod.saturated[1, 3](torch.tensor([3e9, -3e9, 2.9]), whole)
    assert whole.tolist() == [2**31 - 1, -(2**31), 2]
    mod.to_int[1, 3](torch.tensor([2147483520.0, -(2.0**31), -0.9]), whole)
    assert whole.tolist() == [2147483520, -(2**31), 0]
    out = torch.zeros(1)
    mod.sum[1, 256](x, out, Pair(1, 2))
    assert out.item() == 2 * x.sum().item()
    big = torch.zeros(100_000)
    mod.store[400, 256](big, 99_999)
    assert (big == 1).all()
    mod.bounded[1, 64](y)
    with pytest.raises(RuntimeError, match=r"^bounded\(\): a block of this kernel can have at most 64 threads"):
        mod.bounded[1, 65](y)


def test_a_path_with_a_quote(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "it's; exit 1; '"))
    text = "__global__ void k(float* x) {\n  x[1] = 0;\n}"
    mod = jitload.load_inline("quoted", cuda_sources=text, arch="cpu", sanitize="address", gpu_check=False)
    with pytest.raises(RuntimeError, match=r"thread \(0, 0, 0\), at quoted\.cu:2$"):
        mod.k[1, 1](torch.zeros(1))


def test_debug_and_what_is_refused():
    text = "\n".join(re.findall(r'extern "C" __global__ void (?:shift|barriers)[^$]*?\n}', SOURCE))
    mod = jitload.load_inline("debugged", cuda_sources=text, arch="cpu", debug=True)
    x, y = torch.arange(256.0), torch.zeros(256)
    mod.shift[4, 64](x, y, 256, 0)
    assert torch.equal(x, y)
    with pytest.raises(RuntimeError, match="threads of one block meet at different barriers"):
        mod.barriers[1, 32](y)
    for name in ("memory", "", 0):
        with pytest.raises(
            JitLoadError, match=f"sanitize={name!r} must be one of 'address', 'undefined', 'race', or several"
        ):
            jitload.load_inline("m", cuda_sources=SOURCE, arch="cpu", sanitize=name)
    with pytest.raises(JitLoadError, match="sanitize= is for kernels on the CPU, but the architecture is sm_90"):
        jitload.load_inline("m", cuda_sources=SOURCE, arch="sm_90", sanitize="address")
    with pytest.raises(JitLoadError, match="sanitize= and debug= are for kernels"):
        jitload.load_inline("m", cpp_sources="int f() { return 1; }", functions="f", debug=True)
