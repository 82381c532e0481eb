"""Kernels written to mislead the splitting at barriers: each gives what CUDA's rules say, on whichever road it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import jitload

T = np.arange(64)
X = (np.arange(256) * 37 % 101).astype(np.int32)
BUMP = "__device__ void bump({}) {{ r += 1; }}\n"
# A loop that is gone through `m` times, each with two barriers: six times after one bump of 5.
TURNS = "for (int i = 0; i < m; ++i) { s[t] += 1; __syncthreads(); y[t] += s[(t + 1) % 64]; __syncthreads(); }"
SIX = np.full(64, 21)
POINT = "struct P { int a; __device__ int at() const { return threadIdx.x; } };\n"
STACK = (
    "struct Stack { int d[4]; int* p; __device__ Stack(int v) : p(d) { d[0] = v; }\n"
    "  __device__ void push(int v) { *p++ = v; } };\n"
)
# What stands before the kernel, its body behind `t`, `s[64]` of zeros and `n` = 5, and what `y` holds.
KERNELS: dict[str, tuple[str, str, Any]] = {
    # ---- writes that the text hides
    "parentheses around an argument": (BUMP.format("int& r"), f"int m = n; bump((m)); {TURNS}", SIX),
    "one of two": (BUMP.format("int& r"), f"int m = n, q = 1; bump(t >= 0 ? m : q); {TURNS}", SIX),
    "a reference by a typedef": (f"typedef int& R;\n{BUMP.format('R r')}", f"int m = n; bump(m); {TURNS}", SIX),
    "a reference by a macro": (f"#define OUT int&\n{BUMP.format('OUT r')}", f"int m = n; bump(m); {TURNS}", SIX),
    "a cast to a reference": (BUMP.format("unsigned& r"), f"int m = n; bump((unsigned&)m); {TURNS}", SIX),
    "an address in parentheses": ("", f"int m = n; int* p = &(m); *p += 1; {TURNS}", SIX),
    "a lambda's result": ("", f"int m = n; auto f = [&]() -> int& {{ return m; }}; f() += 1; {TURNS}", SIX),
    "an operator": (
        f"{POINT}__device__ void operator>>(P, int& r) {{ r += 1; }}",
        f"int m = n; P p{{3}}; p >> m; {TURNS}",
        SIX,
    ),
    "an address that is kept": (
        "#define A(v) (&(v))\n",
        "int v = x[t]; int* p = A(v); __syncthreads(); *p += 5; __syncthreads(); y[t] = v;",
        X[:64] + 5,
    ),
    "an element's address": (
        "",
        "int v[2] = {x[t], 1}; int* p = &(v[0]); __syncthreads(); p[1] += 5; __syncthreads(); y[t] = p[0] + p[1];",
        X[:64] + 6,
    ),
    # ---- names that mean two things
    "a constant that is hidden later": (
        "constexpr int W = 3;\n",
        "int a = t * W; __syncthreads(); y[t] = a; int W = x[t]; __syncthreads(); y[t] += a + W;",
        6 * T + X[:64],
    ),
    "a type that is hidden later": (
        "typedef int U;\n",
        "y[t] += ((U)2.5f) * 2; using U = float; __syncthreads(); y[t] += (int)(((U)2.5f) * 2);",
        np.full(64, 9),
    ),
    "a variable in parentheses": (
        "__constant__ int r = 3;\n",
        "int (r) = t; s[t] = r; __syncthreads(); y[t] = r + s[t];",
        2 * T,
    ),
    "a method and a variable": (POINT, "P p{t}; __syncthreads(); int at = p.at(); y[t] = at + p.a;", 2 * T),
    "a function by its address": (
        "__device__ int at(int a) { return a + threadIdx.x; }\nusing F = int (*)(int);\n",
        "F f = at; s[t] = t; __syncthreads(); y[t] = f(s[63 - t]);",
        np.full(64, 63),
    ),
    "a call of what is in parentheses": (
        "__device__ int at(int a) { return a + threadIdx.x; }\nusing F = int (*)(int);\n",
        "F f = at; s[t] = t; __syncthreads(); y[t] = (*f)(s[63 - t]);",
        np.full(64, 63),
    ),
    # ---- macros
    "a macro that a header has": (
        "#include <math.h>\n#ifndef M_PI\n#define M_PI 3.0f\n#endif\n",
        "s[t] = (int)(M_PI * 1000); __syncthreads(); y[t] = s[63 - t];",
        np.full(64, 3141),
    ),
    "a macro that is always there": (
        "#ifndef INT_MAX\n#define INT_MAX 7\n#endif\n",
        "s[t] = INT_MAX > 8; __syncthreads(); y[t] = s[63 - t];",
        np.full(64, 1),
    ),
    "a macro of the options": (
        "#ifndef Q\n#define Q 4\n#endif\n",
        "s[t] = Q; __syncthreads(); y[t] = s[63 - t];",
        np.full(64, 8),
    ),
    "a barrier in a macro": (
        "#define SYNC() do { __syncthreads(); } while (0)\n",
        "s[t] = t; SYNC(); y[t] = s[63 - t];",
        63 - T,
    ),
    # ---- ways out
    "return f()": (
        "__device__ void none(int* y) { y[threadIdx.x] = -1; }\n",
        "if (t % 2) return none(y); s[t] = t; __syncthreads(); y[t] = s[(t + 2) % 64];",
        np.where(T % 2, -1, (T + 2) % 64),
    ),
    "return (void)": (
        "",
        "if (t % 2) { return (void)(y[t] = -1); } s[t] = t; __syncthreads(); y[t] = s[(t + 2) % 64];",
        np.where(T % 2, -1, (T + 2) % 64),
    ),
    "break behind _Pragma": (
        '#define UNROLL _Pragma("unroll")\n',
        ("for (int k = 0; k < 4; ++k) { UNROLL for (int i = 0; i < 2; ++i) { s[t] += i + 1; } if (k == n - 4) break;"
        " __syncthreads(); } __syncthreads(); y[t] = s[63 - t];"),
        np.full(64, 6),
    ),
    "break behind an attribute": (
        "",
        ("for (int k = 0; k < 4; ++k) { s[t] += 1; if (n > 3) [[likely]] { if (k == 2) break; } s[t] += k;"
        " __syncthreads(); } __syncthreads(); y[t] = s[63 - t];"),
        np.full(64, 4),
    ),
    "a lambda's return": (
        "",
        "(void)[&] { if (t > 3) return; s[t] = t; }(); __syncthreads(); y[t] = s[63 - t];",
        np.where(T < 60, 0, 63 - T),
    ),
    "threads that leave one after the other": (
        "",
        ("for (int i = 0; i < n; ++i) { if (t >= 40 + i) return; s[t] = t + i; __syncthreads(); y[t] += s[t / 2];"
        " __syncthreads(); }"),
        sum((T < 40) * (T // 2 + i) for i in range(5)),
    ),
    # ---- objects
    "a constructor that asks where it is": (
        "struct At { int i; __device__ At() : i(threadIdx.x) {} };\n",
        "At a[2]; s[t] = t; __syncthreads(); y[t] = a[1].i + s[63 - t];",
        np.full(64, 63),
    ),
    "an object that points to itself": (
        STACK,
        "Stack a(3); a.push(t); s[t] = t; __syncthreads(); a.push(2 * t); y[t] = a.d[0] + a.d[1] + s[63 - t];",
        2 * T + 63,
    ),
    # ---- functions that are written out where they are called
    "a constant of another namespace": (
        ("namespace a { constexpr int W = 3; __device__ int f(int v) { __syncthreads(); return v * W; } }\n"
        "constexpr int W = 5;\nusing a::f;\n"),
        "int r = f(t); y[t] = r + W;",
        3 * T + 5,
    ),
    "an overload that comes later": (
        ("__device__ int g(long a) { return 1; }\n__device__ int f(int v) { __syncthreads(); return g(v); }\n"
        "__device__ int g(int a) { return 2; }\n"),
        "int r = f(t); y[t] = r;",
        np.full(64, 1),
    ),
    "a function's parameter that it changes": (
        "__device__ int f(int n) { n *= 2; __syncthreads(); return n; }\n",
        "int r = f(n); y[t] = r + n;",
        np.full(64, 15),
    ),
    "a vote on what is no whole number": ("", "y[t] = __any_sync(~0u, 0.5f * (t == 3));", np.full(64, 0)),
    "a tuple": (
        "#include <cuda/std/tuple>\n",
        "auto q = cuda::std::make_tuple(t, 2 * t); y[t] = cuda::std::get<1>(q); __syncthreads();",
        2 * T,
    ),
    # ---- plain loops
    "two buffers that change places": (
        "",
        ("__shared__ int u[64]; int *a = s, *b = u; a[t] = t; __syncthreads(); for (int i = 0; i < n; ++i) {"
        " b[t] = a[(t + 1) % 64] + 1; __syncthreads(); int* c = a; a = b; b = c; } y[t] = a[t];"),
        (T + 5) % 64 + 5,
    ),
    "a counter that wraps": (
        "",
        "for (unsigned char i = 250; i != 2; ++i) { s[t] += 1; __syncthreads(); y[t] += s[63 - t]; __syncthreads(); }",
        np.full(64, 36),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_a_hostile_kernel(name: str) -> None:
    before, body, expected = KERNELS[name]
    head = 'extern "C" __global__ void k(int* x, int* y, int n) { int t = threadIdx.x; __shared__ int s[64]; s[t] = 0; '
    module = jitload.load_inline(
        "hostile", cuda_sources=f"{before}{head}{body} }}", arch="cpu", extra_cuda_cflags=["-DQ=8"]
    )
    y = torch.zeros(64, dtype=torch.int32)
    module.k[1, 64](torch.from_numpy(X), y, 5)
    assert y.tolist() == list(expected)
