// Use of the headers as kernel files use them: C library, math, assert, printf. Compiled from C++11 on.
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

template <class A, class B> struct Same { static const bool value = false; };
template <class A> struct Same<A, A> { static const bool value = true; };
#define TYPE(T, ...) static_assert(Same<T, decltype(__VA_ARGS__)>::value, #__VA_ARGS__)

__device__ void math(float f, double d, int i, long l, unsigned u, float* out) {
  TYPE(float, std::sqrt(f)); TYPE(double, std::sqrt(d)); TYPE(double, std::sqrt(i)); TYPE(double, sqrt(u)); TYPE(double, std::exp(l));
  TYPE(float, std::pow(f, f)); TYPE(double, std::pow(d, i)); TYPE(double, std::pow(i, i)); TYPE(double, pow(f, d)); TYPE(float, std::fmax(f, f)); TYPE(double, std::fmod(f, i));
  TYPE(int, std::abs(i)); TYPE(long, std::abs(l)); TYPE(float, std::abs(f)); TYPE(double, std::abs(d)); TYPE(double, std::fabs(i));
  TYPE(float, std::floor(f)); TYPE(long, std::lround(i)); TYPE(double, std::atan2(i, d)); TYPE(double, std::fma(f, d, i)); TYPE(float, std::fma(f, f, f)); TYPE(float, std::sqrtf(f));
  static_assert(INFINITY > 3e38f && NAN != NAN && HUGE_VAL > 1e308 && M_PI > 3.14159 && M_PI < 3.1416, "constants");
  TYPE(float, INFINITY); TYPE(float, NAN); TYPE(double, HUGE_VAL); TYPE(double, M_SQRT2);
  int n;
  float whole;
  out[0] = std::sin(f) + std::cos(f) + std::tanh(f) + std::erf(f) + std::log1p(f) + std::cbrt(f) + std::trunc(f) + std::copysign(f, 1.0f);
  out[1] = std::isnan(f) + std::isinf(d) + std::isfinite(i) + std::signbit(f) + isnan(d) + std::isnormal(f) + std::fpclassify(d) + (std::fpclassify(f) == FP_ZERO);
  out[2] = std::frexp(f, &n) + std::ldexp(f, 2) + std::modf(f, &whole) + std::remquo(f, f, &n) + std::nan("") + std::hypot(i, d) + std::isless(f, d) + std::isunordered(f, f);
  out[3] = sqrtf(f) + rsqrtf(f) + __expf(f) + fminf(f, f) + powf(f, 2) + fabs(i) + ceil(u) + std::log2(i) + std::round(i);
}

__device__ void varied(int n, ...) {
  va_list list;
  va_start(list, n);
  printf("%d\n", va_arg(list, int));
  va_end(list);
}

extern "C" __global__ void kernel(char* text, float* out, int64_t n, bool flag) {
  assert(n > 0 && "with a message");
  assert((Same<int, int>::value));
  assert(Same<int, int>::value);
  std::printf("%" PRId64 " %s %zu\n", n, text, sizeof(text));
  printf("%f\n", out[0]);
  memcpy(out, text, 4); std::memset(out, 0, 4); memmove(out, text, n);
  out[4] = std::strlen(text) + strcmp(text, "a") + memcmp(out, text, 4) + (strncmp(text, "ab", 2) == 0) + (std::memchr(text, 0, 4) != NULL);
  void* memory = malloc(16);
  int* placed = new (memory) int(EXIT_FAILURE);
  out[5] = *placed + std::div(7, 2).quot + div(7L, 2L).rem + lldiv(7, 2).quot + std::labs(n) + std::abs(-1) + llabs(n);
  std::free(memory);
  clock_t start = clock();
  out[6] = static_cast<float>(std::clock() - start);
  math(out[0], out[1], 2, 3, 4, out);
  varied(1, 2);
}

// Each inclusion of assert.h obeys NDEBUG as it is then.
#define NDEBUG
#include <cassert>
__device__ void quiet() { assert(undeclared); }
#undef NDEBUG
#include <cassert>
__device__ void loud(int x) { assert(x); }
