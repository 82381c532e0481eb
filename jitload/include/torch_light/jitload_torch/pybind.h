/* PYBIND11_MODULE and what it needs: functions and lambdas become functions of Python. */
#pragma once

#include "tensor.h"

namespace jitload_torch {

/* An argument of a function: what is stored, and how it is passed on. */
template <class T>
struct Slot {
  T value{};
  bool load(void* object, bool convert) { return Caster<T>::load(object, convert, &value); }
  T& get() { return value; }
  static void describe(Message& m, bool is_exact) { Caster<T>::describe(m, is_exact); }
};
/* An ArrayRef does not own its items: the slot does, for the time of the call. */
template <class T>
struct Slot<c10::ArrayRef<T>> {
  Slot() = default;
  Slot(const Slot&) = delete;
  ~Slot() { delete[] items; }
  bool load(void* object, bool convert) {
    size_t size = 0;
    if (!sequence_size(object, &size) || (__is_same(T, int64_t) && !is_int_list(object, size))) return false;
    delete[] items;
    items = new T[size + 1]{};
    value = c10::ArrayRef<T>(items, size);
    for (size_t i = 0; i < size; ++i)
      if (!load_item(object, i, convert, &items[i])) return false;
    return true;
  }
  c10::ArrayRef<T>& get() { return value; }
  static void describe(Message& m, bool) { m.append("Tuple[int, ...]"); }
  T* items = nullptr;
  c10::ArrayRef<T> value;
};

/* A parameter of a function of Python. */
struct Parameter {
  const char* name;
  void* default_value;     /* a Python object, or NULL */
  bool is_exact, refuses_none; /* accepts no conversions; refuses None */
};

/* Who has the GIL while a function runs: its caller; nobody, as the text asks; or nobody, while a lock of the library's own
 * still lets only one of the callers run: this one has the turn. jitload defines the macro in front of the text. */
enum class GilPolicy : uint8_t { kept, released, exclusive };
constexpr GilPolicy kGilPolicy = GilPolicy::JITLOAD_TORCH_GIL;

/* A function to call from Python, perhaps one of several overloads of the same name. */
struct Record {
  bool (*call)(Record* record, void* const* arguments, bool convert, Object* result);
  void (*describe)(Message& m, Record* record);
  void* callable;
  size_t count;
  bool is_torch_wrapped; /* errors are translated as those of torch's own functions */
  GilPolicy gil;
  const char* doc;
  Parameter* parameters; /* `count` of them, or NULL */
};
void append_parameter(Message& m, const Record* record, size_t index, void (*describe)(Message&, bool));
void add_function(void* module, const char* name, const Record& record);
void set_attribute(void* module, const char* name, Object value);

/* Takes or passes on the turn while an object of this class lives. */
struct Turn {
  explicit Turn(bool takes);
  Turn(const Turn&) = delete;
  ~Turn();
  const bool before;
};

template <size_t I, class T>
struct IndexedSlot {
  Slot<typename plain<T>::type> slot;
};
template <class I, class R, class F, class... A>
struct Binding;
template <size_t... I, class R, class F, class... A>
struct Binding<Indices<I...>, R, F, A...> : IndexedSlot<I, A>... {
  bool load(const Parameter* parameters, void* const* arguments, bool convert) {
    if (parameters != nullptr && (false || ... || (parameters[I].refuses_none && is_none(arguments[I])))) return false;
    return (true && ... && this->IndexedSlot<I, A>::slot.load(
                               arguments[I], convert && (parameters == nullptr || !parameters[I].is_exact)));
  }
  R run(Record* record) {
    const GilRelease release(record->gil != GilPolicy::kept);
    const Turn turn(record->gil == GilPolicy::exclusive);
    return (*static_cast<F*>(record->callable))(static_cast<A&&>(this->IndexedSlot<I, A>::slot.get())...);
  }
  static bool call(Record* record, void* const* arguments, bool convert, Object* result) {
    Binding binding;
    if (!binding.load(record->parameters, arguments, convert)) return false;
    if constexpr (__is_same(R, void)) {
      binding.run(record);
      *result = none();
    } else {
      *result = Caster<typename plain<R>::type>::to_python(binding.run(record));
    }
    return true;
  }
  static void describe(Message& m, Record* record) {
    m.append("(");
    (append_parameter(m, record, I, &Slot<typename plain<A>::type>::describe), ...);
    m.append(") -> ");
    if constexpr (__is_same(R, void)) m.append("None");
    else Caster<typename plain<R>::type>::describe(m, true);
  }
};

template <class R, class F, class... A>
Record make_record(F* function) {
  using Function = Binding<IndicesOf<sizeof...(A)>, R, F, A...>;
  return {&Function::call, &Function::describe, function, sizeof...(A), false, kGilPolicy, "", nullptr};
}
template <class F, class R, class C, class... A>
Record record_of_lambda(F* function, R (C::*)(A...) const) { return make_record<R, F, A...>(function); }
template <class F, class R, class C, class... A>
Record record_of_lambda(F* function, R (C::*)(A...)) { return make_record<R, F, A...>(function); }
template <class R, class... A>
Record record_of(R (*function)(A...)) {
  using F = R (*)(A...);
  return make_record<R, F, A...>(new F(function));
}
template <class F, class = decltype(&F::operator())>
Record record_of(const F& function) { return record_of_lambda(new F(function), &F::operator()); }
inline Record record_of(const Record& record) { return record; }

}  // namespace jitload_torch

namespace pybind11 {

/* The name of a parameter, perhaps with its default value, an object of Python that is kept. */
struct arg {
  constexpr explicit arg(const char* name) : name(name) {}
  template <class T>
  arg operator=(const T& value) const {
    arg result = *this;
    result.value = jitload_torch::Caster<T>::to_python(value).release();
    return result;
  }
  arg& noconvert(bool flag = true) { return is_exact = flag, *this; }
  arg& none(bool flag = true) { return refuses_none = !flag, *this; }
  const char* name;
  bool is_exact = false, refuses_none = false;
  void* value = nullptr;
};

/* Objects of Python. Each operation takes the GIL. */
class object {
 public:
  object() = default; /* a null pointer, which is not None */
  object(const object& other) : object_(jitload_torch::borrow(other.ptr())) {}
  void operator=(const object& other) && = delete; /* an item or an attribute, which would stay as it is */
  object& operator=(const object& other) & { return object_ = jitload_torch::borrow(other.ptr()), *this; }
  explicit object(jitload_torch::Object owned) : object_(static_cast<jitload_torch::Object&&>(owned)) {}
  void* ptr() const { return object_.get(); }
  const jitload_torch::Object& get() const { return object_; }
  bool is_none() const { return jitload_torch::is_none(ptr()); }
  object attr(const char* name) const { return object(jitload_torch::call_path("builtins.getattr", "", object_, name)); }
  template <class T>
  T cast() const { return jitload_torch::python_value<T>(object_); }
  template <class... A>
  object operator()(const A&... arguments) const {
    return object(jitload_torch::call_path("operator.call", "", object_, arguments...));
  }
  template <class K>
  object operator[](const K& key) const {
    return object(jitload_torch::call_path("operator.getitem", "", object_, key));
  }
  template <class T>
  void append(const T& value) { attr("append")(value); } /* of a list */
  size_t size() const { return jitload_torch::python_value<size_t>(jitload_torch::call_path("builtins.len", "", object_)); }

 protected:
  jitload_torch::Object object_;
};
using handle = object;
struct none : object { none() : object(jitload_torch::none()) {} };
#define X(T)                                                                                       \
  struct T : object {                                                                              \
    T() : object(jitload_torch::call_path("builtins." #T, "")) {}                                  \
    template <class V> /* an object that already is of this type stays the same object */          \
    explicit T(const V& value) : object(jitload_torch::Caster<V>::to_python(value)) {              \
      if (!jitload_torch::is_builtin(ptr(), #T)) object_ = jitload_torch::call_path("builtins." #T, "", object_); \
    }                                                                                              \
  };
X(tuple) X(list) X(dict) X(str)
#undef X
#if defined(__EXCEPTION_H)
#define X(name, kind)                                                                              \
  struct name : c10::Error {                                                                       \
    explicit name(c10::TextArg text = {}) : c10::Error(jitload_torch::ErrorKind::kind, text.data()) {} \
  };
X(value_error, ValueError) X(type_error, TypeError) X(index_error, IndexError)
#undef X
#endif
template <class... A>
tuple make_tuple(const A&... values) { return tuple(object(jitload_torch::tuple_of(values...))); }
template <class T>
object cast(const T& value) { return object(jitload_torch::Caster<T>::to_python(value)); }
}  // namespace pybind11
namespace jitload_torch {
#define X(T)                                                                                       \
  template <>                                                                                      \
  struct Caster<pybind11::T> {                                                                     \
    static Object to_python(const pybind11::T& value) {                                            \
      if (value.ptr() == nullptr) fail(ErrorKind::TypeError, "a null py::object has no value"); \
      return borrow(value.ptr());                                                                  \
    }                                                                                              \
    static bool load(void* object, bool, pybind11::T* value) {                                     \
      if (!is_builtin(object, #T)) return false;                                                   \
      static_cast<pybind11::object&>(*value) = pybind11::object(borrow(object));                   \
      return true;                                                                                 \
    }                                                                                              \
    static void describe(Message& m, bool) { m.append(#T); }                                       \
  };
X(object) X(tuple) X(list) X(dict) X(str)
#undef X
template <>
struct Caster<pybind11::none> : Caster<pybind11::object> {
  static bool load(void* object, bool, pybind11::none*) { return is_none(object); }
  static void describe(Message& m, bool) { m.append("None"); }
};
}  // namespace jitload_torch
namespace pybind11 {
inline namespace literals { constexpr arg operator""_a(const char* name, size_t) { return arg(name); } }

template <class... A, class R>
constexpr auto overload_cast(R (*function)(A...)) { return function; }
struct gil_scoped_release : jitload_torch::Turn, jitload_torch::GilRelease { gil_scoped_release(bool = false) : Turn(false) {} };
using gil_scoped_acquire = jitload_torch::Gil;
template <class... Guards> struct call_guard {};

class module_ {
 public:
  explicit module_(void* module) : module_pointer_(module) {}
  template <class F, class... Extra>
  module_& def(const char* name, const F& function, const Extra&... extra) {
    jitload_torch::Record record = jitload_torch::record_of(function);
    if ((false || ... || __is_same(Extra, arg))) record.parameters = new jitload_torch::Parameter[record.count + 1]{};
    size_t position = 0;
    (apply(record, position, extra), ...);
    jitload_torch::add_function(module_pointer_, name, record);
    return *this;
  }
  struct Attribute {
    template <class T>
    void operator=(const T& value) {
      jitload_torch::set_attribute(module, name, jitload_torch::Caster<T>::to_python(value));
    }
    void* module;
    const char* name;
  };
  Attribute attr(const char* name) { return {module_pointer_, name}; }
  Attribute doc() { return attr("__doc__"); }

 private:
  static void apply(jitload_torch::Record& record, size_t&, const char* doc) { record.doc = doc; }
  static void apply(jitload_torch::Record& record, size_t& position, const arg& parameter) {
    if (position == record.count) return;
    record.parameters[position++] = {parameter.name, parameter.value, parameter.is_exact, parameter.refuses_none};
  }
  template <class... Guards>
  static void apply(jitload_torch::Record& record, size_t&, call_guard<Guards...>) {
    if ((false || ... || __is_same(Guards, gil_scoped_release))) record.gil = jitload_torch::GilPolicy::released;
  }
  void* module_pointer_;
};
using module = module_;

}  // namespace pybind11
namespace py = pybind11;

namespace torch {
/* Wraps a function of `functions=`, whose errors are translated as those of torch's own functions. */
template <class F>
jitload_torch::Record wrap_pybind_function(const F& function, jitload_torch::GilPolicy gil = jitload_torch::kGilPolicy) {
  jitload_torch::Record record = jitload_torch::record_of(function);
  record.is_torch_wrapped = true;
  record.gil = gil;
  return record;
}
}  // namespace torch

namespace jitload_torch {
struct Any { /* laid out as TVMFFIAny */
  int32_t type_index, padding;
  int64_t value;
};
int run_module(void (*define)(pybind11::module_&), const Any* arguments, int32_t count, Any* result);
}  // namespace jitload_torch

/* Defines the library's function to which the loader passes the module to fill. Texts may have macros like `count`. */
#define PYBIND11_MODULE(name, variable)                                                                             \
  static void jitload_torch_define_(::pybind11::module_& variable);                                                 \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi__jitload_torch_module(                            \
      void*, const ::jitload_torch::Any* arguments_, int32_t count_, ::jitload_torch::Any* result_) {               \
    return ::jitload_torch::run_module(&jitload_torch_define_, arguments_, count_, result_);                        \
  }                                                                                                                 \
  static void jitload_torch_define_([[maybe_unused]] ::pybind11::module_& variable)
