/* C++ values to Python objects and back, for the arguments and results of functions and of operators. */
#pragma once

#include "check.h"

namespace at {
class Tensor;
namespace indexing {
class TensorIndex;
}
}  // namespace at

namespace jitload_torch {

/* T without references and const. */
template <class T>
identity<T> plain_identity(const T&);
template <class T>
using plain = decltype(plain_identity(value_of<T>()));

template <size_t... I>
struct Indices {};
template <size_t N>
using IndicesOf = Indices<__integer_pack(N)...>;

/* The types that the compiled files convert, of which each has a number. X(C++ type, name) */
#define JITLOAD_TORCH_INTEGERS_(X)                                                                                    \
  X(signed char, int8) X(short, int16) X(int, int32) X(long, int64) X(unsigned char, uint8) X(unsigned short, uint16) \
  X(unsigned, uint32) X(unsigned long, uint64)
#define JITLOAD_TORCH_FLOATS_(X) X(float, float32) X(double, float64) X(c10::Half, half) X(c10::BFloat16, bfloat16)
#define JITLOAD_TORCH_TYPES_(X)                                                                                       \
  JITLOAD_TORCH_INTEGERS_(X) JITLOAD_TORCH_FLOATS_(X)                                                                 \
  X(bool, boolean) X(const char*, c_string) X(c10::TextArg, text)                                                     \
  X(c10::ScalarType, dtype) X(c10::Layout, layout) X(c10::MemoryFormat, memory_format) X(c10::Device, device)         \
  X(c10::Scalar, scalar) X(Object, object) X(at::Tensor, tensor) X(at::indexing::TensorIndex, index)                  \
  X(c10::Generator, nothing)
enum class Type : uint8_t {
#define X(T, name) name,
  JITLOAD_TORCH_TYPES_(X)
#undef X
      string, /* std::string */
};
/* A code is such a number, above which each two bits say what holds the values, from the outside to the inside. */
enum Holder : unsigned { kPlain, kOptional, kArray };
constexpr unsigned held(Holder holder, unsigned code) { return (code & 0xff) | ((code >> 8) << 2 | holder) << 8; }
template <class T>
struct Code;
#define X(T, name)                                                \
  template <>                                                     \
  struct Code<T> {                                                \
    static constexpr unsigned value = static_cast<unsigned>(Type::name); \
  };
JITLOAD_TORCH_TYPES_(X)
#if defined(_GLIBCXX_STRING)
X(std::string, string)
#endif
#if defined(_GLIBCXX_OPTIONAL)
X(std::nullopt_t, nothing)
#endif
#undef X
template <>
struct Code<long long> : Code<long> {};
template <>
struct Code<unsigned long long> : Code<unsigned long> {};
template <>
struct Code<c10::TypeMeta> : Code<c10::ScalarType> {};
template <class T>
struct Code<c10::OptionalArg<T>> {
  static constexpr unsigned value = held(kOptional, Code<T>::value);
};
template <class T>
struct Code<c10::ArrayRef<T>> {
  static constexpr unsigned value = held(kArray, Code<T>::value);
};
template <>
struct Code<c10::OptionalIntArrayRef> : Code<c10::OptionalArg<c10::IntArrayRef>> {};

/* An array becomes a tuple, as in torch. */
Object object_of(unsigned code, const void* value);
bool load_object(unsigned code, void* object, bool convert, void* value); /* false for an object of another type */
const char* type_name(unsigned code, bool is_result);

/* Caster<T>: `to_python`, `load` (false for an object of another type), and `describe` (the type, for messages). */
template <class T>
struct Caster {
  static Object to_python(const T& value) { return object_of(Code<T>::value, &value); }
  static bool load(void* object, bool convert, T* value) { return load_object(Code<T>::value, object, convert, value); }
  static void describe(Message& m, bool is_result) { m.append(type_name(Code<T>::value, is_result)); }
};
/* What holds values only goes to Python: `Slot` reads arrays and owns their items. */
template <class T>
struct Caster<c10::ArrayRef<T>> {
  static Object to_python(const c10::ArrayRef<T>& values) { return object_of(Code<c10::ArrayRef<T>>::value, &values); }
  static void describe(Message& m, bool) { m.append("Tuple[int, ...]"); }
};
/* Not defined: Python cannot pass these to the light headers, and torch builds functions with such parameters. */
template <> struct Caster<c10::OptionalIntArrayRef>;
template <> struct Caster<c10::Generator>;
template <size_t N>
struct Caster<char[N]> {
  static Object to_python(const char* value) { return Caster<const char*>::to_python(value); }
};

template <class T>
bool load_item(void* sequence, size_t index, bool convert, T* value) {
  const Object item = sequence_item(sequence, index);
  return item.get() != nullptr && Caster<T>::load(item.get(), convert, value);
}
template <class T, class F>
bool load_each(void* sequence, bool convert, const F& add) {
  size_t size = 0;
  if (!sequence_size(sequence, &size)) return false;
  for (size_t i = 0; i < size; ++i) {
    T value{};
    if (!load_item(sequence, i, convert, &value)) return false;
    add(static_cast<T&&>(value));
  }
  return true;
}
template <class C>
Object list_of(const C& values) {
  Object list = python_list(values.size());
  size_t index = 0;
  for (const auto& value : values) set_item(list, index++, Caster<typename C::value_type>::to_python(value));
  return list;
}
template <class... T>
Object tuple_of(const T&... values) {
  Object tuple = python_tuple(sizeof...(T));
  size_t index = 0;
  (set_item(tuple, index++, Caster<T>::to_python(values)), ...);
  return tuple;
}
template <class T>
void describe_held(Message& m, const char* before, const char* after, bool is_result) {
  m.append(before);
  Caster<T>::describe(m, is_result);
  m.append(after);
}
#if defined(_GLIBCXX_OPTIONAL)
template <class T>
struct Caster<std::optional<T>> {
  static Object to_python(const std::optional<T>& value) { return value ? Caster<T>::to_python(*value) : none(); }
  static bool load(void* object, bool convert, std::optional<T>* value) {
    value->reset();
    return is_none(object) || Caster<T>::load(object, convert, &value->emplace());
  }
  static void describe(Message& m, bool is_result) { describe_held<T>(m, "", " | None", is_result); }
};
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
struct Caster<std::vector<T>> {
  static Object to_python(const std::vector<T>& values) { return list_of(values); }
  static bool load(void* object, bool convert, std::vector<T>* values) {
    values->clear();
    return load_each<T>(items_of(object, convert).get(), convert, [&](T&& item) { values->push_back(static_cast<T&&>(item)); });
  }
  static void describe(Message& m, bool is_result) {
    describe_held<T>(m, is_result ? "list[" : "collections.abc.Sequence[", "]", is_result);
  }
};
#endif
#if defined(_STL_PAIR_H)
template <class C, class I, class... T>
struct TupleCaster;
template <class C, size_t... I, class... T>
struct TupleCaster<C, Indices<I...>, T...> {
  static Object to_python(const C& values) { return tuple_of(std::get<I>(values)...); }
  static bool load(void* object, bool convert, C* values) {
    size_t size = 0;
    return sequence_size(object, &size) && size == sizeof...(T) &&
           (true && ... && load_item(object, I, convert, &std::get<I>(*values)));
  }
  static void describe(Message& m, bool is_result) {
    (describe_held<typename plain<T>::type>(m, I == 0 ? "tuple[" : ", ", "", is_result), ...);
    m.append(sizeof...(T) == 0 ? "tuple[]" : "]");
  }
};
template <class A, class B>
struct Caster<std::pair<A, B>> : TupleCaster<std::pair<A, B>, IndicesOf<2>, A, B> {};
#endif
#if defined(_GLIBCXX_TUPLE)
template <class... T>
struct Caster<std::tuple<T...>> : TupleCaster<std::tuple<T...>, IndicesOf<sizeof...(T)>, T...> {};
#endif
template <class... A>
Object call_path(const char* path, const char* keywords, const A&... arguments) {
  void* objects[] = {Caster<A>::to_python(arguments).release()..., nullptr};
  return invoke_path(path, keywords, objects, sizeof...(A));
}
/* The value of an object. */
[[noreturn]] void fail_cast(void* object, void (*describe)(Message&, bool));
template <class T>
T python_value(const Object& object) {
  T value{};
  if (!Caster<T>::load(object.get(), true, &value)) fail_cast(object.get(), &Caster<T>::describe);
  return value;
}

}  // namespace jitload_torch
