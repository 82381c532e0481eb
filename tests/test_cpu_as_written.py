"""Kernels on the CPU do what C++ says: constructs that a tool which rewrites source easily gets wrong.

Each kernel runs in one block of 320 threads and barriers make its result unique. `t` is the thread's number, `s` is
shared memory that holds zeros, and `x` has four elements for each thread.
"""

from typing import Any

import numpy as np
import pytest
import torch

import jitload

THREADS = 320
T = np.arange(THREADS)
REVERSED = T[::-1]
X = (np.arange(4 * THREADS) * 37 % 101).astype(np.int32)
ROWS = X.reshape(4, THREADS)
STRIDE = "for (int i = t; i < 1280; i += blockDim.x)"
# By name: what stands before the kernel, its body, and what `y` holds afterwards; `n` is 5.
KERNELS: dict[str, tuple[str, str, Any]] = {
    "a branch on a variable's type": (
        "",
        """float v = t * 0.5f; s[t] = t; __syncthreads();
        if constexpr (cuda::std::is_same_v<decltype(v), float>) y[t] = v * 2 + s[319 - t]; else y[t] = -1;""",
        319,
    ),
    "an overload beside a template": (
        """template <class V> __device__ int pass(V v, int* s) {
          s[threadIdx.x] = v; __syncthreads(); return s[319 - threadIdx.x]; }
        __device__ int pass(int v, int* s) { s[threadIdx.x] = 2 * v; __syncthreads(); return s[319 - threadIdx.x]; }""",
        "int a = pass((long long)t, s); __syncthreads(); int b = pass(t, s); y[t] = 1000 * a + b;",
        1002 * REVERSED,
    ),
    "an overload for constants": (
        "__device__ int kind(const int&) { return 1; } __device__ int kind(int&) { return 2; }",
        f"{STRIDE} y[t] += kind(i); __syncthreads(); int v = t; __syncthreads(); y[t] += 10 * kind(v);",
        28,
    ),
    "a loop that begins with a side effect": (
        "",
        "for (int i = atomicAdd(&s[320], 2); i < 640; i += 640) y[i / 2] = i; __syncthreads(); y[t] += s[320];",
        2 * T + 640,
    ),
    "a loop that ends with a side effect": (
        "__device__ int limit(int* calls) { return atomicAdd(calls, 1) * 0 + 1280; }",
        "for (int i = t; i < limit(&s[320]); i += 320) y[t] += x[i]; __syncthreads(); y[t] += 1000 * s[320];",
        ROWS.sum(0) + 1000 * 5 * THREADS,
    ),
    "destructors": (
        "struct Adds { int* to; int by; __device__ ~Adds() { *to = *to * 2 + by; } };",
        """{ Adds adds{&s[t], 1}; s[t] = t; } __syncthreads();
        { Adds last{&y[t], 3}; Adds first{&y[t], 1}; y[t] = s[319 - t]; __syncthreads(); y[t] += 5; }""",
        ((REVERSED * 2 + 1 + 5) * 2 + 1) * 2 + 3,
    ),
    "a destructor behind a return": (
        "struct Marks { int* to; __device__ ~Marks() { *to += 7; } };",
        "Marks marks{&y[t]}; if (t % 2) return; s[t] = t; __syncthreads(); y[t] = s[318 - t];",
        np.where(T % 2, 7, 318 - T + 7),
    ),
    "a subscript from a macro": (
        "#define SWIZZLE(i) (i) ^ 5\n",
        f"{STRIDE} s[SWIZZLE(t)] = s[SWIZZLE(t)] * 2 + x[SWIZZLE(i)]; __syncthreads(); y[t] = s[t];",
        (ROWS * 2 ** np.arange(3, -1, -1)[:, None]).sum(0),
    ),
    "a guard of one byte": (
        "",
        """const uint8_t low = threadIdx.x; __syncthreads(); if (low < 8) s[t] = 1; __syncthreads();
        const int8_t half = threadIdx.x; if (half < 0) s[t] += 2; __syncthreads(); y[t] = s[319 - t];""",
        ((T % 256 < 8) + 2 * (T % 256 >= 128))[::-1],
    ),
    "a guard that is not a whole number": (
        "",
        "float most = n * 6.5f; __syncthreads(); if (threadIdx.x < most) s[t] = t; __syncthreads(); y[t] = s[319 - t];",
        np.where(T < 33, T, 0)[::-1],
    ),
    "a counter that wraps": (
        "",
        "for (unsigned char i = 250 + t % 2; i > 9; i += 2) { s[t] += i; } __syncthreads(); y[t] = s[319 - t];",
        np.where(T % 2, 251 + 253 + 255, 250 + 252 + 254)[::-1],
    ),
    "a name with two meanings": (
        "typedef int V;",
        """V a = t; { typedef float V; V b = 0.5f; s[t] = b * 4 + a; } __syncthreads();
        V c = 2.5; y[t] = s[319 - t] + c;""",
        REVERSED + 4,
    ),
}


@pytest.fixture(scope="module")
def module() -> jitload.Module:
    head = "int t = threadIdx.x; __shared__ int s[512]; s[t] = 0; if (t < 192) s[320 + t] = 0; __syncthreads();"
    kernels = (
        f"namespace n{number} {{\n{before}\n"
        f'extern "C" __global__ void k{number}(int* x, int* y, int n) {{ {head} {body} }}\n}}\n'
        for number, (before, body, _) in enumerate(KERNELS.values())
    )
    source = "#include <cuda/std/type_traits>\n" + "".join(kernels)
    return jitload.load_inline("as_written", cuda_sources=source, arch="cpu")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_means_what_it_says(module, name):
    x, y = torch.from_numpy(X.copy()), torch.zeros(THREADS, dtype=torch.int32)
    module[f"k{list(KERNELS).index(name)}"][1, THREADS](x, y, 5)
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to(KERNELS[name][2], THREADS))
