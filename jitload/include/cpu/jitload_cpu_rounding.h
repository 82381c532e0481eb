/* Arithmetic and conversions with a rounding mode in their name, which round and saturate as a GPU does. */
#pragma once

#include <fenv.h>

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

/* Compute under a rounding mode. Operands and result pass through memory, so that nothing moves across the change. */
template <class __jitload_r, class __jitload_t, class __jitload_f>
__JITLOAD_INLINE __jitload_r __jitload_rounded(int mode, __jitload_t a, __jitload_t b, __jitload_t c, __jitload_f compute) {
  const int before = fegetround();
  fesetround(mode);
  volatile __jitload_t in_a = a, in_b = b, in_c = c;
  volatile __jitload_r result = compute(in_a, in_b, in_c);
  fesetround(before);
  return result;
}
#define __JITLOAD_ROUNDED(name, result, type, parameters, a, b, c, ...)                                                           \
  __JITLOAD_INLINE result name##_rn parameters {                                                                                  \
    return __jitload_fence([](type x, type y, type z) -> result { return __VA_ARGS__; }(a, b, c));                                \
  }                                                                                                                               \
  __JITLOAD_INLINE result name##_rz parameters {                                                                                  \
    return __jitload_rounded<result, type>(FE_TOWARDZERO, a, b, c, [](type x, type y, type z) -> result { return __VA_ARGS__; }); \
  }                                                                                                                               \
  __JITLOAD_INLINE result name##_ru parameters {                                                                                  \
    return __jitload_rounded<result, type>(FE_UPWARD, a, b, c, [](type x, type y, type z) -> result { return __VA_ARGS__; });     \
  }                                                                                                                               \
  __JITLOAD_INLINE result name##_rd parameters {                                                                                  \
    return __jitload_rounded<result, type>(FE_DOWNWARD, a, b, c, [](type x, type y, type z) -> result { return __VA_ARGS__; });   \
  }
#define __JITLOAD_ARITHMETIC(letter, type, fma_name, fma, root)                                 \
  __JITLOAD_ROUNDED(__##letter##add, type, type, (type a, type b), a, b, b, (void)z, x + y)     \
  __JITLOAD_ROUNDED(__##letter##sub, type, type, (type a, type b), a, b, b, (void)z, x - y)     \
  __JITLOAD_ROUNDED(__##letter##mul, type, type, (type a, type b), a, b, b, (void)z, x * y)     \
  __JITLOAD_ROUNDED(__##letter##div, type, type, (type a, type b), a, b, b, (void)z, x / y)     \
  __JITLOAD_ROUNDED(__##letter##rcp, type, type, (type a), a, a, a, (void)z, (void)y, 1 / x)    \
  __JITLOAD_ROUNDED(__##letter##sqrt, type, type, (type a), a, a, a, (void)z, (void)y, root(x)) \
  __JITLOAD_ROUNDED(fma_name, type, type, (type a, type b, type c), a, b, c, fma(x, y, z))
__JITLOAD_ARITHMETIC(f, float, __fmaf, __builtin_fmaf, __builtin_sqrtf)
__JITLOAD_ARITHMETIC(d, double, __fma, __builtin_fma, __builtin_sqrt)
#undef __JITLOAD_ARITHMETIC
__JITLOAD_ROUNDED(__fmaf_ieee, float, float, (float a, float b, float c), a, b, c, __builtin_fmaf(x, y, z))

/* ---- between numbers -------------------------------------------------------------------------------------------- */

/* Convert as the instruction `cvt` does: saturating; a NaN becomes 0, or the top bit if 64 bits are involved. */
template <class __jitload_r, class __jitload_t>
__JITLOAD_INLINE __jitload_r __jitload_to_integer(__jitload_t x) {
  const bool is_signed = (__jitload_r)-1 < 0;
  const int bits = 8 * (int)sizeof(__jitload_r);
  const __jitload_r top = (__jitload_r)1 << (bits - 1);
  const __jitload_t edge = (__jitload_t)(1ull << (bits - 1)) * (is_signed ? 1 : 2); /* the first number that is too large */
  if (x != x) return sizeof(__jitload_r) == 8 || sizeof(__jitload_t) == 8 ? top : 0;
  if (x >= edge) return is_signed ? (__jitload_r)(top - 1) : (__jitload_r)-1;
  if (is_signed ? x < -edge : x <= 0) return is_signed ? top : 0;
  return (__jitload_r)x;
}
#define __JITLOAD_TO_INTEGER(from, type, name, result)                                                            \
  __JITLOAD_INLINE result __##from##2##name##_rn(type x) { return __jitload_to_integer<result>((type)rint(x)); }  \
  __JITLOAD_INLINE result __##from##2##name##_rz(type x) { return __jitload_to_integer<result>((type)trunc(x)); } \
  __JITLOAD_INLINE result __##from##2##name##_ru(type x) { return __jitload_to_integer<result>((type)ceil(x)); }  \
  __JITLOAD_INLINE result __##from##2##name##_rd(type x) { return __jitload_to_integer<result>((type)floor(x)); }
#define __JITLOAD_TO_INTEGERS(from, type)          \
  __JITLOAD_TO_INTEGER(from, type, int, int)       \
  __JITLOAD_TO_INTEGER(from, type, uint, unsigned) \
  __JITLOAD_TO_INTEGER(from, type, ll, long long)  \
  __JITLOAD_TO_INTEGER(from, type, ull, unsigned long long)
__JITLOAD_TO_INTEGERS(float, float)
__JITLOAD_TO_INTEGERS(double, double)
#undef __JITLOAD_TO_INTEGERS
#undef __JITLOAD_TO_INTEGER

__JITLOAD_ROUNDED(__int2float, float, int, (int a), a, a, a, (void)z, (void)y, (float)x)
__JITLOAD_ROUNDED(__uint2float, float, unsigned, (unsigned a), a, a, a, (void)z, (void)y, (float)x)
__JITLOAD_ROUNDED(__ll2float, float, long long, (long long a), a, a, a, (void)z, (void)y, (float)x)
__JITLOAD_ROUNDED(__ull2float, float, unsigned long long, (unsigned long long a), a, a, a, (void)z, (void)y, (float)x)
__JITLOAD_ROUNDED(__ll2double, double, long long, (long long a), a, a, a, (void)z, (void)y, (double)x)
__JITLOAD_ROUNDED(__ull2double, double, unsigned long long, (unsigned long long a), a, a, a, (void)z, (void)y, (double)x)
__JITLOAD_ROUNDED(__double2float, float, double, (double a), a, a, a, (void)z, (void)y, (float)x)
#undef __JITLOAD_ROUNDED
__JITLOAD_INLINE double __int2double_rn(int x) { return x; }
__JITLOAD_INLINE double __uint2double_rn(unsigned x) { return x; }

/* ---- bits as numbers -------------------------------------------------------------------------------------------- */

__JITLOAD_INLINE int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__JITLOAD_INLINE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
__JITLOAD_INLINE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
__JITLOAD_INLINE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
__JITLOAD_INLINE long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
__JITLOAD_INLINE double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }

__JITLOAD_INLINE int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
__JITLOAD_INLINE int __double2loint(double x) { return (int)__double_as_longlong(x); }
__JITLOAD_INLINE double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}
