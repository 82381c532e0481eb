"""Kernels with loops over strides: by name, how many of their loops have their turns outside, and the body.

Each is free of races, so that the order of threads changes nothing. A body gets `x` (floats), `k` (integers, a
permutation of 0 … 5000), `y` and `z` (what comes out, 2 * 1,500 elements), `n`, and stands between HEAD
and FOOT, which writes `sum`.
"""
# ruff: noqa: E501, ISC004  a table: each kernel on its line

from __future__ import annotations

HEAD = """
  const int rank = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int all = blockDim.x * blockDim.y * blockDim.z, place = blockIdx.x * all + rank;
  float sum = 0; __shared__ float s[1024]; __shared__ int h[64];
"""
FOOT = " __syncthreads(); s[rank] = sum; __syncthreads(); y[place] = s[all - 1 - rank] + sum;"
BEFORE = r"""
struct Pair { float a, b; __device__ void add(float v) { a += v; b = fmaxf(b, v); } };
struct Wide { int n, step; float by; };
constexpr int kStep = 64;
enum { kFive = 5 };
#define EACH(i, n) for (int i = threadIdx.x; i < (n); i += blockDim.x)
__constant__ float kept[4] = {1, 2, 3, 4};
__device__ int begin() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ float twice(float v) { return v * 2; }
__device__ void into(float& to, float v) { to += v; }
__device__ void counted(int& i) { i += 0; }
__device__ float plain_sum(const float* x, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
  return sum;
}
"""
G = "blockIdx.x * blockDim.x + threadIdx.x"
S = "gridDim.x * blockDim.x"
KERNELS: dict[str, tuple[int, str]] = {
    # ---- spellings
    "grid": (1, f"for (int i = {G}; i < n; i += {S}) sum += x[i];"),
    "block": (1, "for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];"),
    "largest": (1, "sum = -1e30f; for (int i = threadIdx.x; i < n; i += blockDim.x) sum = fmaxf(sum, x[i]);"),
    "named": (1, "const int t = threadIdx.x, by = blockDim.x; for (int i = t; i < n; i += by) sum += x[i] * t;"),
    "by_rank": (1, "for (int i = rank; i < n; i += all) sum += x[i];"),
    "unsigned_": (1, f"for (unsigned i = {G}; i < n; i += {S}) sum += x[i];"),
    "size_t_": (1, f"for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += {S}) sum += x[i];"),
    "long_long": (1, f"for (long long i = {G}; i < (long long)n; i += (long long){S}) sum += x[i];"),
    "auto_": (1, f"for (auto i = {G}; i < n; i += {S}) sum += x[i];"),
    "narrow": (1, "for (short i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];"),
    "called": (1, f"for (int i = begin(); i < n; i += {S}) sum += x[i];"),
    "turned": (1, "for (int i = threadIdx.x; n > i; i = i + blockDim.x) sum += x[i];"),
    "reaching": (1, "for (int i = threadIdx.x; i <= n - 1; i += blockDim.x) sum += x[i];"),
    "reached": (1, "for (int i = threadIdx.x; n - 1 >= i; i += blockDim.x) sum += x[i];"),
    "counter_before": (1, "int i; for (i = threadIdx.x; i < n; i += blockDim.x) sum += x[i]; sum += i;"),
    "counter_given": (1, "int i = threadIdx.x; for (; i < n; i += blockDim.x) { sum += x[i]; } sum += i * 3;"),
    "while_": (1, f"int i = {G}; while (i < n) {{ sum += x[i]; i += {S}; }} sum += i;"),
    "while_plus": (1, "unsigned i = threadIdx.x; while (i < n) { sum += x[i]; i = i + blockDim.x; }"),
    "constant_step": (1, "for (int i = rank; i < n; i += kStep) sum += x[i];"),
    "small_step": (1, "for (int i = rank; i < n; i += 7) sum += x[i];"),
    "in_macro": (1, "EACH(i, n) sum += x[i];"),
    "unrolled": (1, "\n#pragma unroll 4\nfor (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];"),
    "offset": (1, "for (int i = threadIdx.x + 3; i < n - 2; i += blockDim.x) sum += x[i - 3] * x[i + 2];"),
    "lanes": (1, "for (int i = rank % 32; i < n; i += 32) sum += x[i] * (rank / 32);"),
    "rows_of_warps": (1, "int lane = rank & 31, row = rank >> 5; for (int i = lane; i < n; i += 32) sum += x[row * 8 + i];"),
    "own_limit": (1, "int m = n / (1 + rank / 8); for (int i = threadIdx.x; i < m; i += blockDim.x) sum += x[i];"),
    "read_limit": (1, "int m = k[place % 64] % (n + 1); for (int i = rank; i < m; i += all) sum += x[i];"),
    "own_start": (1, "for (int i = k[rank]; i < n; i += all) sum += x[i];"),
    "every_second": (0, "for (int i = 2 * rank; i + 1 < n + 1; i += 2 * all) sum += x[i] + x[i + 1];"),
    "backwards": (1, "for (int i = all - rank; i < n; i += all) sum += x[i];"),
    "rows": (1, "for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * (threadIdx.y + 1);"),
    "matrix": (1, "for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * 2 + threadIdx.y * 3 + i];"),
    "matrix_of_warps": (1, "int row = rank / 32; for (int i = rank % 32; i < n; i += 32) sum += x[row * 3 + i] * x[i + row];"),
    "matrix_of_own": (1, "for (int i = rank % 8; i < n; i += 8) sum += x[k[rank] + i] * k[(rank & 3) + i];"),
    "matrix_far": (1, "unsigned row = 4294967290u; EACH(i, n) sum += x[row + i + 6];"),
    "matrix_far_int": (1, "int row = 2147483000 + n; EACH(i, n) sum += x[(row + i) & 1023] + (row - n + i < 0);"),
    "matrix_wraps": (1, "unsigned row = 4294967196u; EACH(i, n) sum += x[i + row + 100u];"),
    "matrix_wide": (1, "long long row = blockIdx.x; EACH(i, n) sum += x[row * 3 + i] - x[i - row + 1];"),
    "matrix_twice": (1, "EACH(i, n) { sum += x[blockIdx.x * 4 + i]; if (i & 1) sum += x[blockIdx.x * 4 + i] * x[i + i]; }"),
    "matrix_hidden": (1, "int row = 3; EACH(i, n) { int row = k[i] & 7; sum += x[row + i]; }"),
    "matrix_hidden_later": (1, "int row = 3, q = 1; EACH(i, n) { sum += x[row + i]; int q = 2, row = k[i] & 7; sum += x[row + q]; }"),
    "matrix_changed": (1, "int row = 3; EACH(i, n) { sum += x[row + i]; row = k[i] & 7; }"),
    "matrix_shared": (1, "s[rank] = rank; EACH(i, n) sum += x[(int)s[rank] + i];"),
    "matrix_times": (1, "EACH(i, n / 3) sum += x[i * 3 + 1] + x[1 + 2 * i] + x[n - i] + x[n + -i];"),
    "matrix_signed": (1, "EACH(i, n) sum += x[i + -1 + 1] + x[2 + i - 1] + x[-2 + i + 2];"),
    "matrix_written": (1, "EACH(i, n < 1400 ? n : 1400) if (!blockIdx.x && !threadIdx.y && !threadIdx.z) z[blockDim.x + i] = k[i];"),
    "matrix_divided": (1, "int d = n / 2; EACH(i, n) if (d) sum += x[d / d + i];"),
    "limit_divided": (1, "int d = n / 100 + 1; EACH(i, n / d) sum += x[i];"),
    "step_divided": (0, "int d = n / 2; for (int i = rank; i < d; i += 640 / d + 1) sum += x[i];"),
    "structure": (1, "for (int i = threadIdx.x; i < w.n; i += w.step) sum += x[i] * w.by;"),
    # ---- bodies
    "two_sums": (1, "float b = 0; EACH(i, n) { sum += x[i]; b += x[i] * x[i]; } sum += b * 2;"),
    "pair": (1, "Pair p; p.a = 0; p.b = -9; EACH(i, n) p.add(x[i]); sum = p.a + p.b;"),
    "array": (1, "float a[4] = {}; EACH(i, n) a[i & 3] += x[i]; sum = a[0] + a[1] * 2 - a[2] + a[3];"),
    "reference": (1, "EACH(i, n) into(sum, x[i]);"),
    "local": (1, "EACH(i, n) { float v = x[i] * 2; const int j = i / 2; v += x[j]; sum = sum * 0.5f + v; }"),
    "continued": (1, "EACH(i, n) { if (k[i] % 3 == 0) continue; sum += x[i]; }"),
    "guarded": (1, "EACH(i, n) if (k[i] % 3 == 0) sum += x[i]; else sum -= x[i] / 2;"),
    "inner": (1, "EACH(i, n) for (int j = 0; j < 5; ++j) { if (j == 3) break; sum += x[i + j]; }"),
    "inner_while": (1, "EACH(i, n) { int j = k[i]; while (j > 1) { j /= 2; if (j % 5 == 4) continue; sum += x[j]; } }"),
    "switched": (1, "EACH(i, n) { switch (k[i] % 3) { case 0: sum += x[i]; break; case 1: continue; default: sum -= 1; } }"),
    "lambda": (1, "EACH(i, n) { auto f = [&](float v) { sum += v * i; }; f(x[i]); }"),
    "divided": (1, "EACH(i, n) sum += k[i] / (i + 1);"),
    "whole": (1, "int a = 0; unsigned b = 1; EACH(i, n) { a += k[i]; b = b * 31 + k[i]; } sum = a % 1000 + b % 1000;"),
    "doubles": (1, "double a = 0; EACH(i, n) a += x[i]; sum = a;"),
    "bytes": (1, "const unsigned char* c = (const unsigned char*)k; int a = 0; EACH(i, n) a += c[i]; sum = a;"),
    "vectors": (1, "const float4* v = (const float4*)x; EACH(i, n / 4) { float4 a = v[i]; sum += a.x - a.y + a.z * a.w; }"),
    "writes": (1, "EACH(i, n < 1500 ? n : 1500) if (!blockIdx.x && !threadIdx.y && !threadIdx.z) z[i] = k[i] * 2;"),
    "constants": (1, "EACH(i, n) sum += x[i] * kept[i & 3];"),
    "functions": (1, "EACH(i, n) sum += twice(x[i]) + begin();"),
    "shared": (2, "EACH(i, 64) h[i] = i * 2; __syncthreads(); EACH(i, n) sum += h[i & 63] * x[i];"),
    "histogram": (2, "EACH(i, 64) h[i] = 0; __syncthreads(); EACH(i, n) atomicAdd(&h[k[i] & 63], 1); __syncthreads();"
                     " sum = h[rank & 63];"),
    "pointer_inside": (1, "EACH(i, n) { const float* p = x + i; sum += *p; ++p; sum += *p; }"),
    "index_by_value": (1, "EACH(i, n) { auto j = i; j += 2; sum += x[j]; }"),
    "fixed_sum": (1, "const float by = 0.5f; EACH(i, n) sum = sum * by + x[i];"),
    "many": (4, "EACH(i, n) sum += x[i]; EACH(i, n) sum -= x[i] / 2; float m = sum; EACH(i, n) m = fminf(m, x[i]);"
                " EACH(j, n) sum += x[j] * m;"),
    # ---- around
    "if_same": (1, "if (n > 50) { EACH(i, n) sum += x[i]; } else sum = 3;"),
    "if_own": (0, "if (rank > 5) EACH(i, n) sum += x[i];"),
    "in_loop": (1, "for (int r = 0; r < 3; ++r) EACH(i, n - r) sum = sum * 0.75f + x[i + r];"),
    "in_blocks": (1, "for (int r = blockIdx.x; r < 5; r += gridDim.x) { float a = 0; EACH(i, n) a += x[i + r]; sum += a; }"),
    "in_jumping_loop": (1, "for (int r = 0; r < 4; ++r) { if (r == n % 3) continue; EACH(i, n) sum += x[i + r]; }"),
    "in_own_loop": (1, "for (int r = threadIdx.y; r < 3; r += blockDim.y) EACH(i, n) sum += x[i + r];"),
    "behind_return": (1, "if (rank % 7 == 3) { y[place] = 1; s[rank] = 2; return; } EACH(i, n) sum += x[i];"),
    "behind_return_of_all": (1, "if (n == 17) return; EACH(i, n) sum += x[i];"),
    "behind_reference": (0, "float& r = s[rank]; r = 1; EACH(i, n) r += x[i]; sum = r;"),
    "in_function": (0, "sum = plain_sum(x, n);"),
    "with_barriers": (1, "for (int r = 0; r < 3; ++r) { EACH(i, n) sum += x[i]; s[rank] = sum; __syncthreads();"
                         " sum += s[all - 1 - rank]; __syncthreads(); }"),
    "shuffled": (1, "EACH(i, n) sum += x[i]; for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);"),
    "in_parts": (1, "EACH(i, n) sum += x[i]; s[rank] = sum; __syncthreads();"
                    " for (int i = 1; i < (blockDim.x + 7) / 8; ++i) sum = i % 2 ? fmaxf(sum, s[i]) : sum + s[i] * i; __syncthreads();"),
    "in_own_parts": (1, "EACH(i, n) sum += x[i]; s[rank] = sum; __syncthreads();"
                        " for (int i = 0; i < blockDim.x; ++i) sum += s[(i + rank) % all]; __syncthreads();"),
    "shared_parts_written": (0, "s[rank] = 1; for (int i = 0; i < blockDim.x; ++i) z[place] += k[i]; sum = z[place];"),
    "tree": (0, "s[rank] = x[rank]; __syncthreads(); for (int by = blockDim.x / 2; by > 0; by >>= 1) {"
                " if (threadIdx.x < by) s[rank] += s[rank + by]; __syncthreads(); } sum = s[rank - threadIdx.x];"),
    "tree_named": (1, "EACH(i, n) sum += x[i]; const int t = threadIdx.x; s[rank] = sum; __syncthreads();"
                      " for (unsigned by = blockDim.x / 2; by > 0; by /= 2) { if (t < by) { const float other = s[rank + by];"
                      " s[rank] = fmaxf(s[rank], other); sum += 1; } __syncthreads(); } sum += s[rank - t];"),
    "guard": (0, "s[rank] = 1; int by = n - 50; const int t = threadIdx.x; __syncthreads(); if (t < by) s[rank] = t;"
                 " __syncthreads(); if (threadIdx.x < by) s[rank] += 4; __syncthreads(); sum = s[rank];"),
    "guard_of_others": (0, "s[rank] = 1; float by = n * 0.37f; long long m = n * 1000000ll; __syncthreads(); if (threadIdx.x < by)"
                           " s[rank] += 2; __syncthreads(); if (threadIdx.x < m) s[rank] += 4; __syncthreads();"
                           " if (threadIdx.x < n / 2 + 1) { s[rank] += 8; } __syncthreads(); if (threadIdx.x < 3) s[rank] += 16;"
                           " else s[rank] += 32; __syncthreads(); sum = s[rank];"),
    # ---- as they are
    "broken": (0, "EACH(i, n) { if (k[i] == 700) break; sum += x[i]; }"),
    "returning": (0, "EACH(i, n) { if (k[i] == 700) { y[place] = 7; return; } sum += x[i]; }"),
    "counter_changed": (0, "EACH(i, n) { sum += x[i]; if (k[i] % 5 == 0) ++i; }"),
    "counter_given_away": (0, "EACH(i, n) { int* p = &i; sum += x[*p]; }"),
    "limit_changed": (0, "int m = n; for (int i = rank; i < m; i += all) { sum += x[i]; if (k[i] % 9 == 0) --m; }"),
    "limit_in_memory": (0, "z[place] = n; for (int i = rank; i < z[place]; i += all) { sum += x[i]; z[place] -= 1; }"),
    "step_changed": (0, "int b = all; for (int i = rank; i < n; i += b) { sum += x[i]; b += 1; }"),
    "step_of_its_own": (0, "for (int i = rank; i < n; i += rank + 1) sum += x[i];"),
    "downwards": (0, "for (int i = n - 1 - rank; i >= 0; i -= all) sum += x[i];"),
    "unequal": (0, "for (int i = rank; i != rank + 3 * all; i += all) sum += x[i % (n + 1)];"),
    "two_counters": (0, "for (int i = rank, j = 0; i < n; i += all, ++j) sum += x[i] * j;"),
    "two_conditions": (0, "for (int i = rank; i < n && sum < 30; i += all) sum += x[i];"),
    "pointers": (0, "for (const float* p = x + rank; p < x + n; p += all) sum += *p;"),
    "while_continue": (0, "int i = rank; while (i < n) { if (k[i] % 3 == 0) { i += 2 * all; continue; } sum += x[i]; i += all; }"),
    "do_": (0, "int i = rank; do { sum += x[i]; i += all; } while (i < n);"),
    "floats": (0, "for (float i = rank; i < n; i += all) sum += x[(int)i];"),
    "same_start": (0, "for (int i = blockIdx.x; i < n; i += gridDim.x) sum += x[i] * rank;"),
    "counter_by_reference": (1, "EACH(i, n) { int j = i; counted(j); sum += x[j]; }"),
    "hidden_counter": (0, "EACH(i, n) { for (int i = 0; i < 2; ++i) sum += x[i]; }"),
    # ---- counters that wrap or seem to
    "wraps": (1, "for (unsigned char i = rank; i < 250; i += 3) { sum += x[i]; }"),
    "below_zero": (1, "for (int i = rank - 20; i < n; i += all) sum += i < 0 ? 1 : x[i];"),
    "below_zero_unsigned": (1, "for (int i = rank - 20; i < (unsigned)n; i += all) sum += x[i + 20];"),
    "far_limit": (1, "unsigned m = 4294967295u; for (unsigned i = 4294960000u + rank; i < m - 2000; i += all) sum += x[i & 1023];"),
    "far_start": (1, "for (int i = 2147480000 + rank; i < 2147483000; i += all) sum += x[i & 1023];"),
    "no_turn": (1, "for (int i = rank + n; i < n; i += all) sum += x[i]; sum += 1;"),
}  # fmt: skip


def write_kernel(name: str, body: str, *, waits: bool) -> str:
    """Write a kernel; one that does not wait ends without a barrier."""
    foot = FOOT if waits else " y[place] = sum;"
    parameters = "const float* x, const int* k, float* y, int* z, Wide w, int n"
    return f'extern "C" __global__ void {name}({parameters}) {{{HEAD}{body}{foot}\n}}\n'
