/* Calls of ATen's operators: through torch's dispatcher, and through Python for those that it cannot take from C. */
#ifndef JITLOAD_TORCH_OPERATORS_H_
#define JITLOAD_TORCH_OPERATORS_H_

#include "convert.h"

namespace jitload_torch {

/* The type of an argument's value. */
enum class Kind : uint8_t {
  tensor, optional_tensor, tensors, optional_tensors, integer, optional_integer, floating, optional_floating, boolean,
  optional_boolean, dtype, optional_dtype, device, optional_device, optional_layout, memory_format,
  optional_memory_format, integers, optional_integers, floats, optional_floats, text, optional_text, scalar,
  optional_scalar, scalars, generator,
};
template <class T>
constexpr Kind kKind = Kind::generator;
#define X(T, name) \
  template <>      \
  constexpr Kind kKind<T> = Kind::name;
#define Y(T, name) X(T, name) X(c10::OptionalArg<T>, optional_##name)
Y(at::Tensor, tensor) Y(int64_t, integer) Y(double, floating) Y(bool, boolean) Y(c10::ScalarType, dtype) Y(c10::Device, device)
Y(c10::MemoryFormat, memory_format) Y(c10::TextArg, text) Y(c10::Scalar, scalar) Y(c10::ArrayRef<double>, floats)
X(c10::IntArrayRef, integers) X(c10::OptionalIntArrayRef, optional_integers) X(c10::ArrayRef<at::Tensor>, tensors)
X(c10::ArrayRef<c10::OptionalArg<at::Tensor>>, optional_tensors) X(c10::ArrayRef<c10::Scalar>, scalars)
X(c10::OptionalArg<c10::Layout>, optional_layout)
#undef Y
#undef X
/* An argument of an operator, which the caller keeps alive. */
struct Argument {
  Kind kind;
  const void* value;
};

/* An operator of ATen. What follows `version` is found at its first call. */
struct Operator {
  const char* name; /* such as "aten::sum" */
  const char* overload;
  const char* names; /* of the arguments behind the first, each with a space after it */
  const char* results;  /* a letter for each result; see `Results` */
  uint64_t version = 0x020A000000000000;
  bool needs_python = false;
  void *quick = nullptr, *exact = nullptr; /* functions of Python */
  void* keyword_names = nullptr;
};

/* What an operator returned, by the letters of the operator: t a tensor, v an array of tensors, i an integer or dtype,
 * d a floating-point number, b a bool, s a Scalar, and _ a tensor that is dropped because it is one of the arguments. */
struct Results {
  union {
    Handle tensors[8];
    int64_t integer;
    double floating;
    bool boolean;
  };
  size_t count = 0; /* of an array, whose tensors are in `array` */
  Handle* array = nullptr;
  c10::Scalar scalar;
  Results() : tensors{} {}
  Results(const Results&) = delete;
  ~Results() { delete[] array; }
};
void run_operator(Operator& op, const Argument* arguments, size_t count, Results* results);

template <class R>
struct Result;
#define X(T, expression)                                                \
  template <>                                                           \
  struct Result<T> {                                                    \
    static T take([[maybe_unused]] Results& results) { return expression; } \
  };
X(void, void()) X(at::Tensor, at::Tensor(results.tensors[0])) X(bool, results.boolean) X(int64_t, results.integer)
X(double, results.floating) X(c10::ScalarType, static_cast<c10::ScalarType>(results.integer)) X(c10::Scalar, results.scalar)
#undef X
#if defined(_GLIBCXX_TUPLE)
template <class... T>
struct Result<std::tuple<T...>> {
  static std::tuple<T...> take(Results& results) {
    size_t index = 0;
    return std::tuple<T...>{T(results.tensors[index++])...};
  }
};
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
struct Result<std::vector<T>> {
  static std::vector<T> take(Results& results) {
    std::vector<T> tensors;
    tensors.reserve(results.count);
    for (size_t i = 0; i < results.count; ++i) tensors.push_back(T(results.array[i]));
    return tensors;
  }
};
#endif

/* Calls an operator with arguments in the schema's order. */
template <class R, class... A>
R call(Operator& op, const A&... arguments) {
  const Argument list[] = {{kKind<A>, &arguments}...};
  Results results;
  run_operator(op, list, sizeof...(A), &results);
  return Result<R>::take(results);
}

}  // namespace jitload_torch

namespace c10 {
/* Names in the bodies of torch's own functions, which are copied in front of the text. */
inline IntArrayRef fromIntArrayRefSlow(IntArrayRef values) { return values; }
inline OptionalArg<ScalarType> optTypeMetaToScalarType(const OptionalArg<ScalarType>& type) { return type; }
namespace impl {
OptionalArg<MemoryFormat> check_tensor_options_and_extract_memory_format(const TensorOptions& options,
                                                                         const OptionalArg<MemoryFormat>& argument);
}
}  // namespace c10

#endif  // JITLOAD_TORCH_OPERATORS_H_
