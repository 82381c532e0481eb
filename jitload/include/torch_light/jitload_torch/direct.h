/* Calls operators by torch's C++ functions if the layout of the running torch is known, and else through Python.
 *
 * Torch's functions are found by their mangled names, which have the types of the arguments. For each type, which has a
 * letter in `operators.txt`, a class below has the same layout in memory as torch's, and is passed in the same way.
 */
#ifndef JITLOAD_TORCH_DIRECT_H_
#define JITLOAD_TORCH_DIRECT_H_

#include "convert.h"

namespace jitload_torch {

/* These classes have destructors, like torch's, so that they are passed and returned in memory. */
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
  enum Tag : int32_t { floating = 0, integer = 1, unsigned_integer = 2, complex = 3, boolean = 4 };
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
struct RawTensorList { /* torch's ITensorListRef, which refers to an array here */
  RawArray<void*> array;
  int32_t tag;
};

void* const* tensor_slot(const at::Tensor& tensor); /* returns where the address of the TensorImpl is stored */
[[noreturn]] void rethrow_from_torch();
bool requires_grad(const at::Tensor& tensor);

/* An argument: `get` returns what is passed. `fits` is false for integers for which torch's SymInt needs an object. */
template <char K>
struct Raw;
bool is_plain(int64_t value);
bool is_plain(const RawArray<int64_t>& values);
#define JITLOAD_TORCH_RAW_(letter, Parameter, Stored, Passed, passed, condition, ...)  \
  template <>                                                                          \
  struct Raw<letter> {                                                                 \
    using Type = Passed;                                                               \
    Stored value;                                                                      \
    Raw([[maybe_unused]] const Parameter& argument) : value __VA_ARGS__ {}             \
    Type get() const { return passed; }                                                \
    bool fits() const { return condition; }                                            \
  };
#define JITLOAD_TORCH_VALUE_(letter, Parameter, Stored, ...) \
  JITLOAD_TORCH_RAW_(letter, Parameter, Stored, Stored, value, true, __VA_ARGS__)
#define JITLOAD_TORCH_OPTIONAL_(letter, T) \
  JITLOAD_TORCH_VALUE_(letter, c10::OptionalArg<T>, RawOptional<T>, {argument.value(), argument.has_value()})
JITLOAD_TORCH_VALUE_('l', int64_t, int64_t, (argument))
JITLOAD_TORCH_VALUE_('b', bool, bool, (argument))
JITLOAD_TORCH_VALUE_('d', double, double, (argument))
JITLOAD_TORCH_VALUE_('c', c10::ScalarType, c10::ScalarType, (argument))
JITLOAD_TORCH_VALUE_('v', c10::Device, c10::Device, (argument))
JITLOAD_TORCH_VALUE_('m', c10::MemoryFormat, c10::MemoryFormat, (argument))
JITLOAD_TORCH_VALUE_('a', c10::IntArrayRef, RawArray<int64_t>, {argument.data(), argument.size()})
JITLOAD_TORCH_VALUE_('w', c10::TextArg, RawText, {argument.size(), argument.data()})
JITLOAD_TORCH_VALUE_('A', c10::OptionalIntArrayRef, RawOptional<RawArray<int64_t>>,
                     {{(*argument).data(), (*argument).size()}, argument.has_value()})
JITLOAD_TORCH_VALUE_('e', c10::OptionalArg<c10::ArrayRef<double>>, RawOptional<RawArray<double>>,
                     {{argument->data(), argument->size()}, argument.has_value()})
JITLOAD_TORCH_VALUE_('W', c10::OptionalArg<c10::TextArg>, RawOptional<RawText>,
                     {{argument->size(), argument->data()}, argument.has_value()})
JITLOAD_TORCH_OPTIONAL_('L', int64_t)
JITLOAD_TORCH_OPTIONAL_('B', bool)
JITLOAD_TORCH_OPTIONAL_('D', double)
JITLOAD_TORCH_OPTIONAL_('C', c10::ScalarType)
JITLOAD_TORCH_OPTIONAL_('V', c10::Device)
JITLOAD_TORCH_OPTIONAL_('U', c10::Layout)
JITLOAD_TORCH_OPTIONAL_('M', c10::MemoryFormat)
JITLOAD_TORCH_RAW_('y', int64_t, int64_t, const int64_t*, &value, is_plain(value), (argument))
JITLOAD_TORCH_RAW_('Y', c10::OptionalArg<int64_t>, RawOptional<int64_t>, const RawOptional<int64_t>*, &value,
                   is_plain(value.value), {argument.value(), argument.has_value()})
JITLOAD_TORCH_RAW_('x', c10::IntArrayRef, RawArray<int64_t>, RawArray<int64_t>, value, is_plain(value),
                   {argument.data(), argument.size()})
JITLOAD_TORCH_RAW_('X', c10::OptionalIntArrayRef, RawOptional<RawArray<int64_t>>, RawOptional<RawArray<int64_t>>, value,
                   is_plain(value.value), {{(*argument).data(), (*argument).size()}, argument.has_value()})
JITLOAD_TORCH_RAW_('g', c10::OptionalArg<c10::Generator>, RawOptional<void*>, const RawOptional<void*>*, &value, true,
                   {nullptr, false})
JITLOAD_TORCH_RAW_('s', c10::Scalar, RawScalar, const RawScalar*, &value, true, (argument))
JITLOAD_TORCH_RAW_('S', c10::OptionalArg<c10::Scalar>, RawOptional<RawScalar>, const RawOptional<RawScalar>*, &value, true,
                   {RawScalar(argument.value()), argument.has_value()})
JITLOAD_TORCH_RAW_('t', at::Tensor, const at::Tensor*, void* const*, tensor_slot(*value), true, (&argument))
#undef JITLOAD_TORCH_OPTIONAL_
#undef JITLOAD_TORCH_VALUE_
#undef JITLOAD_TORCH_RAW_
template <>
struct Raw<'o'> {
  using Type = const RawOptional<void*>*;
  const c10::OptionalArg<at::Tensor>* value;
  RawOptional<void*> passed;
  Raw(const c10::OptionalArg<at::Tensor>& argument);
  Type get() const { return &passed; }
  bool fits() const { return true; }
};
template <>
struct Raw<'q'> {
  using Type = RawArray<void*>;
  c10::ArrayRef<at::Tensor> value;
  RawTensorList passed;
  Raw(const c10::ArrayRef<at::Tensor>& argument);
  Raw(const Raw&) = delete;
  ~Raw() { delete[] passed.array.data; }
  Type get() const { return passed.array; }
  bool fits() const { return true; }
};
template <>
struct Raw<'Q'> : Raw<'q'> {
  using Type = const RawTensorList*;
  using Raw<'q'>::Raw;
  Type get() const { return &passed; }
};

/* A result: `take` converts what torch's function returned to a value of type R. */
template <class R>
struct RawResult {
  using Type = R;
  static R take(R value) { return value; }
};
template <>
struct RawResult<void> { /* for functions that return a reference to an argument, or nothing */
  using Type = void*;
  static void take(void*) {}
};
template <>
struct RawResult<at::Tensor> {
  using Type = RawTensor;
  static at::Tensor take(const RawTensor& value) { return at::Tensor(adopt(value.impl)); }
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

/* Calls an operator through Python, with the values of the arguments. */
Object invoke(Operator& op, const char* letters, const void* const* values, size_t count);
[[noreturn]] void fail_result(const char* name); /* a result is of a type that the schema excludes */

/* Calls an operator with arguments in the schema's order, whose letters are given. */
template <class R, char... K>
R call(Operator& op, const Raw<K>&... arguments) {
  void* const function = find_direct(op);
  if (function != nullptr && (arguments.fits() && ...)) {
    try {
      using Function = typename RawResult<R>::Type (*)(typename Raw<K>::Type...);
      return RawResult<R>::take(reinterpret_cast<Function>(function)(arguments.get()...));
    } catch (...) {
      rethrow_from_torch();
    }
  }
  static const char letters[] = {K...};
  const void* const values[] = {&arguments.value...};
  const Object result = invoke(op, letters, values, sizeof...(K));
  if constexpr (!__is_same(R, void)) {
    R value{};
    if constexpr (__is_same(R, c10::ScalarType)) { /* an operator in Python returns a dtype's number */
      int number = 0;
      if (Caster<int>::load(result.get(), true, &number)) return static_cast<R>(number);
    }
    if (!Caster<R>::load(result.get(), true, &value)) fail_result(op.name);
    return value;
  }
}

}  // namespace jitload_torch

#endif  // JITLOAD_TORCH_DIRECT_H_
