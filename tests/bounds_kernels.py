"""Kernels for the tests of bounds: what is known of each pointer, and the arguments of random calls."""

# ruff: noqa: ISC004
from __future__ import annotations

# `exact`, `at most` and `unknown` pointers of each kernel, in this order, and its code. `i` is the thread in the grid.
KERNELS = {
    "guarded": ("x y", "", "", "const float* x, float* y, int n", "if (i < n) y[i] = x[i];"),
    "unguarded": ("x y", "", "", "const float* x, float* y", "y[i] = x[i];"),
    "returning": ("x y", "", "", "const float* x, float* y, int n", "if (i >= n) return; y[i] = x[i];"),
    "of_64_bits": ("x y", "", "", "const float* x, float* y, long long n",
        "long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x; if (k < n) y[k] = x[k];"),
    "unsigned_size": ("x y", "", "", "const float* x, float* y, unsigned n",
        "unsigned k = blockIdx.x * blockDim.x + threadIdx.x; if (k < n) y[k] = x[k];"),
    "block_of_two": ("x y", "", "", "const float* x, float* y, long long block",
        "for (int k = 0; k < 2; ++k) y[k + (int)block * 2] = x[k];"),
    "strided_loop": ("x y", "", "", "const float* x, float* y, int n",
        "for (int k = i; k < n; k += blockDim.x * gridDim.x) y[k] = x[k];"),
    "rows": ("x y", "", "", "const float* x, float* y, int m, int n, long long stride",
        "int r = blockIdx.y * blockDim.y + threadIdx.y; if (r < m && i < n) y[r * n + i] = x[r * stride + i];"),
    "row_sum": ("x y", "", "", "const float* x, float* y, int n",
        "float s = 0; for (int k = threadIdx.x; k < n; k += blockDim.x) s += x[blockIdx.x * n + k];\n"
        "if (threadIdx.x == 0) y[blockIdx.x] = s;"),
    "product": ("a b c", "", "", "const float* a, const float* b, float* c, int m, int n, int k",
        "int r = blockIdx.y * blockDim.y + threadIdx.y; if (r >= m || i >= n) return; float s = 0;\n"
        "for (int j = 0; j < k; ++j) s += a[r * k + j] * b[j * n + i]; c[r * n + i] = s;"),
    "vectors": ("x y", "", "", "const float4* x, float4* y, int n", "if (i < n / 4) y[i] = x[i];"),
    "pairs": ("x y", "", "", "const float* x, float2* y, unsigned n",
        "if (i < n >> 1) y[i] = make_float2(x[2 * i], x[2 * i + 1]);"),
    "stencil": ("x y", "", "", "const float* x, float* y, int n",
        "if (i >= 1 && i < n - 1) y[i] = x[i - 1] + x[i] + x[i + 1];"),
    "halo": ("x y", "", "", "const float* x, float* y, int n", "if (i < n) y[i] = x[i + 3];"),
    "backwards": ("x y", "", "", "const float* x, float* y, int n", "if (i < n) y[i] = x[n - 1 - i];"),
    "fixed_loop": ("x y", "", "", "const float* x, float* y, int n",
        "if (i < n) { float s = 0; for (int k = 0; k < 5; ++k) s += x[i * 5 + k]; y[i] = s; }"),
    "countdown": ("x y", "", "", "const float* x, float* y, int n",
        "if (i == 0) { float s = 0; for (int k = n - 1; k >= 0; --k) s += x[k]; y[0] = s; }"),
    "nested": ("x y", "", "", "const float* x, float* y, int m, int n",
        "float s = 0; for (int r = blockIdx.x; r < m; r += gridDim.x)\n"
        "for (int c = threadIdx.x; c < n; c += blockDim.x) { s += x[r * n + c]; y[r * n + c] = s; }"),
    "pointers": ("x y", "", "", "const float* x, float* y, int n",
        "x += blockIdx.x * n; y += blockIdx.x; float s = 0;\n"
        "for (int k = 0; k < n; ++k) s += *x++; if (threadIdx.x == 0) *y = s;"),
    "atomic": ("x y", "", "", "const int* x, int* y, int n", "if (i < n) atomicAdd(&y[0], x[i]);"),
    "bytes": ("x y", "", "", "const unsigned char* x, unsigned char* y, int n", "if (i < n) y[i] = x[i];"),
    "parameter_guard": ("", "x y", "", "const float* x, float* y, int n, int m",
        "if (m > 3 && i < n) y[i] = x[i]; else if (m < 2 && i < n) y[i + 1] = x[i + 2];"),
    "shared_sum": ("x y", "", "s", "const float* x, float* y, int n",
        "__shared__ float s[256]; s[threadIdx.x] = i < n ? x[i] : 0; __syncthreads();\n"
        "for (int k = blockDim.x / 2; k > 0; k >>= 1) {\n"
        "  if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); }\n"
        "if (threadIdx.x == 0) y[blockIdx.x] = s[0];"),
    "tiles": ("", "x y s", "", "const float* x, float* y, int n",
        "__shared__ float s[8][9]; int c = blockIdx.x * 8 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;\n"
        "if (c < n && r < n) s[threadIdx.y][threadIdx.x] = x[r * n + c]; __syncthreads();\n"
        "c = blockIdx.y * 8 + threadIdx.x; r = blockIdx.x * 8 + threadIdx.y;\n"
        "if (c < n && r < n) y[r * n + c] = s[threadIdx.x][threadIdx.y];"),
    "called": ("x y", "", "", "const float* x, float* y, int n", "if (i < n) y[index_of(i, n)] = twice(x[i]);"),
    "not_first": ("x y", "", "", "const float* x, float* y", "if (blockIdx.x) y[blockIdx.x - 1] = x[threadIdx.x];"),
    "two_returns": ("x y", "", "", "const float* x, float* y, int n, int m",
        "if (i >= n) return; if (i < m) return; y[i - m] = x[i];"),
    "one_of_three": ("", "y", "", "float* y, int n, int m",
        "if (i < n) y[i] = 1; else if (i < m) y[2 * i] = 1; else y[0] = 2;"),
    "every_second": ("y", "", "", "float* y, int n, int m",
        "if (i == 0) for (int k = n - 1; k >= m; k -= 2) y[k] = 1;"),
    "opposite": ("y", "", "", "float* y, int n",
        "for (int k = n - 1 - i; k >= 0; k -= blockDim.x * gridDim.x) y[k] = 1;"),
    "rounded": ("y", "", "x", "const float* x, float* y, int n, int m",
        "y[n / 3 + i] = x[n % 4 + threadIdx.x]; y[m / 2] = 1;"),
    "wide_product": ("y", "", "", "float* y, long long n, long long m",
        "long long k = i; if (k < m) y[k * n + 3] = 1;"),
    "across": ("y", "", "", "float* y, int n",
        "int k = threadIdx.x + threadIdx.y; if (k < n) y[k + blockIdx.y - blockIdx.y] = 1;"),
    # Arrays in shared memory, some of which are too small for some blocks.
    "mirrored": ("x y s", "", "", "const float* x, float* y",
        "__shared__ float s[40]; s[threadIdx.x] = x[i]; __syncthreads(); y[i] = s[blockDim.x - 1 - threadIdx.x];"),
    "dynamic": ("x y d", "", "", "const float* x, float* y, int n",
        "extern __shared__ float d[]; d[threadIdx.x + n] = x[i]; __syncthreads(); y[i] = d[n];"),
    "two_parts": ("x y parts", "", "", "const float4* x, float* y, int n",
        "extern __shared__ float4 parts[]; float* u = (float*)(parts + n);\n"
        "if (threadIdx.x < n) parts[threadIdx.x] = x[threadIdx.x];\n"
        "u[threadIdx.x] = i; __syncthreads(); y[i] = u[threadIdx.x];"),
    "padded_rows": ("x y s", "", "", "const float* x, float* y",
        "__shared__ float s[30]; s[threadIdx.y * 7 + threadIdx.x] = x[threadIdx.x]; __syncthreads();\n"
        "y[threadIdx.x] = s[threadIdx.y * 7 + threadIdx.x];"),
    "through_pointer": ("x", "y", "s", "const float* x, float* y",
        "__shared__ float s[64]; s[threadIdx.x] = x[i]; __syncthreads(); y[i] = load(s, threadIdx.x);"),
    "chosen_array": ("y", "", "x s t", "const float* x, float* y, int n",
        "__shared__ float s[64], t[64]; (n > 3 ? s : t)[threadIdx.x] = i; __syncthreads();\n"
        "y[i] = (n > 3 ? s : t)[threadIdx.x] + x[n % 3];"),
    "by_memory": ("j y", "", "s", "const int* j, int* y",
        "__shared__ int s[64]; s[threadIdx.x] = i; __syncthreads(); y[i] = s[j[i] & 63];"),
    # Values in memory decide: the extents are an upper limit.
    "masked": ("m", "y", "", "const int* m, float* y, int n", "if (i < n && m[i]) y[i] = 1;"),
    "broken_off": ("", "x", "y", "const int* x, int* y, int n",
        "int k = 0; for (; k < n; ++k) if (x[k]) break; if (i == 0) y[k] = k;"),
    "triangle": ("", "", "x", "float* x, int n", "if (i < n) for (int k = 0; k <= i; ++k) x[i * n + k] = 0;"),
    "continued": ("", "y", "", "float* y, int n, int m",
        "for (int k = i; k < n; k += blockDim.x * gridDim.x) { if (k == m) continue; y[k] = 1; }"),
    "left_in_loop": ("", "y", "", "float* y, int n, int m",
        "for (int k = i; k < n; k += blockDim.x * gridDim.x) { if (k == m) return; y[k] = 1; } y[i] = 2;"),
    # The index or the pointer does not follow from threads, blocks and parameters.
    "gathered": ("j y", "", "x", "const float* x, const int* j, float* y, int n", "if (i < n) y[i] = x[j[i]];"),
    "selected": ("z", "", "x y", "float* x, float* y, const int* z, int n",
        "if (i < n) { float* p = z[i] ? x : y; p[i] = 1; }"),
    "wrapped": ("", "", "x y", "const float* x, float* y, unsigned n",
        "unsigned k = threadIdx.x - 1; if (k < n) y[k] = x[k];"),
    "lanes": ("", "", "x y", "const float* x, float* y",
        "int lane = threadIdx.x % 32, warp = threadIdx.x >> 5; y[blockIdx.x * 2 + warp] = x[lane];"),
    "modulo": ("y", "", "x", "const float* x, float* y, int n", "y[i] = x[i % n];"),
    "stored_in_loop": ("y", "", "x", "float* x, float** y, int n",
        "float* p = x; for (int k = 0; k < n; ++k) { y[k] = p; p += 2; }"),
    "divided_by_loop": ("y", "", "x", "const float* x, float* y, int n",
        "float s = 0; for (int k = 0; k < n; ++k) s += x[k / 4]; y[i] = s;"),
    "block_steps": ("", "", "y", "float* y, int n", "for (int k = 0; k < n; k += blockDim.x) y[k + threadIdx.x] = 1;"),
    "not_linear": ("", "", "y", "float* y, int n", "if (i < n) y[i * i] = 1;"),
    "short_index": ("", "", "y", "float* y", "y[(short)i] = 1;"),
    "swapped": ("", "", "x y", "float* x, float* y, int n",
        "for (int k = 0; k < n; ++k) { x[k] = 1; float* p = x; x = y; y = p; }"),
    "last_pointer": ("y", "", "x", "float* x, float* y, int n",
        "float* p; for (int k = 0; k < n; ++k) { if (k > 0) *p = 1; p = x + k * 3; } y[i] = 1;"),
    "passed": ("", "y", "x", "float* x, float* y, int n", "if (i < n) y[i] = load(x, i);"),
}  # fmt: skip

_HEAD = """
__device__ int index_of(int i, int n) { return 2 * i + n; }
__device__ float twice(float x) { return x + x; }
__shared__ int leaders[6];
__device__ __noinline__ float load(const float* x, int i) { return x[i]; }
"""
SOURCE = _HEAD + "".join(
    f'extern "C" __global__ void {name}({parameters}) {{\nint i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n'
    for name, (_, _, _, parameters, body) in KERNELS.items()
)
