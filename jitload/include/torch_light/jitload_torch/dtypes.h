/* Numbers of two bytes, the dtypes (at::ScalarType), the C++ types of their members, and TypeMeta. */
#pragma once

#include "runtime.h"

namespace c10 {

template <class To, class From>
C10_HOST_DEVICE To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "");
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline C10_HOST_DEVICE float bits_to_float(uint32_t bits) { return same_bits<float>(bits); }
inline C10_HOST_DEVICE uint32_t float_to_bits(float value) { return same_bits<uint32_t>(value); }

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
  C10_HOST_DEVICE Half(const __half& value) : x(same_bits<uint16_t>(value)) {}
  C10_HOST_DEVICE operator __half() const { return same_bits<__half>(x); }
#endif
};

struct alignas(2) BFloat16 {
  JITLOAD_TORCH_BITS_(BFloat16)
  C10_HOST_DEVICE BFloat16(float value) : x(float_to_bfloat16(value)) {}
  C10_HOST_DEVICE operator float() const { return bits_to_float(static_cast<uint32_t>(x) << 16); }
#if defined(__CUDA_BF16_H__)
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value) : x(same_bits<uint16_t>(value)) {}
  explicit C10_HOST_DEVICE operator __nv_bfloat16() const { return same_bits<__nv_bfloat16>(x); }
#endif
};

#if defined(__CUDACC__)
template <class T> __device__ T __ldg(const T* address) { return {::__ldg(&address->x), T::from_bits()}; }
#endif
/* Copies of torch's headers define the first five, for texts that name them, and name the last one. */
struct Float8_e4m3fn;
struct Float8_e5m2;
struct Float8_e4m3fnuz;
struct Float8_e5m2fnuz;
struct Float8_e8m0fnu;
template <class T> struct complex;

/* Combined as floats. The result has this type, or that of the other number if it is a float or a double. */
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
#define X(op) JITLOAD_TORCH_ARITHMETIC_(Half, op) JITLOAD_TORCH_ARITHMETIC_(BFloat16, op)
X(+) X(-) X(*) X(/)
#undef X
inline C10_HOST_DEVICE Half operator-(const Half& a) { return -static_cast<float>(a); }
inline C10_HOST_DEVICE BFloat16 operator-(const BFloat16& a) { return -static_cast<float>(a); }
/* As in torch: other comparisons are those of floats. */
inline C10_HOST_DEVICE bool operator<(BFloat16& a, BFloat16& b) { return static_cast<float>(a) < static_cast<float>(b); }
inline C10_HOST_DEVICE bool operator>(BFloat16& a, BFloat16& b) { return static_cast<float>(a) > static_cast<float>(b); }

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

namespace c10 {

/* The dtypes that have arithmetic, and the others. X(C++ type, name, number, name in Python, name of the C++ type) */
#define JITLOAD_TORCH_SCALAR_TYPES(X)                                                                                   \
  X(uint8_t, Byte, 0, "uint8", "unsigned char") X(int8_t, Char, 1, "int8", "signed char")                               \
  X(int16_t, Short, 2, "int16", "short int") X(int, Int, 3, "int32", "int") X(int64_t, Long, 4, "int64", "long int")    \
  X(Half, Half, 5, "float16", "c10::Half") X(float, Float, 6, "float32", "float") X(bool, Bool, 11, "bool", "bool")     \
  X(double, Double, 7, "float64", "double") X(BFloat16, BFloat16, 15, "bfloat16", "c10::BFloat16")                      \
  X(uint16_t, UInt16, 27, "uint16", "short unsigned int") X(uint32_t, UInt32, 28, "uint32", "unsigned int")             \
  X(uint64_t, UInt64, 29, "uint64", "long unsigned int")
/* The others, each with an array of its size instead of a C++ type. */
#define JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)                                                                           \
  X(char[4], ComplexHalf, 8, "complex32", "c10::complex<c10::Half>")                                                  \
  X(char[8], ComplexFloat, 9, "complex64", "c10::complex<float>")                                                     \
  X(char[16], ComplexDouble, 10, "complex128", "c10::complex<double>") X(char[1], QInt8, 12, "qint8", "c10::qint8")   \
  X(char[1], QUInt8, 13, "quint8", "c10::quint8") X(char[4], QInt32, 14, "qint32", "c10::qint32")                     \
  X(char[1], Float8_e5m2, 23, "float8_e5m2", "c10::Float8_e5m2")                                                      \
  X(char[1], Float8_e4m3fn, 24, "float8_e4m3fn", "c10::Float8_e4m3fn")                                                \
  X(char[1], Float8_e5m2fnuz, 25, "float8_e5m2fnuz", "c10::Float8_e5m2fnuz")                                          \
  X(char[1], Float8_e4m3fnuz, 26, "float8_e4m3fnuz", "c10::Float8_e4m3fnuz")                                          \
  X(char[1], Float8_e8m0fnu, 44, "float8_e8m0fnu", "c10::Float8_e8m0fnu")                                             \
  X(char[1], Float4_e2m1fn_x2, 45, "float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2")
#define JITLOAD_TORCH_ALL_SCALAR_TYPES(X) JITLOAD_TORCH_SCALAR_TYPES(X) JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)

enum class ScalarType : int8_t {
#define X(T, name, number, ...) name = number,
  JITLOAD_TORCH_ALL_SCALAR_TYPES(X)
#undef X
      Undefined = 46,
  NumOptions,
};
#define X(T, name, ...) constexpr ScalarType k##name = ScalarType::name;
JITLOAD_TORCH_ALL_SCALAR_TYPES(X)
#undef X
constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf,
                     kFloat32 = kFloat, kFloat64 = kDouble, kComplexFloat32 = kComplexHalf,
                     kComplexFloat64 = kComplexFloat, kComplexFloat128 = kComplexDouble;

template <ScalarType N>
struct ScalarTypeConstant {
  static constexpr ScalarType value = N;
  constexpr operator ScalarType() const { return N; }
};
template <class T>
struct CppTypeToScalarType;
template <ScalarType N>
struct ScalarTypeToCPPType;
#define X(T, name, ...)                                                                        \
  template <>                                                                                  \
  struct CppTypeToScalarType<T> : ScalarTypeConstant<ScalarType::name> {};                     \
  template <>                                                                                  \
  struct ScalarTypeToCPPType<ScalarType::name> {                                               \
    using type = T;                                                                            \
  };
JITLOAD_TORCH_SCALAR_TYPES(X)
X(Float8_e4m3fn, Float8_e4m3fn) X(Float8_e5m2, Float8_e5m2) X(Float8_e4m3fnuz, Float8_e4m3fnuz)
X(Float8_e5m2fnuz, Float8_e5m2fnuz) X(Float8_e8m0fnu, Float8_e8m0fnu)
#undef X
template <>
struct CppTypeToScalarType<long long> : CppTypeToScalarType<long> {};
template <class T>
struct CppTypeToScalarType<const T> : CppTypeToScalarType<T> {};
template <ScalarType N>
using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<N>::type;

const char* toString(ScalarType type);
size_t elementSize(ScalarType type);
inline bool isComplexType(ScalarType t) { return t == kComplexHalf || t == kComplexFloat || t == kComplexDouble; }
inline bool isIntegralType(ScalarType t, bool include_bool) {
  return (t >= kByte && t <= kLong) || t == kUInt16 || t == kUInt32 || t == kUInt64 || (include_bool && t == kBool);
}
inline bool isFloatingType(ScalarType t) {
  return t == kHalf || t == kFloat || t == kDouble || t == kBFloat16 || (t >= kFloat8_e5m2 && t <= kFloat8_e4m3fnuz) ||
         t == kFloat8_e8m0fnu;
}

/* A generator that is always absent: torch then uses its default one. Texts that make generators are built by torch. */
struct Generator {};

/* What Tensor::dtype() returns: a dtype that prints the name of its C++ type. */
class TypeMeta {
 public:
  constexpr TypeMeta(ScalarType type = ScalarType::Undefined) : type_(type) {}
  constexpr ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return elementSize(type_); }
  template <class T>
  static constexpr TypeMeta Make() { return CppTypeToScalarType<T>::value; }
  const char* name() const;
  friend constexpr bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
  friend constexpr bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }

 private:
  ScalarType type_;
};
inline TypeMeta scalarTypeToTypeMeta(ScalarType type) { return type; }
inline ScalarType typeMetaToScalarType(TypeMeta type) { return type.toScalarType(); }

}  // namespace c10

/* The names in the copies of torch's headers. */
namespace torch::headeronly {
using namespace c10;
namespace impl = c10;
}  // namespace torch::headeronly
