/* Calls of operators: of torch's C++ functions if the running torch is known, and else through Python.
 *
 * Torch's functions are found by their mangled names, which have the types of the arguments. Below is what is passed for
 * each type, by the letters of `operators.txt`: the same layout in memory as torch's, passed in the same way.
 */
#ifndef JITLOAD_TORCH_DIRECT_H_
#define JITLOAD_TORCH_DIRECT_H_

#include "convert.h"

namespace jitload_torch {

/* These have destructors, as torch's classes do, so that they are passed and returned in memory. */
struct RawTensor {
  void* impl;
  ~RawTensor() {}
};
template <size_t N>
struct RawTuple {
  void* impls[N]; /* std::tuple has its members in reverse */
  ~RawTuple() {}
};
struct RawVector {
  void **begin, **end, **capacity;
  ~RawVector() {}
};
struct RawScalar {
  enum Tag : int32_t { floating = 0, integer = 1, complex = 3, boolean = 4 };
  Tag tag;
  alignas(16) int64_t words[2];
  RawScalar() : tag(floating), words{} {}
  explicit RawScalar(const c10::Scalar& value);
  ~RawScalar() {}
  c10::Scalar get() const;
};
template <class T>
struct RawOptional {
  T value;
  bool has_value;
};
template <class T>
struct RawArray {
  const T* data;
  size_t size;
};
struct RawText {
  size_t size;
  const char* data;
};
struct RawTensorList { /* ITensorListRef of an array */
  RawArray<void*> array;
  int32_t tag;
};

void* const* tensor_slot(const at::Tensor& tensor); /* where the address of its TensorImpl is */
[[noreturn]] void rethrow_from_torch();
bool requires_grad(const at::Tensor& tensor);

/* An argument: `get` returns what is passed. */
template <char K>
struct Raw;
#define JITLOAD_TORCH_RAW_(letter, Parameter, Stored, Passed, passed, ...)  \
  template <>                                                               \
  struct Raw<letter> {                                                      \
    using Type = Passed;                                                    \
    Stored value;                                                           \
    explicit Raw([[maybe_unused]] const Parameter& argument) : value __VA_ARGS__ {} \
    Type get() const { return passed; }                                     \
  };
#define JITLOAD_TORCH_VALUE_(letter, Parameter, Stored, ...) \
  JITLOAD_TORCH_RAW_(letter, Parameter, Stored, Stored, value, __VA_ARGS__)
#define JITLOAD_TORCH_REFERENCE_(letter, Parameter, Stored, ...) \
  JITLOAD_TORCH_RAW_(letter, Parameter, Stored, const Stored*, &value, __VA_ARGS__)
#define JITLOAD_TORCH_OPTIONAL_(letter, T) \
  JITLOAD_TORCH_VALUE_(letter, c10::OptionalArg<T>, RawOptional<T>, {argument.value(), argument.has_value()})

JITLOAD_TORCH_VALUE_('l', int64_t, int64_t, (argument))
JITLOAD_TORCH_VALUE_('b', bool, bool, (argument))
JITLOAD_TORCH_VALUE_('d', double, double, (argument))
JITLOAD_TORCH_VALUE_('c', c10::ScalarType, c10::ScalarType, (argument))
JITLOAD_TORCH_VALUE_('v', c10::Device, c10::Device, (argument))
JITLOAD_TORCH_VALUE_('m', c10::MemoryFormat, c10::MemoryFormat, (argument))
JITLOAD_TORCH_OPTIONAL_('L', int64_t)
JITLOAD_TORCH_OPTIONAL_('B', bool)
JITLOAD_TORCH_OPTIONAL_('D', double)
JITLOAD_TORCH_OPTIONAL_('C', c10::ScalarType)
JITLOAD_TORCH_OPTIONAL_('V', c10::Device)
JITLOAD_TORCH_OPTIONAL_('U', c10::Layout)
JITLOAD_TORCH_OPTIONAL_('M', c10::MemoryFormat)
JITLOAD_TORCH_REFERENCE_('y', int64_t, int64_t, (argument))
JITLOAD_TORCH_REFERENCE_('Y', c10::OptionalArg<int64_t>, RawOptional<int64_t>, {argument.value(), argument.has_value()})
JITLOAD_TORCH_VALUE_('a', c10::IntArrayRef, RawArray<int64_t>, {argument.data(), argument.size()})
JITLOAD_TORCH_VALUE_('A', c10::OptionalIntArrayRef, RawOptional<RawArray<int64_t>>,
                     {{(*argument).data(), (*argument).size()}, argument.has_value()})
JITLOAD_TORCH_VALUE_('e', c10::OptionalArg<c10::ArrayRef<double>>, RawOptional<RawArray<double>>,
                     {{argument->data(), argument->size()}, argument.has_value()})
JITLOAD_TORCH_VALUE_('w', c10::TextArg, RawText, {argument.size(), argument.data()})
JITLOAD_TORCH_VALUE_('W', c10::OptionalArg<c10::TextArg>, RawOptional<RawText>,
                     {{argument->size(), argument->data()}, argument.has_value()})
JITLOAD_TORCH_REFERENCE_('s', c10::Scalar, RawScalar, (argument))
JITLOAD_TORCH_REFERENCE_('g', c10::OptionalArg<c10::Generator>, RawOptional<void*>, {nullptr, false})
JITLOAD_TORCH_RAW_('t', at::Tensor, void* const*, void* const*, value, (tensor_slot(argument)))
#undef JITLOAD_TORCH_OPTIONAL_
#undef JITLOAD_TORCH_REFERENCE_
#undef JITLOAD_TORCH_VALUE_
#undef JITLOAD_TORCH_RAW_
template <>
struct Raw<'x'> : Raw<'a'> {
  using Raw<'a'>::Raw;
};
template <>
struct Raw<'X'> : Raw<'A'> {
  using Raw<'A'>::Raw;
};
template <>
struct Raw<'o'> {
  using Type = const RawOptional<void*>*;
  RawOptional<void*> value;
  explicit Raw(const c10::OptionalArg<at::Tensor>& argument)
      : value{argument.has_value() ? *tensor_slot(*argument) : nullptr, argument.has_value()} {}
  Type get() const { return &value; }
};
template <>
struct Raw<'S'> {
  struct Optional {
    RawScalar value;
    bool has_value;
  } value;
  using Type = const Optional*;
  explicit Raw(const c10::OptionalArg<c10::Scalar>& argument) : value{RawScalar(argument.value()), argument.has_value()} {}
  Type get() const { return &value; }
};
template <>
struct Raw<'Q'> {
  using Type = const RawTensorList*;
  RawTensorList value;
  explicit Raw(const c10::ArrayRef<at::Tensor>& argument);
  Raw(const Raw&) = delete;
  ~Raw() { delete[] value.array.data; }
  Type get() const { return &value; }
};
template <>
struct Raw<'q'> : Raw<'Q'> {
  using Type = RawArray<void*>;
  using Raw<'Q'>::Raw;
  Type get() const { return value.array; }
};

/* Whether torch's SymInt holds integers as they are; it has objects for the least ones. */
inline bool is_plain(int64_t value) { return value >= -(static_cast<int64_t>(1) << 62); }
inline bool is_plain(c10::IntArrayRef values) {
  for (int64_t value : values) {
    if (!is_plain(value)) return false;
  }
  return true;
}
template <char K, class A>
bool fits(const A& argument) {
  if constexpr (K == 'y') return is_plain(static_cast<int64_t>(argument));
  if constexpr (K == 'x') return is_plain(c10::IntArrayRef(argument));
  if constexpr (K == 'Y') return is_plain(c10::OptionalArg<int64_t>(argument).value_or(0));
  if constexpr (K == 'X') return is_plain(*c10::OptionalIntArrayRef(argument));
  return true;
}

/* A result: `take` makes a value of what is returned. */
template <class R>
struct RawResult {
  using Type = R;
  static R take(R value) { return value; }
};
template <>
struct RawResult<void> { /* of a function that returns a reference to its argument, or nothing */
  using Type = void*;
  static void take(void*) {}
};
template <>
struct RawResult<at::Tensor> {
  using Type = RawTensor;
  static at::Tensor take(const RawTensor& value);
};
template <>
struct RawResult<c10::Scalar> {
  using Type = RawScalar;
  static c10::Scalar take(const RawScalar& value) { return value.get(); }
};
#if defined(_GLIBCXX_TUPLE)
template <class... T>
struct RawResult<std::tuple<T...>> {
  using Type = RawTuple<sizeof...(T)>;
  static std::tuple<T...> take(const Type& value) {
    size_t index = sizeof...(T);
    return std::tuple<T...>{T(adopt(value.impls[--index]))...};
  }
};
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
struct RawResult<std::vector<T>> {
  using Type = RawVector;
  static std::vector<T> take(const RawVector& value) {
    std::vector<T> result;
    for (void** impl = value.begin; impl != value.end; ++impl) result.push_back(T(adopt(*impl)));
    ::operator delete(value.begin);
    return result;
  }
};
#endif

template <class R, class... Raws>
R call_direct(void* function, const Raws&... arguments) {
  using Function = typename RawResult<R>::Type (*)(typename Raws::Type...);
  try {
    return RawResult<R>::take(reinterpret_cast<Function>(function)(arguments.get()...));
  } catch (...) {
    rethrow_from_torch();
  }
}

/* Calls an operator with arguments in the schema's order; the letters say how torch's C++ function takes them. */
template <class R, char... K, class... A>
R call(Operator& op, const A&... arguments) {
  if constexpr (sizeof...(K) != 0) {
    void* function = find_direct(op);
    if (function != nullptr && (fits<K>(arguments) && ...)) return call_direct<R>(function, Raw<K>(arguments)...);
  }
  void* objects[] = {Caster<A>::to_python(arguments).release()..., nullptr};
  const Object result = invoke(op, objects, sizeof...(A));
  if constexpr (!__is_same(R, void)) {
    R value{};
    if constexpr (__is_same(R, c10::ScalarType)) { /* operators return its number */
      int number = 0;
      if (Caster<int>::load(result.get(), true, &number)) return static_cast<R>(number);
    }
    if (!Caster<R>::load(result.get(), true, &value)) fail_result(op.name);
    return value;
  }
}

}  // namespace jitload_torch

#endif  // JITLOAD_TORCH_DIRECT_H_
