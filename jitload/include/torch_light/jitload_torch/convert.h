/* C++ values to Python objects and back, for the arguments and results of functions and of operators. */
#ifndef JITLOAD_TORCH_CONVERT_H_
#define JITLOAD_TORCH_CONVERT_H_

#include "check.h"

namespace at {
class Tensor;
}

namespace jitload_torch {

/* T without references and const. */
template <class T>
struct plain {
  using type = T;
};
template <class T>
struct plain<T&> : plain<T> {};
template <class T>
struct plain<T&&> : plain<T> {};
template <class T>
struct plain<const T> : plain<T> {};

/* Caster<T>: `to_python`, `load` (false for an object of another type), and `describe` (the type, for messages). */
template <class T>
struct Caster;

#define JITLOAD_TORCH_INTEGER_(T, low, high)                                                   \
  template <>                                                                                  \
  struct Caster<T> {                                                                           \
    static Object to_python(T value) { return python_integer(static_cast<long long>(value)); } \
    static bool load(void* object, bool convert, T* value) {                                   \
      long long wide = 0;                                                                      \
      if (!integer_from(object, convert, low, high, &wide)) return false;                      \
      *value = static_cast<T>(wide);                                                           \
      return true;                                                                             \
    }                                                                                          \
    static void describe(Message& m, bool is_result) {                                         \
      m.append(is_result ? "int" : "typing.SupportsInt | typing.SupportsIndex");               \
    }                                                                                          \
  };
#define JITLOAD_TORCH_UNSIGNED_(T)                                                                          \
  template <>                                                                                               \
  struct Caster<T> {                                                                                        \
    static Object to_python(T value) { return python_unsigned(static_cast<unsigned long long>(value)); }    \
    static bool load(void* object, bool convert, T* value) {                                                \
      unsigned long long wide = 0;                                                                          \
      if (!unsigned_from(object, convert, static_cast<unsigned long long>(static_cast<T>(-1)), &wide)) return false; \
      *value = static_cast<T>(wide);                                                                        \
      return true;                                                                                          \
    }                                                                                                       \
    static void describe(Message& m, bool is_result) { Caster<int>::describe(m, is_result); }               \
  };
JITLOAD_TORCH_INTEGER_(int, INT32_MIN, INT32_MAX)
JITLOAD_TORCH_INTEGER_(short, INT16_MIN, INT16_MAX)
JITLOAD_TORCH_INTEGER_(signed char, INT8_MIN, INT8_MAX)
JITLOAD_TORCH_INTEGER_(long, INT64_MIN, INT64_MAX)
JITLOAD_TORCH_INTEGER_(long long, INT64_MIN, INT64_MAX)
JITLOAD_TORCH_UNSIGNED_(unsigned char)
JITLOAD_TORCH_UNSIGNED_(unsigned short)
JITLOAD_TORCH_UNSIGNED_(unsigned)
JITLOAD_TORCH_UNSIGNED_(unsigned long)
JITLOAD_TORCH_UNSIGNED_(unsigned long long)
#undef JITLOAD_TORCH_INTEGER_
#undef JITLOAD_TORCH_UNSIGNED_

#define JITLOAD_TORCH_FLOATING_(T)                                                  \
  template <>                                                                       \
  struct Caster<T> {                                                                \
    static Object to_python(T value) { return python_float(value); }                \
    static bool load(void* object, bool convert, T* value) {                        \
      double wide = 0;                                                              \
      if (!float_from(object, convert, &wide)) return false;                        \
      *value = static_cast<T>(wide);                                                \
      return true;                                                                  \
    }                                                                               \
    static void describe(Message& m, bool is_result) {                              \
      m.append(is_result ? "float" : "typing.SupportsFloat | typing.SupportsIndex"); \
    }                                                                               \
  };
JITLOAD_TORCH_FLOATING_(float)
JITLOAD_TORCH_FLOATING_(double)
#undef JITLOAD_TORCH_FLOATING_
template <>
struct Caster<c10::Half> {
  static Object to_python(c10::Half value) { return python_float(value); }
};
template <>
struct Caster<c10::BFloat16> {
  static Object to_python(c10::BFloat16 value) { return python_float(value); }
};

template <>
struct Caster<Object> {
  static Object to_python(const Object& value) { return borrow(value.get()); }
};
template <>
struct Caster<bool> {
  static Object to_python(bool value) { return python_bool(value); }
  static bool load(void* object, bool convert, bool* value) { return bool_from(object, convert, value); }
  static void describe(Message& m, bool) { m.append("bool"); }
};
template <>
struct Caster<char> {
  static Object to_python(char value) { return python_text(&value, 1); }
  static bool load(void* object, bool, char* value) { return character_from(object, value); }
  static void describe(Message& m, bool) { m.append("str"); }
};
template <>
struct Caster<c10::TextArg> {
  static Object to_python(const c10::TextArg& value) { return python_text(value.data(), value.size()); }
};
template <>
struct Caster<const char*> {
  static Object to_python(const char* value) { return python_text(value, __builtin_strlen(value)); }
  static void describe(Message& m, bool) { m.append("str"); }
};
template <size_t N>
struct Caster<char[N]> : Caster<const char*> {};
#if defined(_GLIBCXX_STRING)
template <>
struct Caster<std::string> {
  static Object to_python(const std::string& value) { return python_text(value.data(), value.size()); }
  static bool load(void* object, bool, std::string* value) {
    const char* text = nullptr;
    size_t size = 0;
    if (!text_from(object, &text, &size)) return false;
    value->assign(text, size);
    return true;
  }
  static void describe(Message& m, bool) { m.append("str"); }
};
#endif

#define JITLOAD_TORCH_ENUMERATION_(T, function, name)                        \
  template <>                                                                \
  struct Caster<c10::T> {                                                    \
    static Object to_python(c10::T value) {                                  \
      return python_##function(static_cast<int8_t>(value));                  \
    }                                                                        \
    static bool load(void* object, bool, c10::T* value) {                    \
      int8_t number = 0;                                                     \
      if (!function##_from(object, &number)) return false;                   \
      *value = static_cast<c10::T>(number);                                  \
      return true;                                                           \
    }                                                                        \
    static void describe(Message& m, bool) { m.append(name); }               \
  };
JITLOAD_TORCH_ENUMERATION_(ScalarType, dtype, "torch.dtype")
JITLOAD_TORCH_ENUMERATION_(Layout, layout, "torch.layout")
JITLOAD_TORCH_ENUMERATION_(MemoryFormat, memory_format, "torch.memory_format")
#undef JITLOAD_TORCH_ENUMERATION_
template <>
struct Caster<c10::TypeMeta> {
  static Object to_python(c10::TypeMeta value) { return python_dtype(static_cast<int8_t>(value.toScalarType())); }
  static void describe(Message& m, bool) { m.append("torch.dtype"); }
};
template <>
struct Caster<c10::Device> {
  static Object to_python(const c10::Device& value) {
    return python_device(static_cast<int8_t>(value.type()), value.index());
  }
  static bool load(void* object, bool, c10::Device* value) {
    int8_t type = 0, index = 0;
    if (!device_from(object, &type, &index)) return false;
    *value = c10::Device(static_cast<c10::DeviceType>(type), index);
    return true;
  }
  static void describe(Message& m, bool) { m.append("torch.device"); }
};
template <>
struct Caster<c10::Scalar> {
  static Object to_python(const c10::Scalar& value) {
    switch (value.tag()) {
      case c10::Scalar::Tag::floating: return python_float(value.toDouble());
      case c10::Scalar::Tag::integer: return python_integer(value.toLong());
      case c10::Scalar::Tag::boolean: return python_bool(value.toBool());
      default: return python_complex(value.real(), value.imaginary());
    }
  }
  static bool load(void* object, bool, c10::Scalar* value) {
    double real = 0, imaginary = 0;
    bool flag = false;
    long long integer = 0;
    if (is_bool(object)) {
      *value = bool_from(object, false, &flag) && flag;
    } else if (is_float(object)) {
      *value = float_from(object, true, &real) ? real : 0;
    } else if (is_integer(object)) {
      if (!integer_from(object, true, INT64_MIN, INT64_MAX, &integer)) {
        fail(ErrorKind::runtime, "jitload's headers for torch do not support integers of 2**63 or more");
      }
      *value = integer;
    } else if (complex_from(object, &real, &imaginary)) {
      *value = c10::Scalar::complex(real, imaginary);
    } else {
      return false;
    }
    return true;
  }
  static void describe(Message& m, bool) { m.append("Union[Number, torch.SymInt, torch.SymFloat, torch.SymBool]"); }
};

template <class T>
Object list_of(const T* values, size_t size) {
  Object list = python_list(size);
  for (size_t i = 0; i < size; ++i) set_list_item(list, i, Caster<T>::to_python(values[i]));
  return list;
}
template <class T>
bool load_items(void* object, bool convert, T* values, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const Object item = sequence_item(object, i);
    if (item.get() == nullptr || !Caster<T>::load(item.get(), convert, &values[i])) return false;
  }
  return true;
}
/* Arrays become tuples, as in torch; operators take tuples like lists. `Slot` reads arrays and owns their items. */
template <class T>
struct Caster<c10::ArrayRef<T>> {
  static Object to_python(c10::ArrayRef<T> values) {
    Object tuple = python_tuple(values.size());
    for (size_t i = 0; i < values.size(); ++i) set_tuple_item(tuple, i, Caster<T>::to_python(values[i]));
    return tuple;
  }
  static void describe(Message& m, bool) { m.append("Tuple[int, ...]"); }
};
template <class T>
struct Caster<c10::OptionalArg<T>> {
  static Object to_python(const c10::OptionalArg<T>& value) {
    return value.has_value() ? Caster<T>::to_python(*value) : none();
  }
};
#if defined(_GLIBCXX_OPTIONAL)
template <class T>
struct Caster<std::optional<T>> {
  static Object to_python(const std::optional<T>& value) { return value ? Caster<T>::to_python(*value) : none(); }
  static bool load(void* object, bool convert, std::optional<T>* value) {
    if (is_none(object)) {
      value->reset();
      return true;
    }
    T inner{};
    if (!Caster<T>::load(object, convert, &inner)) return false;
    *value = inner;
    return true;
  }
  static void describe(Message& m, bool is_result) {
    Caster<T>::describe(m, is_result);
    m.append(" | None");
  }
};
template <>
struct Caster<std::nullopt_t> {
  static Object to_python(std::nullopt_t) { return none(); }
};
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
struct Caster<std::vector<T>> {
  static Object to_python(const std::vector<T>& values) {
    Object list = python_list(values.size());
    for (size_t i = 0; i < values.size(); ++i) set_list_item(list, i, Caster<T>::to_python(values[i]));
    return list;
  }
  static bool load(void* object, bool convert, std::vector<T>* values) {
    size_t size = 0;
    const Object items = items_of(object);
    if (!sequence_size(items.get(), &size)) return false;
    values->clear();
    for (size_t i = 0; i < size; ++i) {
      T value{};
      const Object item = sequence_item(items.get(), i);
      if (item.get() == nullptr || !Caster<T>::load(item.get(), convert, &value)) return false;
      values->push_back(static_cast<T&&>(value));
    }
    return true;
  }
  static void describe(Message& m, bool is_result) {
    m.append(is_result ? "list[" : "collections.abc.Sequence[");
    Caster<T>::describe(m, is_result);
    m.append("]");
  }
};
#endif
#if defined(_GLIBCXX_ARRAY)
template <class T, size_t N>
struct Caster<std::array<T, N>> {
  static Object to_python(const std::array<T, N>& values) { return list_of(values.data(), N); }
  static bool load(void* object, bool convert, std::array<T, N>* values) {
    size_t size = 0;
    return sequence_size(object, &size) && size == N && load_items(object, convert, values->data(), N);
  }
  static void describe(Message& m, bool is_result) {
    m.append(is_result ? "Annotated[list[" : "Annotated[collections.abc.Sequence[");
    Caster<T>::describe(m, is_result);
    append_all(m, "], \"FixedSize(", N, ")\"]");
  }
};
#endif
#if defined(_GLIBCXX_TUPLE)
template <class... T>
struct Caster<std::tuple<T...>> {
  template <size_t I>
  static void fill(const Object& tuple, const std::tuple<T...>& values) {
    if constexpr (I < sizeof...(T)) {
      using Item = typename plain<std::tuple_element_t<I, std::tuple<T...>>>::type;
      set_tuple_item(tuple, I, Caster<Item>::to_python(std::get<I>(values)));
      fill<I + 1>(tuple, values);
    }
  }
  template <size_t I>
  static bool load_from(void* object, bool convert, std::tuple<T...>* values) {
    if constexpr (I < sizeof...(T)) {
      using Item = typename plain<std::tuple_element_t<I, std::tuple<T...>>>::type;
      const Object item = sequence_item(object, I);
      if (item.get() == nullptr || !Caster<Item>::load(item.get(), convert, &std::get<I>(*values))) return false;
      return load_from<I + 1>(object, convert, values);
    }
    return true;
  }
  template <size_t I>
  static void describe_from(Message& m, bool is_result) {
    if constexpr (I < sizeof...(T)) {
      if (I != 0) m.append(", ");
      Caster<typename plain<std::tuple_element_t<I, std::tuple<T...>>>::type>::describe(m, is_result);
      describe_from<I + 1>(m, is_result);
    }
  }
  static Object to_python(const std::tuple<T...>& values) {
    Object tuple = python_tuple(sizeof...(T));
    fill<0>(tuple, values);
    return tuple;
  }
  static bool load(void* object, bool convert, std::tuple<T...>* values) {
    size_t size = 0;
    return sequence_size(object, &size) && size == sizeof...(T) && load_from<0>(object, convert, values);
  }
  static void describe(Message& m, bool is_result) {
    m.append("tuple[");
    describe_from<0>(m, is_result);
    m.append("]");
  }
};
#endif
#if defined(_STL_PAIR_H)
template <class A, class B>
struct Caster<std::pair<A, B>> {
  static Object to_python(const std::pair<A, B>& value) {
    Object tuple = python_tuple(2);
    set_tuple_item(tuple, 0, Caster<A>::to_python(value.first));
    set_tuple_item(tuple, 1, Caster<B>::to_python(value.second));
    return tuple;
  }
  static bool load(void* object, bool convert, std::pair<A, B>* value) {
    size_t size = 0;
    if (!sequence_size(object, &size) || size != 2) return false;
    const Object first = sequence_item(object, 0), second = sequence_item(object, 1);
    return Caster<A>::load(first.get(), convert, &value->first) && Caster<B>::load(second.get(), convert, &value->second);
  }
  static void describe(Message& m, bool is_result) {
    m.append("tuple[");
    Caster<A>::describe(m, is_result);
    m.append(", ");
    Caster<B>::describe(m, is_result);
    m.append("]");
  }
};
#endif
#if defined(_STL_MAP_H) || defined(_UNORDERED_MAP_H)
template <class M>
struct MapCaster {
  using Key = typename M::key_type;
  using Item = typename M::mapped_type;
  static Object to_python(const M& values) {
    Object dict = python_dict();
    for (const auto& [key, item] : values) set_dict_item(dict, Caster<Key>::to_python(key), Caster<Item>::to_python(item));
    return dict;
  }
  static bool load(void* object, bool convert, M* values) {
    const Object items = mapping_items(object, convert);
    size_t size = 0;
    if (items.get() == nullptr || !sequence_size(items.get(), &size)) return false;
    values->clear();
    for (size_t i = 0; i < size; ++i) {
      const Object pair = sequence_item(items.get(), i), key = sequence_item(pair.get(), 0), item = sequence_item(pair.get(), 1);
      Key key_value{};
      Item item_value{};
      if (!Caster<Key>::load(key.get(), convert, &key_value) || !Caster<Item>::load(item.get(), convert, &item_value)) return false;
      values->emplace(static_cast<Key&&>(key_value), static_cast<Item&&>(item_value));
    }
    return true;
  }
  static void describe(Message& m, bool is_result) {
    m.append(is_result ? "dict[" : "collections.abc.Mapping[");
    Caster<Key>::describe(m, is_result);
    m.append(", ");
    Caster<Item>::describe(m, is_result);
    m.append("]");
  }
};
#endif
#if defined(_STL_MAP_H)
template <class K, class V, class... Rest>
struct Caster<std::map<K, V, Rest...>> : MapCaster<std::map<K, V, Rest...>> {};
#endif
#if defined(_UNORDERED_MAP_H)
template <class K, class V, class... Rest>
struct Caster<std::unordered_map<K, V, Rest...>> : MapCaster<std::unordered_map<K, V, Rest...>> {};
#endif

template <class... A>
Object call_path(const char* path, const char* keywords, const A&... arguments) {
  void* objects[] = {Caster<A>::to_python(arguments).release()..., nullptr};
  return invoke_path(path, keywords, objects, sizeof...(A));
}
/* The value of an object that torch returned. */
template <class T>
T python_value(const Object& object) {
  T value{};
  if (!Caster<T>::load(object.get(), true, &value)) fail(ErrorKind::type, "torch returned an object of an unexpected type");
  return value;
}

}  // namespace jitload_torch

#endif  // JITLOAD_TORCH_CONVERT_H_
