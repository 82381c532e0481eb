/* PYBIND11_MODULE and what it needs: functions and lambdas become functions of Python. */
#ifndef JITLOAD_TORCH_PYBIND_H_
#define JITLOAD_TORCH_PYBIND_H_

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
    if (!sequence_size(object, &size)) return false;
    delete[] items;
    items = new T[size + 1]{};
    value = c10::ArrayRef<T>(items, size);
    return load_items(object, convert, items, size);
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
  bool is_exact; /* accepts no conversions */
  bool refuses_none;
};

/* Who has the GIL while a function runs: its caller; nobody, as the text asks; or nobody, while a lock of the library's own
 * still lets only one of the callers run. */
enum class GilPolicy : uint8_t { kept, released, exclusive };
#if defined(JITLOAD_TORCH_THREADS) /* the text has threads, which may need the GIL; jitload defines it in front of the text */
constexpr GilPolicy kGilPolicy = GilPolicy::exclusive;
#else
constexpr GilPolicy kGilPolicy = GilPolicy::kept;
#endif

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

/* Releases the GIL while an object of this class lives, if this thread holds the GIL. */
class GilRelease {
 public:
  explicit GilRelease(bool releases = true);
  GilRelease(const GilRelease&) = delete;
  ~GilRelease();

 private:
  void* state_;
  bool was_held_;
};

/* Holds the GIL while an object of this class lives. */
class GilAcquire {
 public:
  GilAcquire();
  GilAcquire(const GilAcquire&) = delete;
  ~GilAcquire();

 private:
  bool was_held_;
  int state_;
};
class GilGuard {
 public:
  explicit GilGuard(GilPolicy policy);
  GilGuard(const GilGuard&) = delete;
  ~GilGuard();

 private:
  GilRelease release_;
  bool is_locked_;
};

template <size_t I, class T>
struct IndexedSlot {
  Slot<typename plain<T>::type> slot;
};
template <class I, class... A>
struct Slots;
template <size_t... I, class... A>
struct Slots<Indices<I...>, A...> : IndexedSlot<I, A>... {
  bool load(const Parameter* parameters, void* const* arguments, bool convert) {
    if (parameters != nullptr && (false || ... || (parameters[I].refuses_none && is_none(arguments[I])))) return false;
    return (true && ... && this->IndexedSlot<I, A>::slot.load(
                               arguments[I], convert && (parameters == nullptr || !parameters[I].is_exact)));
  }
  template <class R, class F>
  R call(F& function) {
    return function(static_cast<A&&>(this->IndexedSlot<I, A>::slot.get())...);
  }
};

template <class R, class F, class... A>
struct Binding {
  static bool call(Record* record, void* const* arguments, bool convert, Object* result) {
    Slots<IndicesOf<sizeof...(A)>, A...> slots;
    if (!slots.load(record->parameters, arguments, convert)) return false;
    F& function = *static_cast<F*>(record->callable);
    if constexpr (__is_same(R, void)) {
      const GilGuard guard(record->gil);
      slots.template call<R>(function);
    } else {
      *result = Caster<typename plain<R>::type>::to_python([&]() -> R {
        const GilGuard guard(record->gil);
        return slots.template call<R>(function);
      }());
      return true;
    }
    *result = none();
    return true;
  }
  static void describe(Message& m, Record* record) {
    m.append("(");
    describe_parameters(m, record, IndicesOf<sizeof...(A)>());
    m.append(") -> ");
    if constexpr (__is_same(R, void)) {
      m.append("None");
    } else {
      Caster<typename plain<R>::type>::describe(m, true);
    }
  }
  template <size_t... I>
  static void describe_parameters(Message& m, Record* record, Indices<I...>) {
    (append_parameter(m, record, I, &Slot<typename plain<A>::type>::describe), ...);
  }
};

template <class R, class F, class... A>
Record make_record(F* function) {
  return {&Binding<R, F, A...>::call, &Binding<R, F, A...>::describe, static_cast<void*>(function), sizeof...(A), false, kGilPolicy,
          "", nullptr};
}
template <class F, class R, class C, class... A>
Record record_of_lambda(F* function, R (C::*)(A...) const) {
  return make_record<R, F, A...>(function);
}
template <class F, class R, class C, class... A>
Record record_of_lambda(F* function, R (C::*)(A...)) {
  return make_record<R, F, A...>(function);
}
template <class R, class... A>
Record record_of(R (*function)(A...)) {
  using F = R (*)(A...);
  return make_record<R, F, A...>(new F(function));
}
template <class F, class = decltype(&F::operator())>
Record record_of(const F& function) {
  return record_of_lambda(new F(function), &F::operator());
}
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
  arg& noconvert(bool flag = true) {
    is_exact = flag;
    return *this;
  }
  arg& none(bool flag = true) {
    refuses_none = !flag;
    return *this;
  }
  const char* name;
  bool is_exact = false, refuses_none = false;
  void* value = nullptr;
};
using arg_v = arg;

/* Objects of Python. Each operation takes the GIL. */
class object {
 public:
  object() : object_(jitload_torch::none()) {}
  object(const object& other) : object_(jitload_torch::borrow(other.ptr())) {}
  object& operator=(const object& other) {
    object_ = jitload_torch::borrow(other.ptr());
    return *this;
  }
  explicit object(jitload_torch::Object owned) : object_(static_cast<jitload_torch::Object&&>(owned)) {}
  void* ptr() const { return object_.get(); }
  const jitload_torch::Object& get() const { return object_; }
  bool is_none() const { return jitload_torch::is_none(ptr()); }
  object attr(const char* name) const {
    return object(jitload_torch::call_path("builtins.getattr", "", object_, c10::TextArg(name)));
  }
  template <class T>
  T cast() const {
    return jitload_torch::python_value<T>(object_);
  }
  template <class... A>
  object operator()(const A&... arguments) const {
    return object(jitload_torch::call_path("operator.call", "", object_, arguments...));
  }
  template <class K>
  object operator[](const K& key) const {
    return object(jitload_torch::call_path("operator.getitem", "", object_, key));
  }
  size_t size() const { return jitload_torch::python_value<size_t>(jitload_torch::call_path("builtins.len", "", object_)); }

 protected:
  jitload_torch::Object object_;
};
using handle = object;
struct none : object {};
struct tuple : object {
  tuple() : object(jitload_torch::python_tuple(0)) {}
  explicit tuple(const object& other) : object(jitload_torch::call_path("builtins.tuple", "", other.get())) {}
};
struct list : object {
  list() : object(jitload_torch::python_list(0)) {}
  explicit list(const object& other) : object(jitload_torch::call_path("builtins.list", "", other.get())) {}
  template <class T>
  void append(const T& value) {
    attr("append")(value);
  }
};
struct dict : object {
  dict() : object(jitload_torch::python_dict()) {}
  explicit dict(const object& other) : object(jitload_torch::call_path("builtins.dict", "", other.get())) {}
};
template <class... A>
tuple make_tuple(const A&... values) {
  jitload_torch::Object items = jitload_torch::python_tuple(sizeof...(A));
  size_t index = 0;
  (jitload_torch::set_tuple_item(items, index++, jitload_torch::Caster<typename jitload_torch::plain<A>::type>::to_python(values)), ...);
  return tuple(object(static_cast<jitload_torch::Object&&>(items)));
}
template <class T>
object cast(const T& value) {
  return object(jitload_torch::Caster<T>::to_python(value));
}
}  // namespace pybind11
namespace jitload_torch {
#define X(T)                                                                                       \
  template <>                                                                                      \
  struct Caster<pybind11::T> {                                                                     \
    static Object to_python(const pybind11::T& value) { return borrow(value.ptr()); }              \
    static bool load(void* object, bool, pybind11::T* value) {                                     \
      if (!is_builtin(object, #T)) return false;                                                   \
      static_cast<pybind11::object&>(*value) = pybind11::object(borrow(object));                   \
      return true;                                                                                 \
    }                                                                                              \
    static void describe(Message& m, bool) { m.append(#T); }                                       \
  };
X(object) X(tuple) X(list) X(dict)
#undef X
template <>
struct Caster<pybind11::none> : Caster<pybind11::object> {};
}  // namespace jitload_torch
namespace pybind11 {
namespace literals {
constexpr arg operator""_a(const char* name, size_t) { return arg(name); }
}
using namespace literals;

using gil_scoped_release = jitload_torch::GilRelease;
using gil_scoped_acquire = jitload_torch::GilAcquire;
template <class... Guards>
struct call_guard {};
enum class return_value_policy { automatic, automatic_reference, take_ownership, copy, move, reference, reference_internal };

class module_ {
 public:
  explicit module_(void* module) : module_pointer_(module) {}
  template <class F, class... Extra>
  module_& def(const char* name, const F& function, const Extra&... extra) {
    jitload_torch::Record record = jitload_torch::record_of(function);
    if ((false || ... || is_parameter(extra))) {
      record.parameters = new jitload_torch::Parameter[record.count + 1]{};
    }
    size_t position = 0;
    (apply(record, position, extra), ...);
    jitload_torch::add_function(module_pointer_, name, record);
    return *this;
  }
  class Attribute {
   public:
    Attribute(void* module, const char* name) : module_(module), name_(name) {}
    template <class T>
    void operator=(const T& value) {
      jitload_torch::set_attribute(module_, name_, jitload_torch::Caster<T>::to_python(value));
    }

   private:
    void* module_;
    const char* name_;
  };
  Attribute attr(const char* name) { return Attribute(module_pointer_, name); }
  Attribute doc() { return attr("__doc__"); }

 private:
  template <class T>
  static constexpr bool is_parameter(const T&) {
    return __is_same(T, arg);
  }
  static void apply(jitload_torch::Record& record, size_t&, const char* doc) { record.doc = doc; }
  static void apply(jitload_torch::Record& record, size_t& position, const arg& parameter) {
    if (position == record.count) return;
    record.parameters[position++] = {parameter.name, parameter.value, parameter.is_exact, parameter.refuses_none};
  }
  template <class... Guards>
  static void apply(jitload_torch::Record& record, size_t&, call_guard<Guards...>) {
    if ((false || ... || __is_same(Guards, gil_scoped_release))) record.gil = jitload_torch::GilPolicy::released;
  }
  static void apply(jitload_torch::Record&, size_t&, return_value_policy) {}
  void* module_pointer_;
};
using module = module_;

}  // namespace pybind11
namespace py = pybind11;

namespace torch {
/* Wraps a function of `functions=`, whose errors are translated as those of torch's own functions. */
template <class F>
jitload_torch::Record wrap_pybind_function(const F& function) {
  jitload_torch::Record record = jitload_torch::record_of(function);
  record.is_torch_wrapped = true;
  return record;
}
template <class F>
jitload_torch::Record wrap_pybind_function_no_gil(const F& function) {
  jitload_torch::Record record = wrap_pybind_function(function);
  record.gil = jitload_torch::GilPolicy::released;
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

/* Defines the library's function to which the loader passes the Python module to fill. */
#define PYBIND11_MODULE(name, variable)                                                                             \
  static void jitload_torch_define_(::pybind11::module_& variable);                                                 \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi__jitload_torch_module(                            \
      void*, const ::jitload_torch::Any* arguments, int32_t count, ::jitload_torch::Any* result) {                  \
    return ::jitload_torch::run_module(&jitload_torch_define_, arguments, count, result);                           \
  }                                                                                                                 \
  static void jitload_torch_define_([[maybe_unused]] ::pybind11::module_& variable)

#endif  // JITLOAD_TORCH_PYBIND_H_
