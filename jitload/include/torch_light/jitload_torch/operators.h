/* Calls of ATen's operators: through torch's dispatcher, and through Python for those that it cannot take from C. */
#pragma once

#include "convert.h"

namespace jitload_torch {

/* An argument of an operator, which the caller keeps alive. */
struct Argument {
  unsigned code;
  const void* value;
};

/* An operator of ATen. What follows `shortcut` is found at its first call. */
struct Operator {
  const char* name; /* such as "aten::sum" */
  const char* overload;
  const char* names; /* of the arguments behind the first, each with a space after it */
  /* A letter for each result: t a tensor, v an array of tensors, i an integer, c a dtype, d a floating-point number, b a bool,
   * s a Scalar, and _ a tensor that is dropped because it is one of the arguments. */
  const char* results;
  uint64_t version = 0x020A000000000000;
  bool needs_python = false;
  char shortcut = '\0'; /* e, z, f and s for `empty`, `zeros`, `full` and `fill_`, and `+-*` with a number: torch has functions of C */
  void *quick = nullptr, *exact = nullptr; /* functions of Python */
  void* keyword_names = nullptr;
};

/* Values of torch's stack, of which each owns what it refers to. */
uint64_t stack_value(unsigned code, const void* value);
uint64_t new_optional(uint64_t value);
uint64_t new_list(size_t size);
void push_item(uint64_t list, uint64_t item);
size_t list_size(uint64_t list);
uint64_t list_item(uint64_t list, size_t index);
void delete_list(uint64_t list);
void take_value(unsigned code, uint64_t bits, void* value); /* the stack no longer owns it */
void run_operator(Operator& op, const Argument* arguments, size_t count, uint64_t* results);
at::Tensor with_options(at::Tensor tensor, const c10::TensorOptions& options);

/* Takes a value from the stack. */
template <class T>
struct Taken {
  static T take(const uint64_t* bits) {
    T value{};
    take_value(Code<T>::value, *bits, &value);
    return value;
  }
};
template <>
struct Taken<void> {
  static void take(const uint64_t*) {}
};
#if defined(_GLIBCXX_TUPLE)
template <class... T>
struct Taken<std::tuple<T...>> {
  static std::tuple<T...> take(const uint64_t* bits) { return std::tuple<T...>{Taken<T>::take(bits++)...}; }
};
#endif
#if defined(_GLIBCXX_VECTOR)
template <class T>
struct Taken<std::vector<T>> {
  static std::vector<T> take(const uint64_t* list) {
    std::vector<T> values;
    for (size_t i = 0, size = list_size(*list); i < size; ++i) {
      const uint64_t item = list_item(*list, i);
      values.push_back(Taken<T>::take(&item));
    }
    delete_list(*list);
    return values;
  }
};
#endif

/* Calls an operator with arguments in the schema's order. */
template <class R, class... A>
R call(Operator& op, const A&... arguments) {
  const Argument list[] = {{Code<A>::value, &arguments}...};
  uint64_t results[8];
  run_operator(op, list, sizeof...(A), results);
  return Taken<R>::take(results);
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
