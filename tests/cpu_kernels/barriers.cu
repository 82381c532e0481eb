// Kernels whose barriers become loops over the block, in blocks of (16, 4) threads: each feature that splitting has to keep.
#define R (int)(threadIdx.y * blockDim.x + threadIdx.x)
#define G (blockIdx.x * 64 + R)
#define N 64
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define SYNC __syncthreads();
#define FOR(i, n) for (int i = 0; i < (n); ++i)
constexpr int kTen = 10;
struct Pair { int a, b; __device__ int sum() { return a + b++; } };
__device__ int rank() { return threadIdx.x + threadIdx.y; }
__device__ void change(int& v) { v += threadIdx.x * 3; }
__device__ int own(int v) { static __shared__ int last[64]; last[threadIdx.x] = v; return last[threadIdx.x] * 2; }

extern "C" __global__ void k_loop(const int* x, int* y, int n) {
  __shared__ int s[64]; int sum = 0; for (int i = 0; i < n; i += 16) {
  s[R] = x[(i + R) % 64]; __syncthreads(); for (int j = 0; j < 16; ++j) sum += s[(R + j) % 64] * j;
  __syncthreads(); }
  y[G] = sum;
}

extern "C" __global__ void k_halving(const int* x, int* y, int n) {
  __shared__ int s[64]; s[R] = x[R]; for (int by = 32; by > 0; by /= 2) { __syncthreads();
  if (R < by) s[R] += s[R + by]; } if (R == 0) y[G] = s[0];
}

extern "C" __global__ void k_while(const int* x, int* y, int n) {
  __shared__ int s[64]; s[R] = x[R]; int by = 32; while (by > 0) { __syncthreads();
  if (R < by) s[R] += s[R + by]; by >>= 1; } __syncthreads(); y[G] = s[0] + by;
}

extern "C" __global__ void k_do(const int* x, int* y, int n) {
  extern __shared__ int s[]; int left = n / 8; do { s[R] = x[R] + left; __syncthreads(); y[G] += s[63 - R];
  __syncthreads(); left--; } while (left > 0);
}

extern "C" __global__ void k_uniform_branches(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = R; s[R] = a; if (blockIdx.x == 0) { __syncthreads(); a += s[63 - R];
  } else if (n > 1000) { a = 3; __syncthreads(); } else { a -= 1; } y[G] = a;
}

extern "C" __global__ void k_uniform_break(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = 0; for (int i = 0;; ++i) { if (i > 3) break; s[R] = i * R; __syncthreads();
  a += s[63 - R]; __syncthreads(); if (i == 1) { a += 100; continue; } a += i; } y[G] = a;
}

extern "C" __global__ void k_early_return(const int* x, int* y, int n) {
  __shared__ int s[64]; s[R] = 0; __syncthreads(); if (x[R] % 5 == 1) { y[G] = -7; return; } s[R] = x[R];
  __syncthreads(); int a = s[63 - R]; for (int i = 0; i < 3; ++i) { if (a % 7 == i) return; __syncthreads(); }
  y[G] = a;
}

extern "C" __global__ void k_all_return(const int* x, int* y, int n) {
  for (;;) { if (x[R] > -1) { y[G] = 5; return; } __syncthreads(); }
}

extern "C" __global__ void k_uniform_return(const int* x, int* y, int n) {
  if (n < 9) return; __shared__ int s[64]; s[R] = x[R]; __syncthreads(); if (n == 64) return; y[G] = s[9];
}

extern "C" __global__ void k_division(const int* x, int* y, int n) {
  if (R < 64) return; int q = n / (n - 64); __syncthreads(); y[G] = q;
}

extern "C" __global__ void k_pointer_to_a_local(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = x[R], b = 2; int* p = R % 3 ? &a : &b; s[R] = a; __syncthreads();
  *p += s[63 - R]; __syncthreads(); y[G] = a * 1000 + b + *p;
}

extern "C" __global__ void k_array(const int* x, int* y, int n) {
  __shared__ int s[64]; int a[4] = {R, 1, 2}; int* p = a; s[R] = x[R]; __syncthreads(); a[s[63 - R] & 3] += 5;
  __syncthreads(); for (int i = 0; i < 4; ++i) y[G] = y[G] * 9 + p[i];
}

extern "C" __global__ void k_struct(const int* x, int* y, int n) {
  __shared__ int s[64]; Pair p = {x[R], R}; s[R] = p.sum(); __syncthreads(); p.a += s[63 - R]; __syncthreads();
  y[G] = p.sum();
}

extern "C" __global__ void k_vector(const int* x, int* y, int n) {
  __shared__ int4 s[64]; int4 v = make_int4(x[R], R, 3, 4); s[R] = v; __syncthreads(); v.x += s[63 - R].y;
  __syncthreads(); y[G] = v.x + v.w;
}

extern "C" __global__ void k_several_declarators(const int* x, int* y, int n) {
  __shared__ int s[64], q[2][64]; int a = x[R], *p = &s[R], b = n + blockIdx.x, c = R * 3; *p = a;
  q[1][R] = c; __syncthreads(); y[G] = s[63 - R] + a + b + c + *p + q[1][R ^ 1];
}

extern "C" __global__ void k_comma(const int* x, int* y, int n) {
  __shared__ int s[64]; int a, b; a = R, b = a + 1; s[R] = b; __syncthreads(); ++b, a += s[63 - R]; y[G] = a * b;
}

extern "C" __global__ void k_reused_names(const int* x, int* y, int n) {
  __shared__ int s[64]; for (int i = R; i < 64; i += 64) s[i] = x[i]; __syncthreads(); int a = 0;
  for (int i = 0; i < 2; ++i) { for (int j = i; j < 3; ++j) a += s[(R + j) % 64]; __syncthreads(); }
  for (int i = 0; i < R % 3; ++i) { int a = 3; y[G] += a; } y[G] += a;
}

extern "C" __global__ void k_changed_between(const int* x, int* y, int n) {
  __shared__ int s[64]; int by = 1, a = R; for (int i = 0; i < 3; ++i) { int c = by + R; s[R] = c; by *= 3;
  __syncthreads(); a += c * by + s[63 - R]; __syncthreads(); } y[G] = a;
}

extern "C" __global__ void k_parameters(const int* x, int* y, int n) {
  __shared__ int s[64]; x += blockIdx.x; n -= R; s[R] = x[R / 2]; __syncthreads(); y[G] = s[63 - R] + n;
}

extern "C" __global__ void k_own_loops(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = 0; for (int i = 0; i < R; ++i) { if (i % 3 == 1) continue; if (i > 40) break; a +=
  i; }
  s[R] = a; __syncthreads(); while (true) { a += s[(a & 0x7fff) % 64]; if (a > 500) break; a += 10; } y[G] = a;
}

extern "C" __global__ void k_switch(const int* x, int* y, int n) {
  __shared__ int s[64]; int a; switch (R % 3) { case 0: a = 5; break; case 1: a = 7; default: a = 1; } s[R] = a;
  __syncthreads(); y[G] = s[63 - R];
}

extern "C" __global__ void k_macros(const int* x, int* y, int n) {
  __shared__ int s[N]; FOR(i, 2) { s[R] = MAX(x[R], i); SYNC y[G] += s[N - 1 - R]; SYNC }
}

extern "C" __global__ void k_functions(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = x[R], b = rank(); change(a); s[R] = a + own(b); __syncthreads(); change(b);
  y[G] = s[63 - R] + b;
}

extern "C" __global__ void k_lambda(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = 1; auto f = [&](int v) { a += v; return a; }; s[R] = f(R) + f(2); __syncthreads();
  y[G] = s[63 - R] + a;
}

extern "C" __global__ void k_reference(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = x[R]; int& r = a; r += 3; s[R] = r; __syncthreads(); y[G] = s[63 - R] + a;
}

extern "C" __global__ void k_blocks(const int* x, int* y, int n) {
  { __shared__ int s[64]; { int a = R; s[R] = a; __syncthreads(); a += s[63 - R]; y[G] = a; } __syncthreads(); }
}

extern "C" __global__ void k_shared_once(const int* x, int* y, int n) {
  __shared__ int count; if (R == 0) count = 0; __syncthreads(); atomicAdd(&count, x[R]); __syncthreads();
  y[G] = count;
}

extern "C" __global__ void k_shared_in_a_loop(const int* x, int* y, int n) {
  for (int i = 0; i < 3; ++i) { __shared__ int s[64]; if (i == 0) s[R] = R; __syncthreads();
  y[G] += s[63 - R]; __syncthreads(); }
}

extern "C" __global__ void k_constants(const int* x, int* y, int n) {
  __shared__ int s[64]; constexpr int W = 4; int a[W] = {1, 2}; s[R] = a[R % W] + kTen; __syncthreads(); y[G] =
  s[63 - R];
}

extern "C" __global__ void k_types(const int* x, int* y, int n) {
  using word = unsigned short; __shared__ word s[64]; const unsigned long long a = 1ull << R; word b = (word)R;
  s[R] = b;
  __syncthreads(); y[G] = (int)(a >> 3) + s[63 - R] + b;
}

extern "C" __global__ void k_unrolled(const int* x, int* y, int n) {
  __shared__ int s[64]; int a = 0;
  #pragma unroll
  for (int i = 0; i < 4; ++i) { s[R] = i;
  __syncthreads();
  #pragma unroll 2
  for (int j = 0; j < 2; ++j) a += s[(R + j) % 64];
  __syncthreads(); }
  y[G] = a;
}

extern "C" __global__ void k_uninitialized(const int* x, int* y, int n) {
  int a; int b; if (R > 3) a = 4; else a = 5; __syncthreads(); b = a; __syncthreads(); y[G] = b;
}

extern "C" __global__ void k_for_without_parts(const int* x, int* y, int n) {
  int i = 0; for (; i < 3;) { __syncthreads(); ++i; } int a = R; __syncthreads(); y[G] = i + a;
}

extern "C" __global__ void k_barrier_first(const int* x, int* y, int n) {
  __syncthreads(); int a = R; __syncthreads(); __syncthreads(); y[G] = a; __syncthreads();
}

__device__ int total = 17;
extern "C" __global__ void k_other_meaning(const int* x, int* y, int i) {
  static __shared__ int s[64];
  int a = total + x[R];
  i += R;
  int total = 4 + blockIdx.x;
  for (int j = 0; j < total; ++j) {
    s[R] = a + j;
    __syncthreads();
    a += s[63 - R] * i;
    __syncthreads();
  }
  y[G] = a;
}

#define FULL 0xffffffffu
#define WARP_SIZE 32
__device__ int warp_sum(int value) {
#pragma unroll
  for (int by = WARP_SIZE / 2; by > 0; by >>= 1) value += __shfl_down_sync(FULL, value, by);
  return value;
}
__device__ __forceinline__ int block_sum(int value, int* scratch) {
  int sum = warp_sum(value);
  if (R % 32 == 0) scratch[R / 32] = sum;
  __syncthreads();
  int total = 0;
  for (int i = 0; i < 2; ++i) total += scratch[i];
  __syncthreads();
  return total;
}
__device__ int numbered(int value) {
  __shared__ int order[64];
  order[R] = value;
  __syncthreads();
  value = order[(R + 1) % 64];
  __syncthreads();
  return value;
}
__device__ void meet() { __syncthreads(); }
extern "C" __global__ void k_functions_that_wait(const int* x, int* y, int n) {
  __shared__ int scratch[2];
  int value = x[R], sum = 3;
  value += block_sum(value * 2, scratch) / 7 + sum;
  int other = numbered(value) - numbered(numbered(value + 1));
  meet();
  sum = block_sum(R, scratch);
  for (int i = 0; i < 2; ++i) value += warp_sum(i * R);
  y[G] = value + sum * 3 + other;
}
extern "C" __global__ void k_shuffles(const int* x, int* y, int n) {
  int a = x[R];
  short b = R * 3;
  double c = R * 0.5;
  unsigned long long d = 1ull << (R % 60);
  int e = __shfl_sync(~0u, a, 3) + __shfl_sync(0xffffffff, a, R % 7, 8);
  float f = __shfl_xor_sync(FULL, (float)c, 5);
  b = __shfl_up_sync(FULL, b, 2, 16);
  c += __shfl_down_sync(FULL, c, R % 3);
  d ^= __shfl_xor_sync(FULL, d, 31);
  __syncwarp();
  y[G] = a + b + (int)(4 * c) + (int)(d >> 3) + e + (int)f;
}
extern "C" __global__ void k_votes(const int* x, int* y, int n) {
  if (x[R] % 9 == 4) return;
  unsigned who = __ballot_sync(FULL, x[R] % 3 == 0);
  int any = __any_sync(FULL, x[R] == 37), all = 0;
  all = __all_sync(FULL, x[R] < 90);
  int up = __shfl_xor_sync(FULL, R, 0);
  y[G] = who % 1000003 + any * 4 + all * 8 + up;
}
