/* Calls of ATen's operators through torch's dispatcher or through Python, and of functions of Python by their paths. */
#include <string.h>

#include <algorithm>
#include <vector>

#include "torch_library.h"

namespace jitload_torch {

namespace {

Object keyword_tuple(const char* keywords, size_t* count) {
  std::vector<std::string> names;
  for (const char *start = keywords, *end; (end = strchr(start, ' ')) != nullptr; start = end + 1) {
    names.emplace_back(start, end);
  }
  *count = names.size();
  Object tuple = python_tuple(names.size());
  for (size_t i = 0; i < names.size(); ++i) set_tuple_item(tuple, i, python_text(names[i].data(), names[i].size()));
  return tuple;
}

/* References to arguments in Python; while it lives, nothing of `__torch_function__` runs, as in C++. */
class PythonArguments {
 public:
  explicit PythonArguments(size_t count) : objects_(count <= kFew ? few_ : new void*[count]) {}
  PythonArguments(const PythonArguments&) = delete;
  ~PythonArguments() {
    for (size_t i = 0; i < count_; ++i) Py_DecRef(objects_[i]);
    if (objects_ != few_) delete[] objects_;
    if (guard_.get() != nullptr) leave();
  }
  void add(Object object) { objects_[count_++] = object.release(); }
  /* Calls a function with the arguments, of which the last have these names. */
  Object call(void* function, size_t name_count, void* names) {
    if (guard_.get() == nullptr && needs_guard()) {
      guard_ = jitload_torch::call(torch_module().without_modes, {});
      jitload_torch::call(attribute(guard_.get(), "__enter__").get(), {});
    }
    return checked(PyObject_Vectorcall(function, objects_, count_ - name_count, name_count != 0 ? names : nullptr));
  }
  void* operator[](size_t index) const { return objects_[index]; }

 private:
  static constexpr size_t kFew = 8;
  /* Whether a mode such as torch.device("meta") is active, or an argument is of a subclass of torch.Tensor. */
  bool needs_guard() const {
    const Torch& torch = torch_module();
    const Object modes(PyObject_Vectorcall(torch.mode_count, nullptr, 0, nullptr));
    if (modes.get() == nullptr || PyLong_AsLongLong(modes.get()) != 0) return true;
    return std::any_of(objects_, objects_ + count_, [&](void* object) {
      void* const type = PyObject_Type(object);
      Py_DecRef(type); /* the object keeps it */
      return type != torch.tensor_type && type != torch.parameter_type && PyType_IsSubtype(type, torch.base_type) != 0;
    });
  }
  void leave() {
    void *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    void* const error[] = {&_Py_NoneStruct, &_Py_NoneStruct, &_Py_NoneStruct};
    const Object exit(PyObject_GetAttrString(guard_.get(), "__exit__"));
    Object(PyObject_Vectorcall(exit.get(), error, 3, nullptr));
    PyErr_Restore(type, value, trace);
  }
  size_t count_ = 0;
  void* few_[kFew];
  void** objects_;
  Object guard_;
};

// ---- arguments ------------------------------------------------------------------------------------------------------

template <class T>
const T& as(const Argument& argument) {
  return *static_cast<const T*>(argument.value);
}
template <class T>
uint64_t bits_of(T value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}
uint64_t stable(int64_t value) { return bits_of(value); }
uint64_t stable(double value) { return bits_of(value); }
uint64_t stable(bool value) { return bits_of(value); }
uint64_t stable(c10::ScalarType value) { return bits_of(static_cast<int32_t>(value)); }
uint64_t stable(c10::Layout value) { return bits_of(static_cast<int32_t>(value)); }
uint64_t stable(c10::MemoryFormat value) { return bits_of(static_cast<int32_t>(value)); }
uint64_t stable(const c10::Device& value) {
  return static_cast<uint64_t>(value.type()) << 32 | static_cast<uint32_t>(static_cast<int32_t>(value.index()));
}
uint64_t stable(const at::Tensor& value) {
  return bits_of(copy_handle(value.defined() ? value.handle() : interface().undefined));
}
uint64_t stable(const c10::TextArg& value) {
  void* text = nullptr;
  if (interface().torch_new_string_handle(value.data(), value.size(), &text) != 0) fail_torch("a text");
  return bits_of(text);
}
template <class T>
uint64_t stable(const c10::ArrayRef<T>& values);
template <class T>
uint64_t stable(const c10::OptionalArg<T>& value) {
  if (!value.has_value()) return 0;
  uint64_t* inner = nullptr; /* torch frees it */
  if (interface().new_stable_ivalue == nullptr) {
    inner = new uint64_t;
  } else if (interface().new_stable_ivalue(&inner) != 0) {
    fail_torch("a value");
  }
  *inner = stable(*value);
  return bits_of(inner);
}
template <class T>
uint64_t stable(const c10::ArrayRef<T>& values) {
  void* list = nullptr;
  bool is_complete = interface().torch_new_list_reserve_size(values.size(), &list) == 0;
  for (const T& value : values) is_complete = is_complete && interface().torch_list_push_back(list, stable(value)) == 0;
  if (!is_complete) fail_torch("a list");
  return bits_of(list);
}
uint64_t stable(const c10::OptionalIntArrayRef& values) {
  return stable(values.has_value() ? c10::OptionalArg<c10::IntArrayRef>(*values) : c10::OptionalArg<c10::IntArrayRef>());
}
Object object_of(const c10::OptionalIntArrayRef& values) {
  return values.has_value() ? Caster<c10::IntArrayRef>::to_python(*values) : none();
}
template <class T>
Object object_of(const T& value) {
  return Caster<T>::to_python(value);
}

/* Each kind of argument with its C++ type. */
#define JITLOAD_TORCH_KINDS_(X)                                                                                       \
  X(tensor, at::Tensor) X(optional_tensor, c10::OptionalArg<at::Tensor>) X(tensors, c10::ArrayRef<at::Tensor>)        \
  X(optional_tensors, c10::ArrayRef<c10::OptionalArg<at::Tensor>>) X(integer, int64_t)                                \
  X(optional_integer, c10::OptionalArg<int64_t>) X(floating, double) X(optional_floating, c10::OptionalArg<double>)   \
  X(boolean, bool) X(optional_boolean, c10::OptionalArg<bool>) X(dtype, c10::ScalarType)                              \
  X(optional_dtype, c10::OptionalArg<c10::ScalarType>) X(device, c10::Device)                                         \
  X(optional_device, c10::OptionalArg<c10::Device>) X(optional_layout, c10::OptionalArg<c10::Layout>)                 \
  X(memory_format, c10::MemoryFormat) X(optional_memory_format, c10::OptionalArg<c10::MemoryFormat>)                  \
  X(integers, c10::IntArrayRef) X(optional_integers, c10::OptionalIntArrayRef) X(floats, c10::ArrayRef<double>)       \
  X(optional_floats, c10::OptionalArg<c10::ArrayRef<double>>) X(text, c10::TextArg)                                   \
  X(optional_text, c10::OptionalArg<c10::TextArg>)
#define JITLOAD_TORCH_SCALAR_KINDS_(X) \
  X(scalar, c10::Scalar) X(optional_scalar, c10::OptionalArg<c10::Scalar>) X(scalars, c10::ArrayRef<c10::Scalar>)

uint64_t stable_argument(const Argument& argument) {
  switch (argument.kind) {
#define X(name, T) \
  case Kind::name: return stable(as<T>(argument));
    JITLOAD_TORCH_KINDS_(X)
#undef X
    default: return 0; /* an optional Scalar or generator, which is absent */
  }
}
Object python_argument(const Argument& argument) {
  switch (argument.kind) {
#define X(name, T) \
  case Kind::name: return object_of(as<T>(argument));
    JITLOAD_TORCH_KINDS_(X)
    JITLOAD_TORCH_SCALAR_KINDS_(X)
#undef X
    default: return none();
  }
}
/* The stable interface has no Scalar (torch 2.10 to 2.14). */
bool is_scalar(const Argument& argument) {
  return argument.kind == Kind::scalar || argument.kind == Kind::scalars ||
         (argument.kind == Kind::optional_scalar && as<c10::OptionalArg<c10::Scalar>>(argument).has_value());
}

// ---- results --------------------------------------------------------------------------------------------------------

Handle defined_or_null(uint64_t value) {
  const Handle tensor = reinterpret_cast<Handle>(value);
  bool is_defined = false;
  interface().aoti_torch_is_defined(tensor, &is_defined);
  if (is_defined) return tensor;
  delete_handle(tensor);
  return nullptr;
}

void take_stable(const char* letters, const uint64_t* stack, Results* results) {
  for (size_t i = 0; letters[i] != '\0'; ++i) {
    switch (letters[i]) {
      case 't': results->tensors[i] = defined_or_null(stack[i]); break;
      case '_': delete_handle(reinterpret_cast<Handle>(stack[i])); break;
      case 'b': results->boolean = (stack[i] & 0xff) != 0; break;
      case 'd': memcpy(&results->floating, &stack[i], sizeof(double)); break;
      case 'i': results->integer = static_cast<int64_t>(stack[i]); break;
      case 'c': results->integer = static_cast<int32_t>(stack[i]); break;
      default: { /* a list of tensors */
        void* const list = reinterpret_cast<void*>(stack[i]);
        interface().torch_list_size(list, &results->count);
        results->array = new Handle[results->count + 1];
        for (size_t k = 0; k < results->count; ++k) {
          uint64_t value = 0;
          interface().torch_list_get_item(list, k, &value);
          results->array[k] = defined_or_null(value);
        }
        interface().torch_delete_list(list);
      }
    }
  }
}

Handle handle_of(void* object) {
  Handle tensor = nullptr;
  if (!is_none(object) && !tensor_from(object, &tensor)) {
    throw CheckError(ErrorKind::type, "an operator of torch returned an object that is not a tensor");
  }
  return tensor;
}

void take_python(const char* letters, const Object& object, Results* results) {
  const size_t count = strlen(letters);
  for (size_t i = 0; i < count; ++i) {
    const Object item = count == 1 ? borrow(object.get()) : sequence_item(object.get(), i);
    switch (letters[i]) {
      case 't': results->tensors[i] = handle_of(item.get()); break;
      case '_': break;
      case 'b': results->boolean = python_value<bool>(item); break;
      case 'd': results->floating = python_value<double>(item); break;
      case 'i': results->integer = python_value<int64_t>(item); break;
      case 'c': { /* an operator in Python returns a dtype's number */
        int8_t type = 0;
        results->integer = dtype_from(item.get(), &type) ? type : python_value<int64_t>(item);
        break;
      }
      case 's': results->scalar = python_value<c10::Scalar>(item); break;
      default:
        sequence_size(item.get(), &results->count);
        results->array = new Handle[results->count + 1];
        for (size_t k = 0; k < results->count; ++k) results->array[k] = handle_of(sequence_item(item.get(), k).get());
    }
  }
}

// ---- calls ----------------------------------------------------------------------------------------------------------

/* The operator itself, as an object of Python. */
Object find_exact(const Operator& op) {
  const Object first = python_text(op.name, strlen(op.name)), second = python_text(op.overload, strlen(op.overload));
  const Object pair = call(torch_module().find_operator, {first.get(), second.get()});
  if (is_none(pair.get())) {
    throw CheckError(ErrorKind::not_implemented, std::string("this torch has no operator ") + op.name +
                                                     (*op.overload != '\0' ? "." : "") + op.overload);
  }
  return checked(PySequence_GetItem(pair.get(), 0));
}
/* torch's function or method with the operator's name, which takes less time, or NULL. Three and more arguments are passed
 * by their names, because some of its deprecated forms have them in another order. */
void* find_quick(const Operator& op) {
  if (strchr(op.results, '_') != nullptr && strlen(op.results) > 1) return nullptr; /* there, they are one tuple */
  const char* const name = op.name + sizeof "aten::" - 1;
  void* function = attribute_or_null(torch_module().functions, name);
  return function != nullptr ? function : attribute_or_null(torch_module().base_type, name);
}

void run_in_python(Operator& op, const Argument* arguments, size_t count, Results* results, bool is_exact) {
  Gil gil;
  if (op.keyword_names == nullptr) {
    size_t name_count = 0;
    op.keyword_names = keyword_tuple(op.names, &name_count).release();
    op.quick = find_quick(op);
  }
  PythonArguments objects(count);
  const bool is_quick = !is_exact && op.quick != nullptr;
  const bool is_factory = is_quick && strstr(op.names, "pin_memory ") != nullptr; /* there, pin_memory is not optional */
  for (size_t i = 0; i < count; ++i) {
    Object object = python_argument(arguments[i]);
    const bool is_absent = is_factory && arguments[i].kind == Kind::optional_boolean && is_none(object.get());
    objects.add(is_absent ? python_bool(false) : static_cast<Object&&>(object));
  }
  if (is_quick) {
    try {
      return take_python(op.results, objects.call(op.quick, count > 2 ? count - 1 : 0, op.keyword_names), results);
    } catch (const PythonError& error) {
      if (!error.is(PyExc_TypeError)) throw; /* its parameters may differ from the operator's */
      op.quick = nullptr;
    }
  }
  if (op.exact == nullptr) op.exact = find_exact(op).release();
  take_python(op.results, objects.call(op.exact, count - 1, op.keyword_names), results);
}

void throw_pending_error() {
  Gil gil;
  if (PyErr_Occurred() != nullptr) throw PythonError();
}
bool changes_arguments(const Operator& op) {
  return op.name[strlen(op.name) - 1] == '_' || strchr(op.results, '_') != nullptr || *op.results == '\0';
}

}  // namespace

void run_operator(Operator& op, const Argument* arguments, size_t count, Results* results) {
  if (op.needs_python || *op.results == 's' || std::any_of(arguments, arguments + count, is_scalar)) {
    return run_in_python(op, arguments, count, results, false);
  }
  uint64_t stack[64];
  for (size_t i = 0; i < count; ++i) stack[i] = stable_argument(arguments[i]);
  if (interface().torch_call_dispatcher(op.name, op.overload, stack, op.version) == 0) {
    return take_stable(op.results, stack, results);
  }
  throw_pending_error(); /* an operator or a mode that is written in Python has raised it */
  /* The C interface does not tell the class of an error. The same call raises it in Python. */
  const std::string message = interface().last_message != nullptr ? interface().last_message() : "";
  run_in_python(op, arguments, count, results, true);
  /* Nothing has run where the dispatcher cannot take a type, or a rule of vmap cannot take its lists. */
  op.needs_python = message.find("Not yet supported conversion") != std::string::npos ||
                    message.find("Expected IntList but got GenericList") != std::string::npos;
  if (changes_arguments(op) && !op.needs_python) { /* the first call may have changed a part */
    throw CheckError(ErrorKind::runtime, std::string(op.name) + " failed" + (message.empty() ? "" : ": ") + message);
  }
}

Object invoke_path(const char* path, const char* keywords, void** arguments, size_t count) {
  Gil gil;
  PythonArguments objects(count);
  for (size_t i = 0; i < count; ++i) objects.add(Object(arguments[i]));
  size_t keyword_count = 0;
  const Object names = keyword_tuple(keywords, &keyword_count);
  if (*path != '.') return objects.call(object_at(path).get(), keyword_count, names.get());
  if (is_none(objects[0])) {
    throw CheckError(ErrorKind::runtime, "Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'self'");
  }
  const Object member = attribute(torch_module().tensor_type, path + 1);
  if (PyCallable_Check(member.get()) == 0) { /* a property */
    return objects.call(attribute(member.get(), "__get__").get(), keyword_count, names.get());
  }
  return objects.call(member.get(), keyword_count, names.get());
}

}  // namespace jitload_torch
