/* CUDA's arithmetic on the host: the same names, computed by the compiler and libm. */
#ifndef JITLOAD_CPU_MATH_H_
#define JITLOAD_CPU_MATH_H_

#include <math.h>
#include <time.h>

/* glibc has functions of its own by these names. */
#define __expf __jitload_expf
#define __exp10f __jitload_exp10f
#define __logf __jitload_logf
#define __log2f __jitload_log2f
#define __log10f __jitload_log10f
#define __sinf __jitload_sinf
#define __cosf __jitload_cosf
#define __tanf __jitload_tanf
#define __powf __jitload_powf
#define __sincosf __jitload_sincosf

/* ---- as in every device text without an #include ---------------------------------------------------------------- */

#define __JITLOAD_MIN_MAX(type)                                                         \
  __JITLOAD_INLINE type min(type a, type b) { return a < b ? a : b; }                   \
  __JITLOAD_INLINE type max(type a, type b) { return a > b ? a : b; }
__JITLOAD_MIN_MAX(int)
__JITLOAD_MIN_MAX(unsigned)
__JITLOAD_MIN_MAX(long)
__JITLOAD_MIN_MAX(unsigned long)
__JITLOAD_MIN_MAX(long long)
__JITLOAD_MIN_MAX(unsigned long long)
#undef __JITLOAD_MIN_MAX
__JITLOAD_INLINE unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
__JITLOAD_INLINE unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
__JITLOAD_INLINE unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
__JITLOAD_INLINE unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
__JITLOAD_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
__JITLOAD_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
__JITLOAD_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
__JITLOAD_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }
__JITLOAD_INLINE double min(float a, double b) { return __builtin_fmin(a, b); }
__JITLOAD_INLINE double min(double a, float b) { return __builtin_fmin(a, b); }
__JITLOAD_INLINE double max(float a, double b) { return __builtin_fmax(a, b); }
__JITLOAD_INLINE double max(double a, float b) { return __builtin_fmax(a, b); }

__JITLOAD_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
__JITLOAD_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
__JITLOAD_INLINE float rsqrt(float x) { return rsqrtf(x); }
__JITLOAD_INLINE float __saturatef(float x) { return x != x ? 0.0f : __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f); }
__JITLOAD_INLINE float __fdividef(float a, float b) { return a / b; }
__JITLOAD_INLINE float fdividef(float a, float b) { return a / b; }
__JITLOAD_INLINE float __expf(float x) { return __builtin_expf(x); }
__JITLOAD_INLINE float __exp10f(float x) { return __builtin_exp10f(x); }
__JITLOAD_INLINE float __logf(float x) { return __builtin_logf(x); }
__JITLOAD_INLINE float __log2f(float x) { return __builtin_log2f(x); }
__JITLOAD_INLINE float __log10f(float x) { return __builtin_log10f(x); }
__JITLOAD_INLINE float __sinf(float x) { return __builtin_sinf(x); }
__JITLOAD_INLINE float __cosf(float x) { return __builtin_cosf(x); }
__JITLOAD_INLINE float __tanf(float x) { return __builtin_tanf(x); }
__JITLOAD_INLINE float __powf(float x, float y) { return __builtin_powf(x, y); }
__JITLOAD_INLINE void __sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
__JITLOAD_INLINE float __frcp_rn(float x) { return 1.0f / x; }
__JITLOAD_INLINE float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
__JITLOAD_INLINE float __frsqrt_rn(float x) { return rsqrtf(x); }
__JITLOAD_INLINE float __fadd_rn(float a, float b) { return a + b; }
__JITLOAD_INLINE float __fsub_rn(float a, float b) { return a - b; }
__JITLOAD_INLINE float __fmul_rn(float a, float b) { return a * b; }
__JITLOAD_INLINE float __fdiv_rn(float a, float b) { return a / b; }
__JITLOAD_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__JITLOAD_INLINE double __dadd_rn(double a, double b) { return a + b; }
__JITLOAD_INLINE double __dmul_rn(double a, double b) { return a * b; }
__JITLOAD_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

/* ---- bits ------------------------------------------------------------------------------------------------------- */

__JITLOAD_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
__JITLOAD_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__JITLOAD_INLINE int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
__JITLOAD_INLINE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
__JITLOAD_INLINE int __ffs(int x) { return __builtin_ffs(x); }
__JITLOAD_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
__JITLOAD_INLINE unsigned __brev(unsigned x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
__JITLOAD_INLINE unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
__JITLOAD_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 15u;
    unsigned byte = (unsigned)(both >> (8 * (pick & 7u))) & 255u;
    if (pick & 8u) byte = byte & 128u ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
__JITLOAD_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  by &= 31u;
  return by == 0 ? high : high << by | low >> (32 - by);
}
__JITLOAD_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  by &= 31u;
  return by == 0 ? low : low >> by | high << (32 - by);
}
__JITLOAD_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
__JITLOAD_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
__JITLOAD_INLINE long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
__JITLOAD_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
__JITLOAD_INLINE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
__JITLOAD_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }

/* ---- conversions ------------------------------------------------------------------------------------------------ */

__JITLOAD_INLINE int __float_as_int(float x) { return __jitload_value<int>(__jitload_bits(x)); }
__JITLOAD_INLINE unsigned __float_as_uint(float x) { return __jitload_value<unsigned>(__jitload_bits(x)); }
__JITLOAD_INLINE float __int_as_float(int x) { return __jitload_value<float>(__jitload_bits(x)); }
__JITLOAD_INLINE float __uint_as_float(unsigned x) { return __jitload_value<float>(__jitload_bits(x)); }
__JITLOAD_INLINE long long __double_as_longlong(double x) { return __jitload_value<long long>(__jitload_bits(x)); }
__JITLOAD_INLINE double __longlong_as_double(long long x) { return __jitload_value<double>(__jitload_bits(x)); }

/* ---- time ------------------------------------------------------------------------------------------------------- */

__JITLOAD_INLINE long long clock64() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (long long)now.tv_sec * 1000000000ll + now.tv_nsec;
}
#define clock() ((clock_t)clock64())

#endif /* JITLOAD_CPU_MATH_H_ */
