/* CUDA's math functions, computed by the compiler, libm and jitload. */
#pragma once

#include "jitload_cpu_float_math.h"

/* <math.h> defines exp(float) and others by these built-ins; use ours instead. */
#define __builtin_expf __jitload_inline_expf
#define __builtin_exp2f __jitload_inline_exp2f
#define __builtin_logf __jitload_inline_logf
#define __builtin_log2f __jitload_inline_log2f
#define __builtin_log10f __jitload_inline_log10f
#define __builtin_tanhf __jitload_inline_tanhf
#include <math.h>
#undef __builtin_expf
#undef __builtin_exp2f
#undef __builtin_logf
#undef __builtin_log2f
#undef __builtin_log10f
#undef __builtin_tanhf

/* glibc has other functions with these names, so CUDA's functions get new names. */
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
#define __tanhf __jitload_tanhf

/* Keep a product from being contracted with a sum, as CUDA promises for __fmul_rn and similar functions. */
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_fence(__jitload_t value) {
#if __GNUC__ >= 12
  return __builtin_assoc_barrier(value);
#elif defined(__x86_64__)
  __asm__("" : "+x"(value));
  return value;
#else
  __asm__("" : "+w"(value));
  return value;
#endif
}

/* ---- minimum and maximum --------------------------------------------------------------------------------------- */

/* The minimum or maximum of a number and a NaN is the number. */
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_min(__jitload_t a, __jitload_t b) {
  const __jitload_t least = a < b ? a : b;
  return b != b ? a : least;
}
template <class __jitload_t>
__JITLOAD_INLINE __jitload_t __jitload_max(__jitload_t a, __jitload_t b) {
  const __jitload_t most = a > b ? a : b;
  return b != b ? a : most;
}
#define __JITLOAD_MIN_MAX(type, first, second)                                       \
  __JITLOAD_REPLACEABLE                                                              \
  __JITLOAD_INLINE type min(first a, second b) { return __jitload_min<type>(a, b); } \
  __JITLOAD_REPLACEABLE                                                              \
  __JITLOAD_INLINE type max(first a, second b) { return __jitload_max<type>(a, b); }
/* The minimum or maximum of a signed and an unsigned number takes both as unsigned. */
#define __JITLOAD_INTEGER_MIN_MAX(type)                          \
  __JITLOAD_MIN_MAX(type, type, type)                            \
  __JITLOAD_MIN_MAX(unsigned type, unsigned type, unsigned type) \
  __JITLOAD_MIN_MAX(unsigned type, unsigned type, type)          \
  __JITLOAD_MIN_MAX(unsigned type, type, unsigned type)
__JITLOAD_INTEGER_MIN_MAX(int)
__JITLOAD_INTEGER_MIN_MAX(long)
__JITLOAD_INTEGER_MIN_MAX(long long)
__JITLOAD_MIN_MAX(float, float, float)
__JITLOAD_MIN_MAX(double, double, double)
__JITLOAD_MIN_MAX(double, float, double)
__JITLOAD_MIN_MAX(double, double, float)
#undef __JITLOAD_INTEGER_MIN_MAX
#undef __JITLOAD_MIN_MAX
__JITLOAD_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
__JITLOAD_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
__JITLOAD_INLINE long long llmin(long long a, long long b) { return min(a, b); }
__JITLOAD_INLINE long long llmax(long long a, long long b) { return max(a, b); }
__JITLOAD_INLINE unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
__JITLOAD_INLINE unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }

/* libm's functions are calls; these become instructions. */
#define __JITLOAD_C_FUNCTION(type, name, parameters, ...) \
  extern "C" inline __attribute__((always_inline, gnu_inline)) type name parameters noexcept { return __VA_ARGS__; }
__JITLOAD_C_FUNCTION(float, fminf, (float a, float b), __jitload_min(a, b))
__JITLOAD_C_FUNCTION(float, fmaxf, (float a, float b), __jitload_max(a, b))
__JITLOAD_C_FUNCTION(double, fmin, (double a, double b), __jitload_min(a, b))
__JITLOAD_C_FUNCTION(double, fmax, (double a, double b), __jitload_max(a, b))
__JITLOAD_C_FUNCTION(float, expf, (float x), __jitload_inline_expf(x))
__JITLOAD_C_FUNCTION(float, exp2f, (float x), __jitload_inline_exp2f(x))
__JITLOAD_C_FUNCTION(float, logf, (float x), __jitload_inline_logf(x))
__JITLOAD_C_FUNCTION(float, log2f, (float x), __jitload_inline_log2f(x))
__JITLOAD_C_FUNCTION(float, log10f, (float x), __jitload_inline_log10f(x))
__JITLOAD_C_FUNCTION(float, tanhf, (float x), __jitload_inline_tanhf(x))
#undef __JITLOAD_C_FUNCTION

/* ---- functions that libm lacks ---------------------------------------------------------------------------------- */

/* The versions for float compute in double and round once. */
#define __JITLOAD_FLOAT(name, parameters, ...)                                   \
  __JITLOAD_INLINE float name##f parameters { return (float)name(__VA_ARGS__); } \
  __JITLOAD_INLINE float name parameters { return (float)name(__VA_ARGS__); }
#define __JITLOAD_FLOAT1(name) __JITLOAD_FLOAT(name, (float x), (double)x)
#define __JITLOAD_FLOAT2(name) __JITLOAD_FLOAT(name, (float x, float y), (double)x, (double)y)
#define __JITLOAD_FLOAT3(name) __JITLOAD_FLOAT(name, (float x, float y, float z), (double)x, (double)y, (double)z)
#define __JITLOAD_FLOAT4(name) \
  __JITLOAD_FLOAT(name, (float x, float y, float z, float w), (double)x, (double)y, (double)z, (double)w)

__JITLOAD_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
__JITLOAD_REPLACEABLE
__JITLOAD_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
__JITLOAD_INLINE float rsqrt(float x) { return rsqrtf(x); }
__JITLOAD_INLINE double rcbrt(double x) { return 1.0 / __builtin_cbrt(x); }
__JITLOAD_FLOAT1(rcbrt)
__JITLOAD_INLINE double rhypot(double x, double y) { return 1.0 / __builtin_hypot(x, y); }
__JITLOAD_FLOAT2(rhypot)
__JITLOAD_INLINE double norm3d(double x, double y, double z) { return __builtin_hypot(__builtin_hypot(x, y), z); }
__JITLOAD_INLINE double rnorm3d(double x, double y, double z) { return 1.0 / norm3d(x, y, z); }
__JITLOAD_INLINE double norm4d(double x, double y, double z, double w) {
  return __builtin_hypot(__builtin_hypot(x, y), __builtin_hypot(z, w));
}
__JITLOAD_INLINE double rnorm4d(double x, double y, double z, double w) { return 1.0 / norm4d(x, y, z, w); }
__JITLOAD_FLOAT3(norm3d)
__JITLOAD_FLOAT3(rnorm3d)
__JITLOAD_FLOAT4(norm4d)
__JITLOAD_FLOAT4(rnorm4d)
__JITLOAD_INLINE double norm(int count, const double* values) {
  double result = 0;
  for (int i = 0; i < count; ++i) result = __builtin_hypot(result, values[i]);
  return result;
}
__JITLOAD_INLINE double __jitload_norm(int count, const float* values) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += (double)values[i] * values[i];
  return __builtin_sqrt(sum);
}
__JITLOAD_INLINE float normf(int count, const float* values) { return (float)__jitload_norm(count, values); }
__JITLOAD_INLINE double rnorm(int count, const double* values) { return 1.0 / norm(count, values); }
__JITLOAD_INLINE float rnormf(int count, const float* values) { return (float)(1.0 / __jitload_norm(count, values)); }

/* sin(pi * x), for x that is first increased by a number of quarter turns. */
__JITLOAD_INLINE double __jitload_sinpi(double x, int quarters) {
  if (x - x != 0) return x - x;
  const double rest = __builtin_fmod(x, 2.0), near = __builtin_rint(2.0 * rest);
  const double angle = (rest - 0.5 * near) * 3.14159265358979323846;
  quarters += (int)near;
  const double value = quarters & 1 ? __builtin_cos(angle) : __builtin_sin(angle);
  return quarters & 2 ? -value : value;
}
__JITLOAD_INLINE double sinpi(double x) {
  const double value = __jitload_sinpi(x, 0);
  return value == 0 ? __builtin_copysign(0.0, x) : value;
}
__JITLOAD_INLINE double cospi(double x) { return __jitload_sinpi(x, 1) + 0.0; /* which is not -0.0 */ }
__JITLOAD_FLOAT1(sinpi)
__JITLOAD_FLOAT1(cospi)
__JITLOAD_INLINE void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
__JITLOAD_INLINE void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
__JITLOAD_INLINE void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
__JITLOAD_INLINE void sincos(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }

__JITLOAD_INLINE double normcdf(double x) { return 0.5 * __builtin_erfc(x * -0.70710678118654752440); }
__JITLOAD_FLOAT1(normcdf)
/* exp(x * x) * erfc(x). For large x, where erfc underflows, it is computed as a continued fraction. */
static __attribute__((unused, noinline)) double erfcx(double x) {
  if (x < 8) return __builtin_exp(x * x) * __builtin_erfc(x);
  double tail = 0;
  for (int k = 60; k > 0; --k) tail = 0.5 * k / (x + tail);
  return 0.56418958354775628695 / (x + tail);
}
__JITLOAD_FLOAT1(erfcx)
/* The inverse of erfc: a rational approximation, refined by Halley's method. */
static __attribute__((unused, noinline)) double erfcinv(double y) {
  if (!(y >= 0 && y <= 2)) return __builtin_nan("");
  if (y == 0 || y == 2) return y == 0 ? __builtin_inf() : -__builtin_inf();
  const double tail = y > 1 ? 2 - y : y;
  const double t = __builtin_sqrt(-2 * __builtin_log(tail / 2));
  double x = -0.70711 * ((2.30753 + t * 0.27061) / (1 + t * (0.99229 + t * 0.04481)) - t);
  for (int step = 0; step < 4; ++step) {
    const double error = __builtin_erfc(x) - tail;
    x += error / (1.12837916709551257389 * __builtin_exp(-x * x) - x * error);
  }
  return y > 1 ? -x : x;
}
static __attribute__((unused, noinline)) double erfinv(double y) {
  if (!(y >= -1 && y <= 1)) return __builtin_nan("");
  const double size = __builtin_fabs(y);
  if (size > 0.5) return __builtin_copysign(erfcinv(1 - size), y);
  double x = 0.88622692545275801365 * y;
  for (int step = 0; step < 4; ++step) {
    const double error = __builtin_erf(x) - y;
    x -= error / (1.12837916709551257389 * __builtin_exp(-x * x) + x * error);
  }
  return y == 0 ? y : x;
}
__JITLOAD_FLOAT1(erfcinv)
__JITLOAD_FLOAT1(erfinv)
__JITLOAD_INLINE double normcdfinv(double y) { return -1.41421356237309504880 * erfcinv(2 * y); }
__JITLOAD_FLOAT1(normcdfinv)
/* The modified Bessel functions of order 0 and 1: their series, or for large x their asymptotic expansion. */
static __attribute__((unused, noinline)) double __jitload_bessel(int order, double x) {
  const double size = __builtin_fabs(x);
  double term = order ? size / 2 : 1, sum = term;
  if (size < 30) {
    for (int k = 1; k < 200 && term > sum * 1e-18; ++k) sum += term *= size * size / (4.0 * k * (k + order));
  } else {
    term = sum = 1;
    for (int k = 1; k < 30; ++k) {
      const double odd = 2.0 * k - 1, next = term * (odd * odd - 4.0 * order * order) / (8.0 * k * size);
      if (__builtin_fabs(next) >= __builtin_fabs(term)) break;
      sum += term = next;
    }
    sum *= __builtin_exp(size / 2) / __builtin_sqrt(6.28318530717958647693 * size) * __builtin_exp(size / 2);
  }
  return order && x < 0 ? -sum : sum;
}
__JITLOAD_INLINE double cyl_bessel_i0(double x) { return __jitload_bessel(0, x); }
__JITLOAD_INLINE double cyl_bessel_i1(double x) { return __jitload_bessel(1, x); }
__JITLOAD_FLOAT1(cyl_bessel_i0)
__JITLOAD_FLOAT1(cyl_bessel_i1)
__JITLOAD_INLINE float fdividef(float a, float b) { return a / b; }
__JITLOAD_INLINE double fdivide(double a, double b) { return a / b; }
#undef __JITLOAD_FLOAT
#undef __JITLOAD_FLOAT1
#undef __JITLOAD_FLOAT2
#undef __JITLOAD_FLOAT3
#undef __JITLOAD_FLOAT4

/* ---- CUDA's fast approximations, which are as exact here as the others ---------------------------------------- */

__JITLOAD_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
__JITLOAD_INLINE float __fdividef(float a, float b) { return a / b; }
__JITLOAD_INLINE float __expf(float x) { return __jitload_inline_expf(x); }
__JITLOAD_INLINE float __exp10f(float x) { return __builtin_exp10f(x); }
__JITLOAD_INLINE float __logf(float x) { return __jitload_inline_logf(x); }
__JITLOAD_INLINE float __log2f(float x) { return __jitload_inline_log2f(x); }
__JITLOAD_INLINE float __log10f(float x) { return __jitload_inline_log10f(x); }
__JITLOAD_INLINE float __sinf(float x) { return __builtin_sinf(x); }
__JITLOAD_INLINE float __cosf(float x) { return __builtin_cosf(x); }
__JITLOAD_INLINE float __tanf(float x) { return __builtin_tanf(x); }
__JITLOAD_INLINE float __powf(float x, float y) { return __builtin_powf(x, y); }
__JITLOAD_INLINE void __sincosf(float x, float* s, float* c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
__JITLOAD_INLINE float __tanhf(float x) { return __jitload_inline_tanhf(x); }
__JITLOAD_INLINE float __frsqrt_rn(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }

#include "jitload_cpu_rounding.h"
#include "jitload_cpu_integer.h"

/* ---- time ------------------------------------------------------------------------------------------------------- */

__JITLOAD_INLINE long long clock64() { return jitload_cpu_clock(); }
__JITLOAD_INLINE clock_t clock() { return (clock_t)clock64(); }
