/* at::Half and at::BFloat16: two bytes that convert to float and back, on both sides. */
#ifndef JITLOAD_TORCH_HALF_H_
#define JITLOAD_TORCH_HALF_H_

#include "runtime.h"

namespace c10 {

inline C10_HOST_DEVICE float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline C10_HOST_DEVICE uint32_t float_to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline C10_HOST_DEVICE float half_to_float(uint16_t half) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return bits_to_float(sign | (rest > 0x7c00 ? 0x7fc00000 : 0x7f800000) | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return bits_to_float(sign | ((rest << 13) + (112u << 23)));
  const float value = static_cast<float>(rest) * 5.9604644775390625e-08f; /* 2**-24 */
  return bits_to_float(sign | float_to_bits(value));
#endif
}

namespace detail { /* a name in the copies of torch's headers */
inline C10_HOST_DEVICE float fp16_ieee_to_fp32_value(uint16_t half) { return half_to_float(half); }
}  // namespace detail

inline C10_HOST_DEVICE uint16_t float_to_half(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00); /* 65520 and more */
  if (rest < 0x38800000) {                                              /* subnormal: below 2**-14 */
    const float shifted = bits_to_float(rest) + 0.5f;                   /* rounds to multiples of 2**-24 */
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000));
  }
  const uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - (112u << 23)) >> 13);
#endif
}

inline C10_HOST_DEVICE uint16_t float_to_bfloat16(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint16_t result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
  return result;
#else
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

/* The bits of a number, and a constructor from the bits. */
#define JITLOAD_TORCH_BITS_(T)                                                   \
  uint16_t x;                                                                    \
  struct from_bits_t {};                                                         \
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return {}; }        \
  T() = default;                                                                 \
  constexpr C10_HOST_DEVICE T(uint16_t bits, from_bits_t) : x(bits) {}

struct alignas(2) Half {
  JITLOAD_TORCH_BITS_(Half)
  C10_HOST_DEVICE Half(float value) : x(float_to_half(value)) {}
  C10_HOST_DEVICE operator float() const { return half_to_float(x); }
#if defined(__CUDA_FP16_H__)
  C10_HOST_DEVICE Half(const __half& value) { __builtin_memcpy(&x, &value, sizeof x); }
  C10_HOST_DEVICE operator __half() const {
    __half value;
    __builtin_memcpy(&value, &x, sizeof x);
    return value;
  }
#endif
};

struct alignas(2) BFloat16 {
  JITLOAD_TORCH_BITS_(BFloat16)
  C10_HOST_DEVICE BFloat16(float value) : x(float_to_bfloat16(value)) {}
  C10_HOST_DEVICE operator float() const { return bits_to_float(static_cast<uint32_t>(x) << 16); }
#if defined(__CUDA_BF16_H__)
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value) { __builtin_memcpy(&x, &value, sizeof x); }
  explicit C10_HOST_DEVICE operator __nv_bfloat16() const {
    __nv_bfloat16 value;
    __builtin_memcpy(&value, &x, sizeof x);
    return value;
  }
#endif
};

#undef JITLOAD_TORCH_BITS_

/* Copies of torch's headers define the first five, for texts that name them, and name the last one. */
struct Float8_e4m3fn;
struct Float8_e5m2;
struct Float8_e4m3fnuz;
struct Float8_e5m2fnuz;
struct Float8_e8m0fnu;
template <class T>
struct complex;

/* Two numbers of this type are combined as floats, and the result has this type. With a float or a double, the result
 * has the other number's type. With an integer, it has this type. */
#define JITLOAD_TORCH_ARITHMETIC_(T, op)                                                                          \
  inline C10_HOST_DEVICE T operator op(const T& a, const T& b) { return static_cast<float>(a) op static_cast<float>(b); } \
  inline C10_HOST_DEVICE T& operator op##=(T & a, const T& b) { return a = a op b; }                              \
  inline C10_HOST_DEVICE float& operator op##=(float& a, const T& b) { return a = a op static_cast<float>(b); }   \
  inline C10_HOST_DEVICE float operator op(T a, float b) { return static_cast<float>(a) op b; }                   \
  inline C10_HOST_DEVICE float operator op(float a, T b) { return a op static_cast<float>(b); }                   \
  inline C10_HOST_DEVICE double operator op(T a, double b) { return static_cast<double>(static_cast<float>(a)) op b; } \
  inline C10_HOST_DEVICE double operator op(double a, T b) { return a op static_cast<double>(static_cast<float>(b)); } \
  inline C10_HOST_DEVICE T operator op(T a, int b) { return a op T(static_cast<float>(b)); }                      \
  inline C10_HOST_DEVICE T operator op(int a, T b) { return T(static_cast<float>(a)) op b; }                      \
  inline C10_HOST_DEVICE T operator op(T a, int64_t b) { return a op T(static_cast<float>(b)); }                  \
  inline C10_HOST_DEVICE T operator op(int64_t a, T b) { return T(static_cast<float>(a)) op b; }
#define JITLOAD_TORCH_NUMBER_(T)                                                                                \
  JITLOAD_TORCH_ARITHMETIC_(T, +)                                                                               \
  JITLOAD_TORCH_ARITHMETIC_(T, -)                                                                               \
  JITLOAD_TORCH_ARITHMETIC_(T, *)                                                                               \
  JITLOAD_TORCH_ARITHMETIC_(T, /)                                                                               \
  inline C10_HOST_DEVICE T operator-(const T& a) { return -static_cast<float>(a); }                              \
  inline C10_HOST_DEVICE bool operator<(const T& a, const T& b) { return static_cast<float>(a) < static_cast<float>(b); } \
  inline C10_HOST_DEVICE bool operator>(const T& a, const T& b) { return static_cast<float>(a) > static_cast<float>(b); }
JITLOAD_TORCH_NUMBER_(Half)
JITLOAD_TORCH_NUMBER_(BFloat16)
#undef JITLOAD_TORCH_NUMBER_
#undef JITLOAD_TORCH_ARITHMETIC_

}  // namespace c10

namespace std {
/* X(type, digits, digits10, max_digits10, min_exponent, min_exponent10, max_exponent, max_exponent10, is_iec559, min, lowest,
 *   max, epsilon, round_error, infinity, quiet_NaN, signaling_NaN), as torch defines them. */
#define X(T, d, d10, m10, ne, ne10, xe, xe10, iec, v_min, v_low, v_max, v_eps, v_round, v_inf, v_nan, v_snan)             \
  template <>                                                                                                             \
  class numeric_limits<c10::T> : public numeric_limits<float> {                                                           \
   public:                                                                                                                \
    static constexpr bool is_iec559 = iec;                                                                                \
    static constexpr int digits = d, digits10 = d10, max_digits10 = m10, min_exponent = ne, min_exponent10 = ne10,        \
                         max_exponent = xe, max_exponent10 = xe10;                                                        \
    static constexpr c10::T of(uint16_t bits) { return c10::T(bits, c10::T::from_bits()); }                               \
    static constexpr c10::T min() { return of(v_min); }                                                                   \
    static constexpr c10::T lowest() { return of(v_low); }                                                                \
    static constexpr c10::T max() { return of(v_max); }                                                                   \
    static constexpr c10::T epsilon() { return of(v_eps); }                                                               \
    static constexpr c10::T round_error() { return of(v_round); }                                                         \
    static constexpr c10::T infinity() { return of(v_inf); }                                                              \
    static constexpr c10::T quiet_NaN() { return of(v_nan); }                                                             \
    static constexpr c10::T signaling_NaN() { return of(v_snan); }                                                        \
    static constexpr c10::T denorm_min() { return of(1); }                                                                \
  };
X(Half, 11, 3, 5, -13, -4, 16, 4, true, 0x0400, 0xFBFF, 0x7BFF, 0x1400, 0x3800, 0x7C00, 0x7E00, 0x7D00)
X(BFloat16, 8, 2, 4, -125, -37, 128, 38, false, 0x0080, 0xFF7F, 0x7F7F, 0x3C00, 0x3F00, 0x7F80, 0x7FC0, 0x7F80)
#undef X
}  // namespace std

#endif  // JITLOAD_TORCH_HALF_H_
