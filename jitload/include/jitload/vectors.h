/* CUDA's vector types as parameters of exported functions: `void f(TensorView x, float4 color, dim3 grid)` takes tuples
 * of numbers in Python.
 *
 * CUDA's headers are needed, `vector_types.h` among them.
 */
#ifndef JITLOAD_VECTORS_H_
#define JITLOAD_VECTORS_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <vector_types.h>

#include <limits>
#include <optional>
#include <string>
#include <type_traits>

namespace jitload {

/* A number of a vector, or nothing for another value or one out of range. */
template <class Element>
std::optional<Element> ReadElement(const tvm::ffi::Any& item) {
  if constexpr (std::is_floating_point_v<Element>) {
    if (auto number = item.try_cast<double>()) return static_cast<Element>(*number);
  } else if (item.type_index() != tvm::ffi::TypeIndex::kTVMFFIFloat) {
    const auto number = item.try_cast<int64_t>();
    if (!number || (std::is_unsigned_v<Element> && *number < 0)) return std::nullopt;
    const auto element = static_cast<Element>(*number);
    if (static_cast<int64_t>(element) == *number) return element;
  }
  return std::nullopt;
}

/* How tvm-ffi reads a vector of `count` elements; with `least` elements or more, the others are 1. */
template <class Vector, class Element, int count, int least>
struct VectorTraits : public tvm::ffi::TypeTraitsBase {
  static constexpr bool storage_enabled = false;

  static bool CheckAnyStrict(const TVMFFIAny*) { return false; }
  static Vector CopyFromAnyViewAfterCheck(const TVMFFIAny* source) { return *TryCastFromAnyView(source); }

  static std::optional<Vector> TryCastFromAnyView(const TVMFFIAny* source) {
    const auto items = tvm::ffi::TypeTraits<tvm::ffi::Array<tvm::ffi::Any>>::TryCastFromAnyView(source);
    const int size = items ? static_cast<int>(items->size()) : -1;
    if (size < least || size > count) return std::nullopt;
    Vector vector;
    Element* elements = reinterpret_cast<Element*>(&vector);
    for (int i = 0; i < count; ++i) {
      const std::optional<Element> element = i < size ? ReadElement<Element>((*items)[i]) : Element{1};
      if (!element) return std::nullopt;
      elements[i] = *element;
    }
    return vector;
  }

  static std::string TypeSchema() { return R"({"type":"ffi.Array"})"; }
};

}  // namespace jitload

#define JITLOAD_VECTOR_(type, element, count, least)                                                    \
  template <>                                                                                           \
  struct tvm::ffi::TypeTraits<type> : public ::jitload::VectorTraits<type, element, count, least> {     \
    static std::string TypeStr() { return #type ", a tuple of " #count " numbers in range"; }           \
  };
#define JITLOAD_VECTORS_(name, element)   \
  JITLOAD_VECTOR_(name##1, element, 1, 1) \
  JITLOAD_VECTOR_(name##2, element, 2, 2) \
  JITLOAD_VECTOR_(name##3, element, 3, 3) \
  JITLOAD_VECTOR_(name##4, element, 4, 4)

JITLOAD_VECTORS_(char, signed char)
JITLOAD_VECTORS_(uchar, unsigned char)
JITLOAD_VECTORS_(short, short)
JITLOAD_VECTORS_(ushort, unsigned short)
JITLOAD_VECTORS_(int, int)
JITLOAD_VECTORS_(uint, unsigned int)
JITLOAD_VECTORS_(float, float)
JITLOAD_VECTOR_(long1, long, 1, 1)
JITLOAD_VECTOR_(long2, long, 2, 2)
JITLOAD_VECTOR_(long3, long, 3, 3)
JITLOAD_VECTOR_(longlong1, long long, 1, 1)
JITLOAD_VECTOR_(longlong2, long long, 2, 2)
JITLOAD_VECTOR_(longlong3, long long, 3, 3)
JITLOAD_VECTOR_(double1, double, 1, 1)
JITLOAD_VECTOR_(double2, double, 2, 2)
JITLOAD_VECTOR_(double3, double, 3, 3)
JITLOAD_VECTOR_(dim3, unsigned int, 3, 1)

#endif /* JITLOAD_VECTORS_H_ */
