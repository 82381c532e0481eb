// NVRTC declares sqrt(float) and sqrt(double), so that sqrt(int) and pow(int, float) are ambiguous. The C++ library
// computes these in double; so do the templates here, which serve :: and std alike, as they do under nvcc.
#ifndef JITLOAD_NVRTC_MATH_FUNCTIONS_H
#define JITLOAD_NVRTC_MATH_FUNCTIONS_H
#include "config.h"

namespace __jitload_math {
// 0: not a number, 1: integer, 2: float, 3: double.
template <class T> struct kind { static const int value = 0; };
#define _JITLOAD_KIND(T, n) template <> struct kind<T> { static const int value = n; };
_JITLOAD_KIND(bool, 1)
_JITLOAD_KIND(char, 1)
_JITLOAD_KIND(signed char, 1)
_JITLOAD_KIND(unsigned char, 1)
_JITLOAD_KIND(wchar_t, 1)
_JITLOAD_KIND(char16_t, 1)
_JITLOAD_KIND(char32_t, 1)
_JITLOAD_KIND(short, 1)
_JITLOAD_KIND(unsigned short, 1)
_JITLOAD_KIND(int, 1)
_JITLOAD_KIND(unsigned int, 1)
_JITLOAD_KIND(long, 1)
_JITLOAD_KIND(unsigned long, 1)
_JITLOAD_KIND(long long, 1)
_JITLOAD_KIND(unsigned long long, 1)
_JITLOAD_KIND(float, 2)
_JITLOAD_KIND(double, 3)
#undef _JITLOAD_KIND

// R for an integer T, or no type, which takes the overload away.
template <class R, class T, int = kind<T>::value> struct of_integer {};
template <class R, class T> struct of_integer<R, T, 1> { typedef R type; };

// R for numbers that are not all float nor all double.
template <bool, class R> struct only_if {};
template <class R> struct only_if<true, R> { typedef R type; };
template <class R, class A, class B, int a = kind<A>::value, int b = kind<B>::value>
struct of_mixed : only_if<a && b && !(a == b && a > 1), R> {};
template <class R, class A, class B, class C, int a = kind<A>::value, int b = kind<B>::value, int c = kind<C>::value>
struct of_mixed3 : only_if<a && b && c && !(a == b && b == c && a > 1), R> {};

// float for float, double for any other number.
template <class T, int = kind<T>::value> struct widened { typedef double type; };
template <class T> struct widened<T, 0> {};
template <class T> struct widened<T, 2> { typedef float type; };

#define _JITLOAD_UNARY(f, R) \
  template <class T> _JITLOAD_HD typename of_integer<R, T>::type f(T x) { return ::f(static_cast<double>(x)); }
#define _JITLOAD_BINARY(f) \
  template <class A, class B> _JITLOAD_HD typename of_mixed<double, A, B>::type f(A a, B b) { \
    return ::f(static_cast<double>(a), static_cast<double>(b)); \
  }
_JITLOAD_UNARY(acos, double)
_JITLOAD_UNARY(asin, double)
_JITLOAD_UNARY(atan, double)
_JITLOAD_UNARY(cos, double)
_JITLOAD_UNARY(sin, double)
_JITLOAD_UNARY(tan, double)
_JITLOAD_UNARY(cosh, double)
_JITLOAD_UNARY(sinh, double)
_JITLOAD_UNARY(tanh, double)
_JITLOAD_UNARY(acosh, double)
_JITLOAD_UNARY(asinh, double)
_JITLOAD_UNARY(atanh, double)
_JITLOAD_UNARY(exp, double)
_JITLOAD_UNARY(exp2, double)
_JITLOAD_UNARY(expm1, double)
_JITLOAD_UNARY(log, double)
_JITLOAD_UNARY(log10, double)
_JITLOAD_UNARY(log1p, double)
_JITLOAD_UNARY(log2, double)
_JITLOAD_UNARY(logb, double)
_JITLOAD_UNARY(cbrt, double)
_JITLOAD_UNARY(sqrt, double)
_JITLOAD_UNARY(fabs, double)
_JITLOAD_UNARY(erf, double)
_JITLOAD_UNARY(erfc, double)
_JITLOAD_UNARY(tgamma, double)
_JITLOAD_UNARY(lgamma, double)
_JITLOAD_UNARY(ceil, double)
_JITLOAD_UNARY(floor, double)
_JITLOAD_UNARY(trunc, double)
_JITLOAD_UNARY(round, double)
_JITLOAD_UNARY(nearbyint, double)
_JITLOAD_UNARY(rint, double)
_JITLOAD_UNARY(lround, long)
_JITLOAD_UNARY(lrint, long)
_JITLOAD_UNARY(llround, long long)
_JITLOAD_UNARY(llrint, long long)
_JITLOAD_UNARY(ilogb, int)
_JITLOAD_UNARY(isnan, bool)
_JITLOAD_UNARY(isinf, bool)
_JITLOAD_UNARY(isfinite, bool)
_JITLOAD_UNARY(signbit, bool)
_JITLOAD_BINARY(atan2)
_JITLOAD_BINARY(fmod)
_JITLOAD_BINARY(remainder)
_JITLOAD_BINARY(pow)
_JITLOAD_BINARY(hypot)
_JITLOAD_BINARY(fdim)
_JITLOAD_BINARY(fmax)
_JITLOAD_BINARY(fmin)
_JITLOAD_BINARY(nextafter)
_JITLOAD_BINARY(copysign)
#undef _JITLOAD_UNARY
#undef _JITLOAD_BINARY

template <class A, class B, class C> _JITLOAD_HD typename of_mixed3<double, A, B, C>::type fma(A a, B b, C c) {
  return ::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
}
template <class T> _JITLOAD_HD typename of_integer<double, T>::type ldexp(T x, int n) {
  return ::ldexp(static_cast<double>(x), n);
}
template <class T> _JITLOAD_HD typename of_integer<double, T>::type frexp(T x, int* n) {
  return ::frexp(static_cast<double>(x), n);
}
template <class T> _JITLOAD_HD typename of_integer<double, T>::type scalbn(T x, int n) {
  return ::scalbn(static_cast<double>(x), n);
}
template <class T> _JITLOAD_HD typename of_integer<double, T>::type scalbln(T x, long n) {
  return ::scalbln(static_cast<double>(x), n);
}

// What NVRTC does not declare at all.
_JITLOAD_HD inline int classify(bool nan, bool inf, bool zero, bool normal) {
  return nan ? 0 : inf ? 1 : zero ? 2 : normal ? 4 : 3;
}
_JITLOAD_HD inline bool isnormal(float x) {
  return ::isfinite(x) && ::fabs(x) >= 1.17549435082228750796873653722224568e-38F;
}
_JITLOAD_HD inline bool isnormal(double x) {
  return ::isfinite(x) && ::fabs(x) >= 2.22507385850720138309023271733240406e-308;
}
_JITLOAD_HD inline int fpclassify(float x) { return classify(::isnan(x), ::isinf(x), x == 0, isnormal(x)); }
_JITLOAD_HD inline int fpclassify(double x) { return classify(::isnan(x), ::isinf(x), x == 0, isnormal(x)); }
template <class T> _JITLOAD_HD typename of_integer<bool, T>::type isnormal(T x) { return x != 0; }
template <class T> _JITLOAD_HD typename of_integer<int, T>::type fpclassify(T x) { return x == 0 ? 2 : 4; }
#define _JITLOAD_COMPARE(f, op) \
  template <class A, class B> _JITLOAD_HD typename only_if<kind<A>::value && kind<B>::value, bool>::type f(A a, B b) { \
    return a op b; \
  }
_JITLOAD_COMPARE(isgreater, >)
_JITLOAD_COMPARE(isgreaterequal, >=)
_JITLOAD_COMPARE(isless, <)
_JITLOAD_COMPARE(islessequal, <=)
#undef _JITLOAD_COMPARE
template <class A, class B>
_JITLOAD_HD typename only_if<kind<A>::value && kind<B>::value, bool>::type islessgreater(A a, B b) {
  return a < b || a > b;
}
template <class A, class B>
_JITLOAD_HD typename only_if<kind<A>::value && kind<B>::value, bool>::type isunordered(A a, B b) {
  return a != a || b != b;
}
}  // namespace __jitload_math

typedef float float_t;
typedef double double_t;
using __jitload_math::acos;
using __jitload_math::acosh;
using __jitload_math::asin;
using __jitload_math::asinh;
using __jitload_math::atan;
using __jitload_math::atan2;
using __jitload_math::atanh;
using __jitload_math::cbrt;
using __jitload_math::ceil;
using __jitload_math::copysign;
using __jitload_math::cos;
using __jitload_math::cosh;
using __jitload_math::erf;
using __jitload_math::erfc;
using __jitload_math::exp;
using __jitload_math::exp2;
using __jitload_math::expm1;
using __jitload_math::fabs;
using __jitload_math::fdim;
using __jitload_math::floor;
using __jitload_math::fma;
using __jitload_math::fmax;
using __jitload_math::fmin;
using __jitload_math::fmod;
using __jitload_math::fpclassify;
using __jitload_math::frexp;
using __jitload_math::hypot;
using __jitload_math::ilogb;
using __jitload_math::isfinite;
using __jitload_math::isgreater;
using __jitload_math::isgreaterequal;
using __jitload_math::isinf;
using __jitload_math::isless;
using __jitload_math::islessequal;
using __jitload_math::islessgreater;
using __jitload_math::isnan;
using __jitload_math::isnormal;
using __jitload_math::isunordered;
using __jitload_math::ldexp;
using __jitload_math::lgamma;
using __jitload_math::llrint;
using __jitload_math::llround;
using __jitload_math::log;
using __jitload_math::log10;
using __jitload_math::log1p;
using __jitload_math::log2;
using __jitload_math::logb;
using __jitload_math::lrint;
using __jitload_math::lround;
using __jitload_math::nearbyint;
using __jitload_math::nextafter;
using __jitload_math::pow;
using __jitload_math::remainder;
using __jitload_math::rint;
using __jitload_math::round;
using __jitload_math::scalbln;
using __jitload_math::scalbn;
using __jitload_math::signbit;
using __jitload_math::sin;
using __jitload_math::sinh;
using __jitload_math::sqrt;
using __jitload_math::tan;
using __jitload_math::tanh;
using __jitload_math::tgamma;
using __jitload_math::trunc;

#endif
