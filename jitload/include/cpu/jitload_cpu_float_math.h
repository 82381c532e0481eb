/* Functions of float without branches and calls, so that the compiler can vectorise loops that contain them.
 *
 * They use IEEE operations in a fixed order, so results are the same in vectors of any width. Over all floats the error
 * is at most 1 ulp for expf and exp2f, and 0.51 ulp for the others, which are computed in double; see
 * tests/test_cpu_math.py.
 */
#pragma once

#define __JITLOAD_CONSTEXPR static inline __attribute__((always_inline, unused)) constexpr
__JITLOAD_CONSTEXPR uint32_t __jitload_bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
__JITLOAD_CONSTEXPR float __jitload_float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
/* Adding this to a small number leaves the nearest integer in the last bits. */
#define __JITLOAD_ROUND 0x1.8p23f
__JITLOAD_CONSTEXPR float __jitload_power_of_two(int n) { return __jitload_float_of((uint32_t)(n + 127) << 23); }

/* The value of a polynomial in x, whose coefficients begin with that of the highest power. */
template <class __jitload_t, class... __jitload_c>
__JITLOAD_CONSTEXPR __jitload_t __jitload_polynomial(__jitload_t x, __jitload_t sum, __jitload_c... coefficients) {
  ((sum = sum * x + coefficients), ...);
  return sum;
}

/* exp(r) * 2^n for |r| of at most about ln(2) / 2. Scaling in two steps rounds denormals once and reaches FLT_MAX. */
__JITLOAD_CONSTEXPR float __jitload_scaled_exp(float r, int n) {
  float p = __jitload_polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                 1.6666665459e-1f, 5.0000001201e-1f);
  p = 1.0f + (r + r * r * p);
  const int half = n >> 1;
  return p * __jitload_power_of_two(half) * __jitload_power_of_two(n - half);
}
__JITLOAD_CONSTEXPR float __jitload_inline_expf(float x) {
  const float most = x > 89.0f ? 89.0f : x, y = most < -104.0f ? -104.0f : most; /* each comparison is false for NaN */
  const float shifted = y * 1.44269504088896341f + __JITLOAD_ROUND, n = shifted - __JITLOAD_ROUND;
  const float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; /* ln(2) in two parts; the first product is exact */
  return __jitload_scaled_exp(r, (int)(__jitload_bits_of(shifted) - __jitload_bits_of(__JITLOAD_ROUND)));
}
__JITLOAD_CONSTEXPR float __jitload_inline_exp2f(float x) {
  const float most = x > 129.0f ? 129.0f : x, y = most < -151.0f ? -151.0f : most;
  const float shifted = y + __JITLOAD_ROUND, rest = y - (shifted - __JITLOAD_ROUND);
  const float r = rest * 0.693147180559945309f;
  return __jitload_scaled_exp(r, (int)(__jitload_bits_of(shifted) - __jitload_bits_of(__JITLOAD_ROUND)));
}

/* log(x) = e * unit + log(m) * scale, with m between sqrt(1/2) and sqrt(2), as a series in s = (m - 1) / (m + 1). */
__JITLOAD_CONSTEXPR float __jitload_inline_log(float x, double unit, double scale) {
  const bool is_small = x < 0x1p-126f;
  const uint32_t bits = __jitload_bits_of(is_small ? x * 0x1p23f : x) - 0x3f3504f3u;
  const int e = ((int)bits >> 23) - (is_small ? 23 : 0);
  const double m = (double)__jitload_float_of((bits & 0x7fffffu) + 0x3f3504f3u);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  const double p = __jitload_polynomial(z, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3, 2.0);
  const float value = (float)(e * unit + p * s * scale);
  const float special = x == 0.0f ? -__builtin_inff() : x < 0.0f ? __builtin_nanf("") : x;
  return x > 0.0f && x < __builtin_inff() ? value : special;
}
__JITLOAD_CONSTEXPR float __jitload_inline_logf(float x) { return __jitload_inline_log(x, 0.693147180559945309, 1.0); }
__JITLOAD_CONSTEXPR float __jitload_inline_log2f(float x) { return __jitload_inline_log(x, 1.0, 1.44269504088896341); }
__JITLOAD_CONSTEXPR float __jitload_inline_log10f(float x) {
  return __jitload_inline_log(x, 0.301029995663981195, 0.434294481903251828);
}

/* tanh(x) = d / (d + 2) with d = exp(2 |x|) - 1. */
__JITLOAD_CONSTEXPR float __jitload_inline_tanhf(float x) {
  const float size = __builtin_fabsf(x), y = size > 10.0f ? 20.0f : size + size;
  const float shifted = y * 1.44269504088896341f + __JITLOAD_ROUND;
  const int n = (int)(__jitload_bits_of(shifted) - __jitload_bits_of(__JITLOAD_ROUND));
  const double power = (double)__jitload_power_of_two(n);
  const double r = (double)y - (double)(shifted - __JITLOAD_ROUND) * 0.693147180559945309;
  const double p = __jitload_polynomial(r, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                                        1.0 / 24, 1.0 / 6, 1.0 / 2);
  const double d = (power - 1.0) + power * (r + r * r * p);
  return __builtin_copysignf((float)(d / (d + 2.0)), x);
}
