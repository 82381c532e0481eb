/* The dtypes: at::ScalarType, the C++ types of its members, and TypeMeta. */
#ifndef JITLOAD_TORCH_DTYPES_H_
#define JITLOAD_TORCH_DTYPES_H_

#include "half.h"

namespace c10 {

/* X(C++ type, name, value) */
#define JITLOAD_TORCH_SCALAR_TYPES(X)                                                                              \
  X(uint8_t, Byte, 0) X(int8_t, Char, 1) X(int16_t, Short, 2) X(int, Int, 3) X(int64_t, Long, 4) X(Half, Half, 5)  \
  X(float, Float, 6) X(double, Double, 7) X(bool, Bool, 11) X(BFloat16, BFloat16, 15)                              \
  X(uint16_t, UInt16, 27) X(uint32_t, UInt32, 28) X(uint64_t, UInt64, 29)
#define JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)                                                                        \
  X(ComplexHalf, 8, 4) X(ComplexFloat, 9, 8) X(ComplexDouble, 10, 16) X(Float8_e5m2, 23, 1) X(Float8_e4m3fn, 24, 1) \
  X(Float8_e5m2fnuz, 25, 1) X(Float8_e4m3fnuz, 26, 1) X(Float8_e8m0fnu, 44, 1)                       \
  X(Float4_e2m1fn_x2, 45, 1) X(QInt8, 12, 1) X(QUInt8, 13, 1) X(QInt32, 14, 4)

enum class ScalarType : int8_t {
#define X(T, name, value) name = value,
  JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
#define X(name, value, size) name = value,
      JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)
#undef X
          Undefined = 46,
  NumOptions,
};
#define X(T, name, value) constexpr ScalarType k##name = ScalarType::name;
JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
#define X(name, value, size) constexpr ScalarType k##name = ScalarType::name;
JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)
#undef X
constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf,
                     kFloat32 = kFloat, kFloat64 = kDouble, kComplexFloat32 = kComplexHalf,
                     kComplexFloat64 = kComplexFloat, kComplexFloat128 = kComplexDouble;

template <class T>
struct CppTypeToScalarType;
template <ScalarType N>
struct ScalarTypeToCPPType;
#define X(T, name, number)                                                                     \
  template <>                                                                                  \
  struct CppTypeToScalarType<T> {                                                              \
    static constexpr ScalarType value = ScalarType::name;                                      \
  };                                                                                           \
  template <>                                                                                  \
  struct ScalarTypeToCPPType<ScalarType::name> {                                               \
    using type = T;                                                                            \
  };
JITLOAD_TORCH_SCALAR_TYPES(X)
X(Float8_e4m3fn, Float8_e4m3fn, 24) X(Float8_e5m2, Float8_e5m2, 23) X(Float8_e4m3fnuz, Float8_e4m3fnuz, 26)
X(Float8_e5m2fnuz, Float8_e5m2fnuz, 25) X(Float8_e8m0fnu, Float8_e8m0fnu, 44)
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

inline const char* toString(ScalarType type) {
  switch (type) {
#define X(T, name, value) \
  case ScalarType::name:  \
    return #name;
    JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
#define X(name, value, size) \
  case ScalarType::name:     \
    return #name;
    JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)
#undef X
    default:
      return "UNKNOWN_SCALAR";
  }
}
inline size_t elementSize(ScalarType type) {
  switch (type) {
#define X(T, name, value) \
  case ScalarType::name:  \
    return sizeof(T);
    JITLOAD_TORCH_SCALAR_TYPES(X)
#undef X
#define X(name, value, size) \
  case ScalarType::name:     \
    return size;
    JITLOAD_TORCH_OTHER_SCALAR_TYPES(X)
#undef X
    default:
      return 0;
  }
}
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
  const char* name() const {
    switch (type_) {
      case kByte: return "unsigned char";
      case kChar: return "signed char";
      case kShort: return "short int";
      case kInt: return "int";
      case kLong: return "long int";
      case kHalf: return "c10::Half";
      case kFloat: return "float";
      case kDouble: return "double";
      case kComplexHalf: return "c10::complex<c10::Half>";
      case kComplexFloat: return "c10::complex<float>";
      case kComplexDouble: return "c10::complex<double>";
      case kBool: return "bool";
      case kBFloat16: return "c10::BFloat16";
      case kUInt16: return "short unsigned int";
      case kUInt32: return "unsigned int";
      case kUInt64: return "long unsigned int";
      case kFloat8_e5m2: return "c10::Float8_e5m2";
      case kFloat8_e4m3fn: return "c10::Float8_e4m3fn";
      case kFloat8_e5m2fnuz: return "c10::Float8_e5m2fnuz";
      case kFloat8_e4m3fnuz: return "c10::Float8_e4m3fnuz";
      case kFloat8_e8m0fnu: return "c10::Float8_e8m0fnu";
      case kFloat4_e2m1fn_x2: return "c10::Float4_e2m1fn_x2";
      case kQInt8: return "c10::qint8";
      case kQUInt8: return "c10::quint8";
      case kQInt32: return "c10::qint32";
      case ScalarType::Undefined: return "nullptr (uninitialized)";
      default: return toString(type_);
    }
  }
  friend constexpr bool operator==(TypeMeta a, TypeMeta b) { return a.type_ == b.type_; }
  friend constexpr bool operator!=(TypeMeta a, TypeMeta b) { return a.type_ != b.type_; }
  friend constexpr bool operator==(TypeMeta a, ScalarType b) { return a.type_ == b; }
  friend constexpr bool operator!=(TypeMeta a, ScalarType b) { return a.type_ != b; }
  friend constexpr bool operator==(ScalarType a, TypeMeta b) { return a == b.type_; }
  friend constexpr bool operator!=(ScalarType a, TypeMeta b) { return a != b.type_; }

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
