/* The functions of half and bfloat16 that NVIDIA's headers define for GPUs only, computed in a wider type. */
#pragma once

/* a * b + c, rounded to odd, so that rounding the result again to a narrow type gives the correctly rounded value. */
__JITLOAD_INLINE double __jitload_fma_to_odd(double a, double b, double c) {
  const double product = a * b; /* exact: both factors are narrow */
  const double sum = product + c;
  if (sum - sum != 0) return sum;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (c - part);
  long long bits = __double_as_longlong(sum);
  if (error == 0 || (bits & 1)) return sum;
  bits += (error > 0) == (sum > 0) ? 1 : -1;
  return __longlong_as_double(bits);
}

#define __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, name, ...) \
  __JITLOAD_INLINE type h##name(const type a) {                                       \
    const float x = to_float(a);                                                      \
    return from_double((double)(__VA_ARGS__));                                        \
  }                                                                                   \
  __JITLOAD_INLINE pair h2##name(const pair a) { return join(h##name(a.x), h##name(a.y)); }

#define __JITLOAD_NARROW_FMA(type, pair, to_float, from_double, join, suffix, ...)  \
  __JITLOAD_INLINE type __hfma##suffix(const type a, const type b, const type c) {  \
    const double x = __jitload_fma_to_odd(to_float(a), to_float(b), to_float(c));   \
    return from_double(__VA_ARGS__);                                                \
  }                                                                                 \
  __JITLOAD_INLINE pair __hfma2##suffix(const pair a, const pair b, const pair c) { \
    return join(__hfma##suffix(a.x, b.x, c.x), __hfma##suffix(a.y, b.y, c.y));      \
  }

#define __JITLOAD_NARROW(type, pair, to_float, from_double, join)                                            \
  __JITLOAD_NARROW_FMA(type, pair, to_float, from_double, join, , x)                                         \
  __JITLOAD_NARROW_FMA(type, pair, to_float, from_double, join, _sat, x > 0 ? (x < 1 ? x : 1.0) : 0.0)       \
  __JITLOAD_NARROW_FMA(type, pair, to_float, from_double, join, _relu, x != x || x > 0 ? x : 0.0)            \
  __JITLOAD_INLINE pair __hcmadd(const pair a, const pair b, const pair c) {                                 \
    const type real = __hfma(a.x, b.x, c.x), imaginary = __hfma(a.x, b.y, c.y);                              \
    return join(__hfma(__hneg(a.y), b.y, real), __hfma(a.y, b.x, imaginary));                                \
  }                                                                                                          \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, sqrt, __builtin_sqrtf(x))               \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, rsqrt, 1.0 / __builtin_sqrt((double)x)) \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, rcp, 1.0 / (double)x)                   \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, log, __jitload_inline_logf(x))          \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, log2, __jitload_inline_log2f(x))        \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, log10, __jitload_inline_log10f(x))      \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, exp, __jitload_inline_expf(x))          \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, exp2, __jitload_inline_exp2f(x))        \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, exp10, __builtin_exp10f(x))             \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, sin, __builtin_sinf(x))                 \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, cos, __builtin_cosf(x))                 \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, tanh, __jitload_inline_tanhf(x))        \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, tanh_approx, __jitload_inline_tanhf(x)) \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, ceil, ceilf(x))                         \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, floor, floorf(x))                       \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, trunc, truncf(x))                       \
  __JITLOAD_NARROW_FUNCTION(type, pair, to_float, from_double, join, rint, rintf(x))                         \
  __JITLOAD_SHUFFLES(type)                                                                                   \
  __JITLOAD_SHUFFLES(pair)                                                                                   \
  __JITLOAD_ATOMIC(type, atomicAdd, return __jitload_update(p, [=](type a) { return __hadd(a, v); });)       \
  __JITLOAD_ATOMIC(pair, atomicAdd, return __jitload_update(p, [=](pair a) { return __hadd2(a, v); });)

#define __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, name, result)                                              \
  __JITLOAD_INLINE result from##name##_rn(const type a) { return __jitload_to_integer<result>(rintf(to_float(a))); } \
  __JITLOAD_INLINE result from##name##_ru(const type a) { return __jitload_to_integer<result>(ceilf(to_float(a))); } \
  __JITLOAD_INLINE result from##name##_rd(const type a) { return __jitload_to_integer<result>(floorf(to_float(a))); }
#define __JITLOAD_NARROW_TO_INTEGERS(type, to_float, from)                  \
  __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, int, int)               \
  __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, uint, unsigned)         \
  __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, short, short)           \
  __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, ushort, unsigned short) \
  __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, ll, long long)          \
  __JITLOAD_NARROW_TO_INTEGER(type, to_float, from, ull, unsigned long long)
