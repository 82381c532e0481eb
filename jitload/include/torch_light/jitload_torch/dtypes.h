/* The dtypes: at::ScalarType, the C++ types of its members, and TypeMeta. */
#ifndef JITLOAD_TORCH_DTYPES_H_
#define JITLOAD_TORCH_DTYPES_H_

#include "half.h"

namespace c10 {

/* The dtypes that have arithmetic, and the others. X(C++ type, name, number, name in Python, name of the C++ type) */
#define JITLOAD_TORCH_SCALAR_TYPES(X)                                                                                   \
  X(uint8_t, Byte, 0, "uint8", "unsigned char") X(int8_t, Char, 1, "int8", "signed char")                               \
  X(int16_t, Short, 2, "int16", "short int") X(int, Int, 3, "int32", "int") X(int64_t, Long, 4, "int64", "long int")    \
  X(Half, Half, 5, "float16", "c10::Half") X(float, Float, 6, "float32", "float") X(bool, Bool, 11, "bool", "bool")     \
  X(double, Double, 7, "float64", "double") X(BFloat16, BFloat16, 15, "bfloat16", "c10::BFloat16")                      \
  X(uint16_t, UInt16, 27, "uint16", "short unsigned int") X(uint32_t, UInt32, 28, "uint32", "unsigned int")             \
  X(uint64_t, UInt64, 29, "uint64", "long unsigned int")
/* X(name, number, size, name in Python, name of the C++ type) */
#define JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)                                                                             \
  X(ComplexHalf, 8, 4, "complex32", "c10::complex<c10::Half>") X(ComplexFloat, 9, 8, "complex64", "c10::complex<float>") \
  X(ComplexDouble, 10, 16, "complex128", "c10::complex<double>") X(QInt8, 12, 1, "qint8", "c10::qint8")                 \
  X(QUInt8, 13, 1, "quint8", "c10::quint8") X(QInt32, 14, 4, "qint32", "c10::qint32")                                   \
  X(Float8_e5m2, 23, 1, "float8_e5m2", "c10::Float8_e5m2") X(Float8_e4m3fn, 24, 1, "float8_e4m3fn", "c10::Float8_e4m3fn") \
  X(Float8_e5m2fnuz, 25, 1, "float8_e5m2fnuz", "c10::Float8_e5m2fnuz")                                                  \
  X(Float8_e4m3fnuz, 26, 1, "float8_e4m3fnuz", "c10::Float8_e4m3fnuz")                                                  \
  X(Float8_e8m0fnu, 44, 1, "float8_e8m0fnu", "c10::Float8_e8m0fnu")                                                     \
  X(Float4_e2m1fn_x2, 45, 1, "float4_e2m1fn_x2", "c10::Float4_e2m1fn_x2")

enum class ScalarType : int8_t {
#define X(T, name, number, ...) name = number,
#define Y(name, number, ...) name = number,
  JITLOAD_TORCH_SCALAR_TYPES(X) JITLOAD_TORCH_OTHER_SCALAR_TYPES(Y)
#undef X
#undef Y
      Undefined = 46,
  NumOptions,
};
#define X(T, name, ...) constexpr ScalarType k##name = ScalarType::name;
#define Y(name, ...) constexpr ScalarType k##name = ScalarType::name;
JITLOAD_TORCH_SCALAR_TYPES(X) JITLOAD_TORCH_OTHER_SCALAR_TYPES(Y)
#undef X
#undef Y
constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf,
                     kFloat32 = kFloat, kFloat64 = kDouble, kComplexFloat32 = kComplexHalf,
                     kComplexFloat64 = kComplexFloat, kComplexFloat128 = kComplexDouble;

template <class T>
struct CppTypeToScalarType;
template <ScalarType N>
struct ScalarTypeToCPPType;
#define X(T, name, ...)                                                                        \
  template <>                                                                                  \
  struct CppTypeToScalarType<T> {                                                              \
    static constexpr ScalarType value = ScalarType::name;                                      \
  };                                                                                           \
  template <>                                                                                  \
  struct ScalarTypeToCPPType<ScalarType::name> {                                               \
    using type = T;                                                                            \
  };
JITLOAD_TORCH_SCALAR_TYPES(X)
X(Float8_e4m3fn, Float8_e4m3fn) X(Float8_e5m2, Float8_e5m2) X(Float8_e4m3fnuz, Float8_e4m3fnuz)
X(Float8_e5m2fnuz, Float8_e5m2fnuz) X(Float8_e8m0fnu, Float8_e8m0fnu)
#undef X
#if INT64_MAX == __LONG_MAX__
template <>
struct CppTypeToScalarType<long long> {
  static constexpr ScalarType value = ScalarType::Long;
};
#endif
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
inline bool isReducedFloatingType(ScalarType t) { return isFloatingType(t) && t != kFloat && t != kDouble; }

/* A generator that is always absent: torch then uses its default one. Texts that make generators are built by torch. */
struct Generator {};

/* What Tensor::dtype() returns: a dtype that prints the name of its C++ type. */
class TypeMeta {
 public:
  constexpr TypeMeta(ScalarType type = ScalarType::Undefined) : type_(type) {}
  constexpr ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return elementSize(type_); }
  template <class T>
  static constexpr TypeMeta Make() {
    return CppTypeToScalarType<T>::value;
  }
  const char* name() const;
  friend constexpr bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
  friend constexpr bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }

 private:
  ScalarType type_;
};
inline TypeMeta scalarTypeToTypeMeta(ScalarType type) { return type; }
inline ScalarType typeMetaToScalarType(TypeMeta type) { return type.toScalarType(); }

}  // namespace c10

namespace caffe2 {
using c10::TypeMeta;
}
/* The names in the copies of torch's headers. */
namespace torch {
namespace headeronly {
using namespace c10;
namespace impl {
using c10::ScalarTypeToCPPTypeT;
}
}  // namespace headeronly
}  // namespace torch

#endif  // JITLOAD_TORCH_DTYPES_H_
