// <math.h>. NVRTC declares sqrt(float) and sqrt(double), so sqrt(int) and pow(int, float) are ambiguous. The templates
// here compute them in double, as the C++ library does, and are in the global namespace and in std, as under nvcc.
#ifndef JITLOAD_NVRTC_MATH_H
#define JITLOAD_NVRTC_MATH_H
#include "_jitload/config.h"

extern "C++" {  // a text may include this header within extern "C"
namespace __jitload {
// of_mixed<R, …>::type is R for numbers, unless all are float or all are double: these overloads NVRTC declares itself.
template <bool, class R> struct only_if {};
template <class R> struct only_if<true, R> { typedef R type; };
template <class R, class A, class B, int a = kind<A>::value, int b = kind<B>::value>
struct of_mixed : only_if<a && b && !(a == b && a > 1), R> {};
template <class R, class A, class B, class C, int a = kind<A>::value, int b = kind<B>::value, int c = kind<C>::value>
struct of_mixed3 : only_if<a && b && c && !(a == b && b == c && a > 1), R> {};

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

// NVRTC does not declare isnormal and fpclassify for any type.
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
}  // namespace __jitload

typedef float float_t;
typedef double double_t;
using __jitload::fma; using __jitload::ldexp; using __jitload::frexp; using __jitload::scalbn;
using __jitload::scalbln; using __jitload::isnormal; using __jitload::fpclassify;

// Each row defines a function template and names it in the global namespace.
#define _JITLOAD_UNARY(f, R) \
  namespace __jitload { \
  template <class T> _JITLOAD_HD typename of_integer<R, T>::type f(T x) { return ::f(static_cast<double>(x)); } \
  } \
  using __jitload::f;
#define _JITLOAD_BINARY(f) \
  namespace __jitload { \
  template <class A, class B> _JITLOAD_HD typename of_mixed<double, A, B>::type f(A a, B b) { \
    return ::f(static_cast<double>(a), static_cast<double>(b)); \
  } \
  } \
  using __jitload::f;
#define _JITLOAD_COMPARE(f, expression) \
  namespace __jitload { \
  template <class A, class B> _JITLOAD_HD typename only_if<kind<A>::value && kind<B>::value, bool>::type f(A a, B b) { \
    return expression; \
  } \
  } \
  using __jitload::f;
_JITLOAD_UNARY(acos, double) _JITLOAD_UNARY(asin, double) _JITLOAD_UNARY(atan, double) _JITLOAD_UNARY(cos, double)
_JITLOAD_UNARY(sin, double) _JITLOAD_UNARY(tan, double) _JITLOAD_UNARY(cosh, double) _JITLOAD_UNARY(sinh, double)
_JITLOAD_UNARY(tanh, double) _JITLOAD_UNARY(acosh, double) _JITLOAD_UNARY(asinh, double) _JITLOAD_UNARY(atanh, double)
_JITLOAD_UNARY(exp, double) _JITLOAD_UNARY(exp2, double) _JITLOAD_UNARY(expm1, double) _JITLOAD_UNARY(log, double)
_JITLOAD_UNARY(log10, double) _JITLOAD_UNARY(log1p, double) _JITLOAD_UNARY(log2, double) _JITLOAD_UNARY(logb, double)
_JITLOAD_UNARY(cbrt, double) _JITLOAD_UNARY(sqrt, double) _JITLOAD_UNARY(fabs, double) _JITLOAD_UNARY(erf, double)
_JITLOAD_UNARY(erfc, double) _JITLOAD_UNARY(tgamma, double) _JITLOAD_UNARY(lgamma, double)
_JITLOAD_UNARY(ceil, double) _JITLOAD_UNARY(floor, double) _JITLOAD_UNARY(trunc, double) _JITLOAD_UNARY(round, double)
_JITLOAD_UNARY(nearbyint, double) _JITLOAD_UNARY(rint, double)
_JITLOAD_UNARY(lround, long) _JITLOAD_UNARY(lrint, long)
_JITLOAD_UNARY(llround, long long) _JITLOAD_UNARY(llrint, long long)
_JITLOAD_UNARY(ilogb, int)
_JITLOAD_UNARY(isnan, bool) _JITLOAD_UNARY(isinf, bool) _JITLOAD_UNARY(isfinite, bool) _JITLOAD_UNARY(signbit, bool)
_JITLOAD_BINARY(atan2) _JITLOAD_BINARY(fmod) _JITLOAD_BINARY(remainder) _JITLOAD_BINARY(pow) _JITLOAD_BINARY(hypot)
_JITLOAD_BINARY(fdim) _JITLOAD_BINARY(fmax) _JITLOAD_BINARY(fmin) _JITLOAD_BINARY(nextafter) _JITLOAD_BINARY(copysign)
_JITLOAD_COMPARE(isgreater, a > b) _JITLOAD_COMPARE(isgreaterequal, a >= b)
_JITLOAD_COMPARE(isless, a < b) _JITLOAD_COMPARE(islessequal, a <= b)
_JITLOAD_COMPARE(islessgreater, a < b || a > b) _JITLOAD_COMPARE(isunordered, a != a || b != b)
#undef _JITLOAD_UNARY
#undef _JITLOAD_BINARY
#undef _JITLOAD_COMPARE
}

#endif
#include "_jitload/math_macros.h"
