/* TORCH_LIBRARY: operators of torch's dispatcher, which torch calls without Python. */
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "pybind.h"

namespace c10 {
#define JITLOAD_TORCH_KEYS_(X)                                                                           \
  X(CPU) X(CUDA) X(Meta) X(Autograd) X(AutogradCPU) X(AutogradCUDA) X(AutocastCPU) X(AutocastCUDA)       \
  X(CompositeExplicitAutograd) X(CompositeImplicitAutograd) X(SparseCPU) X(SparseCUDA) X(QuantizedCPU) X(QuantizedCUDA)
#define X(name) name,
enum class DispatchKey : uint8_t { JITLOAD_TORCH_KEYS_(X) };
#undef X
}  // namespace c10

namespace jitload_torch {

/* An implementation of an operator, which takes its arguments from torch's stack and leaves its results there. */
struct Boxed {
  void (*run)(const Boxed& boxed, uint64_t* stack);
  std::string (*schema)(const std::string& name);
  void* function;
};
void* new_library(const char* kind, const char* name, const char* key, const char* file, int line);
void define_operator(void* library, const char* schema);
void implement_operator(void* library, const std::string& name, const Boxed& boxed);
uint64_t take_optional(uint64_t optional);
const char* schema_name(unsigned code);

template <class T, class... U>
constexpr bool is_one_of = (false || ... || __is_same(T, U));

/* Stacked<T>: `make` puts a value on torch's stack, and `name` is its type in schemas. */
template <class T>
struct Stacked {
  static_assert(is_one_of<T, double, bool, int64_t, c10::ScalarType, c10::Device, std::string, at::Tensor>,
                "TORCH_LIBRARY: jitload's headers for torch lack this type of parameter or result");
  using Value = T;
  static uint64_t make(const T& value) { return stack_value(Code<T>::value, &value); }
  static std::string name() { return schema_name(Code<T>::value); }
};
template <class T>
struct Taken<std::optional<T>> {
  static std::optional<T> take(const uint64_t* bits) {
    if (*bits == 0) return std::nullopt;
    const uint64_t value = take_optional(*bits);
    return Taken<T>::take(&value);
  }
};
template <class T>
struct Stacked<std::optional<T>> {
  using Value = std::optional<T>;
  static uint64_t make(const Value& value) { return value ? new_optional(Stacked<T>::make(*value)) : 0; }
  static std::string name() { return Stacked<T>::name() + "?"; }
};
template <class T>
struct Stacked<std::vector<T>> {
  using Value = std::vector<T>;
  static uint64_t make(const Value& values) {
    const uint64_t list = new_list(values.size());
    for (const T& value : values) push_item(list, Stacked<T>::make(value));
    return list;
  }
  static std::string name() { return Stacked<T>::name() + "[]"; }
};
template <class T>
struct Stacked<c10::ArrayRef<T>> : Stacked<std::vector<T>> {};

template <class R>
struct StackedResult {
  static void put(uint64_t* stack, const R& value) { *stack = Stacked<R>::make(value); }
  static std::string name() { return Stacked<R>::name() + " _0"; }
};
template <class... T>
struct StackedResult<std::tuple<T...>> {
  static void put(uint64_t* stack, const std::tuple<T...>& values) {
    std::apply([&](const auto&... value) { ((*stack++ = Stacked<typename plain<decltype(value)>::type>::make(value)), ...); }, values);
  }
  static std::string name() {
    std::string names;
    size_t index = 0;
    ((names += (names.empty() ? "(" : ", ") + Stacked<T>::name() + " _" + std::to_string(index++)), ...);
    return names + ")";
  }
};

template <class I, class R, class... A>
struct Boxing;
template <size_t... I, class R, class... A>
struct Boxing<Indices<I...>, R, A...> {
  static void run(const Boxed& boxed, uint64_t* stack) {
    const auto function = reinterpret_cast<R (*)(A...)>(boxed.function);
    auto values = Taken<std::tuple<typename Stacked<typename plain<A>::type>::Value...>>::take(stack);
    if constexpr (__is_same(R, void)) {
      function(static_cast<A>(std::get<I>(values))...);
    } else {
      StackedResult<typename plain<R>::type>::put(stack, function(static_cast<A>(std::get<I>(values))...));
    }
  }
  static std::string schema(const std::string& name) {
    std::string text = name + "(";
    ((text += (I == 0 ? "" : ", ") + Stacked<typename plain<A>::type>::name() + " _" + std::to_string(I)), ...);
    if constexpr (__is_same(R, void)) return text + ") -> ()";
    else return text + ") -> " + StackedResult<typename plain<R>::type>::name();
  }
};
template <class R, class... A>
Boxed box(R (*function)(A...)) {
  using Function = Boxing<IndicesOf<sizeof...(A)>, R, A...>;
  return {&Function::run, &Function::schema, reinterpret_cast<void*>(function)};
}
inline const char* key_name(c10::DispatchKey key) {
#define X(name) #name,
  static const char* const names[] = {JITLOAD_TORCH_KEYS_(X)};
#undef X
  return names[static_cast<int>(key)];
}
inline const char* key_name(c10::DeviceType type) { return c10::device_name(type, false); }

template <class F>
struct KeyedFunction { /* the result of torch::dispatch */
  const char* key;
  F function;
  F operator+() const { return function; }
};

}  // namespace jitload_torch

namespace torch {
using jitload_torch::KeyedFunction;

/* Lambdas without captures become functions by `+`. */
template <class K, class F>
auto dispatch(K key, F function) {
  return KeyedFunction<decltype(+function)>{jitload_torch::key_name(key), +function};
}

class Library {
 public:
  Library(const char* kind, const char* name, const char* key, const char* file, int line)
      : name_(name), file_(file), line_(line), library_(jitload_torch::new_library(kind, name, key, file, line)) {}
  Library& def(const char* schema) {
    jitload_torch::define_operator(library_, schema);
    return *this;
  }
  template <class F>
  Library& def(const char* schema, F function) {
    const std::string text(schema), name = text.substr(0, text.find('('));
    def(text == name ? jitload_torch::box(+function).schema(name).c_str() : schema);
    return impl(name.c_str(), function);
  }
  template <class F>
  Library& impl(const char* name, F function) {
    const std::string text(name), full = text.find("::") == text.npos ? name_ + ("::" + text) : text;
    jitload_torch::implement_operator(library_, full, jitload_torch::box(+function));
    return *this;
  }
  template <class F>
  Library& impl(const char* name, KeyedFunction<F> keyed) {
    Library("IMPL", name_, keyed.key, file_, line_).impl(name, keyed.function);
    return *this;
  }
  template <class K, class F>
  Library& impl(const char* name, K key, F function) { return impl(name, torch::dispatch(key, function)); }

 private:
  const char* name_;
  const char* file_;
  int line_;
  void* library_; /* never freed, so that its operators stay */
};
struct RegisterOperators { /* the older form of TORCH_LIBRARY_FRAGMENT */
  RegisterOperators() = default;
  template <class F>
  RegisterOperators(const std::string& schema, F function) { op(schema, function); }
  template <class F>
  RegisterOperators& op(const std::string& schema, F function) {
    Library("FRAGMENT", schema.substr(0, schema.find("::")).c_str(), "", __FILE__, __LINE__).def(schema.c_str(), function);
    return *this;
  }
};

}  // namespace torch

#define JITLOAD_TORCH_LIBRARY_(kind, name, key, function, m)                            \
  static void function(torch::Library&);                                                \
  static const bool C10_CONCATENATE(function, _is_run) = [] {                           \
    static torch::Library library_(kind, name, key, __FILE__, __LINE__);                \
    function(library_);                                                                 \
    return true;                                                                        \
  }();                                                                                  \
  static void function([[maybe_unused]] torch::Library& m)
#define JITLOAD_TORCH_FUNCTION_ C10_CONCATENATE(jitload_torch_library_, __COUNTER__)
#define TORCH_LIBRARY(ns, m) JITLOAD_TORCH_LIBRARY_("DEF", #ns, "", JITLOAD_TORCH_FUNCTION_, m)
#define TORCH_LIBRARY_FRAGMENT(ns, m) JITLOAD_TORCH_LIBRARY_("FRAGMENT", #ns, "", JITLOAD_TORCH_FUNCTION_, m)
#define TORCH_LIBRARY_IMPL(ns, key, m) JITLOAD_TORCH_LIBRARY_("IMPL", #ns, #key, JITLOAD_TORCH_FUNCTION_, m)
#define TORCH_FN(function) function
#define TORCH_SELECTIVE_NAME(name) name
