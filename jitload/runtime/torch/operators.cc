/* Operators of ATen, which are called through torch's dispatcher or through Python, functions of Python by their paths, and
 * the operators that TORCH_LIBRARY registers. */
#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "../../include/torch_light/jitload_torch/library.h"
#include "library.h"

namespace jitload_torch {

namespace {

Object keyword_tuple(const char* keywords, size_t* count) {
  std::vector<std::string> names;
  for (const char *start = keywords, *end; (end = strchr(start, ' ')) != nullptr; start = end + 1) names.emplace_back(start, end);
  *count = names.size();
  Object tuple = python_tuple(names.size());
  for (size_t i = 0; i < names.size(); ++i) set_item(tuple, i, python(names[i]));
  return tuple;
}
bool has_modes(void* count) {
  const Object modes(PyObject_Vectorcall(count, nullptr, 0, nullptr));
  return modes.get() == nullptr || PyLong_AsLongLong(modes.get()) != 0;
}
bool is_of_subclass(void* object) { /* or an array with such an item */
  const Torch& torch = torch_module();
  void* const type = PyObject_Type(object);
  Py_DecRef(type); /* the object keeps it */
  size_t size = 0;
  if (type == &PyTuple_Type) sequence_size(object, &size);
  while (size-- > 0)
    if (is_of_subclass(sequence_item(object, size).get())) return true;
  return type != torch.tensor_type && type != torch.parameter_type && PyType_IsSubtype(type, torch.base_type) != 0;
}

/* References to arguments in Python. While those for a function of torch live, no `__torch_function__` runs, as in C++. */
class PythonArguments {
 public:
  explicit PythonArguments(size_t count, bool is_for_torch = true) : is_for_torch_(is_for_torch) { TORCH_CHECK(count <= kMost, "a call of Python has at most 64 arguments"); }
  PythonArguments(const PythonArguments&) = delete;
  ~PythonArguments() {
    for (size_t i = 0; i < count_; ++i) Py_DecRef(objects_[i]);
    if (guard_.get() == nullptr) return;
    void *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    void* const error[] = {&_Py_NoneStruct, &_Py_NoneStruct, &_Py_NoneStruct};
    const Object exit(PyObject_GetAttrString(guard_.get(), "__exit__"));
    Object(PyObject_Vectorcall(exit.get(), error, 3, nullptr));
    PyErr_Restore(type, value, trace);
  }
  void add(Object object) { objects_[count_++] = object.release(); }
  /* Calls a function with the arguments, of which the last have these names. */
  Object call(void* function, size_t name_count, void* names) {
    if (is_for_torch_ && guard_.get() == nullptr &&
        (has_modes(torch_module().function_modes) || std::any_of(objects_, objects_ + count_, is_of_subclass))) {
      guard_ = jitload_torch::call(torch_module().without_modes, {});
      jitload_torch::call(attribute(guard_.get(), "__enter__").get(), {});
    }
    return checked(PyObject_Vectorcall(function, objects_, count_ - name_count, name_count != 0 ? names : nullptr));
  }
  void* operator[](size_t index) const { return objects_[index]; }

 private:
  static constexpr size_t kMost = 64;
  size_t count_ = 0;
  bool is_for_torch_;
  void* objects_[kMost];
  Object guard_;
};

template <class T>
const T& as(const Argument& argument) { return *static_cast<const T*>(argument.value); }

/* The stable interface has no Scalar (torch 2.10 to 2.14). */
bool is_scalar(const Argument& argument) {
  const bool is_present = holder_of(argument.code) != kOptional || *static_cast<const bool*>(argument.value);
  return static_cast<Type>(argument.code & 0xff) == Type::scalar && is_present;
}

// ---- results --------------------------------------------------------------------------------------------------------

/* Values of the stack for what Python returned. */
uint64_t tensor_bits(const Object& object) {
  Handle tensor = nullptr;
  if (is_none(object.get())) return reinterpret_cast<uint64_t>(copy_handle(interface().undefined));
  TORCH_CHECK_TYPE(tensor_from(object.get(), &tensor), "an operator of torch returned an object that is not a tensor");
  return reinterpret_cast<uint64_t>(tensor);
}
template <class T>
uint64_t bits_of(const Object& object) {
  const T value = python_value<T>(object);
  return stack_value(Code<T>::value, &value);
}
void take_python(const char* letters, const Object& object, uint64_t* results) {
  const size_t count = strlen(letters);
  for (size_t i = 0; i < count; ++i) {
    const Object item = count == 1 ? borrow(object.get()) : sequence_item(object.get(), i);
    size_t size = 0;
    c10::ScalarType type{};
    switch (letters[i]) {
      case 't': results[i] = tensor_bits(item); break;
      case '_': break;
      case 'b': results[i] = bits_of<bool>(item); break;
      case 'd': results[i] = bits_of<double>(item); break;
      case 'c': /* an operator in Python returns a dtype's number */
        results[i] = Caster<c10::ScalarType>::load(item.get(), false, &type) ? static_cast<uint64_t>(type) : bits_of<int64_t>(item);
        break;
      case 'i': results[i] = bits_of<int64_t>(item); break;
      case 's': results[i] = reinterpret_cast<uint64_t>(new c10::Scalar(python_value<c10::Scalar>(item))); break;
      default:
        sequence_size(item.get(), &size);
        results[i] = new_list(size);
        for (size_t k = 0; k < size; ++k) push_item(results[i], tensor_bits(sequence_item(item.get(), k)));
    }
  }
}

// ---- calls ----------------------------------------------------------------------------------------------------------

/* The operator itself, as an object of Python. */
Object find_exact(const Operator& op) {
  const Object pair = call_path("torch._C._get_operation_overload", "", op.name, op.overload);
  TORCH_CHECK_NOT_IMPLEMENTED(!is_none(pair.get()), "this torch has no operator ", op.name,
                              *op.overload != '\0' ? "." : "", op.overload);
  return checked(PySequence_GetItem(pair.get(), 0));
}
/* torch's function or method with the operator's name, which takes less time, or NULL. Three and more arguments are passed
 * by their names, because some of its deprecated forms have them in another order. */
void* find_quick(const Operator& op) {
  /* There, several `out` are one tuple, and a factory clears requires_grad of its `out`. */
  if (strchr(op.results, '_') != nullptr && op.name[strlen(op.name) - 1] != '_') return nullptr;
  if (strncmp(op.names, "self ", 5) == 0 || strstr(op.names, " self ")) return nullptr; /* there, a number has this name, no tensor */
  const char* const name = op.name + sizeof "aten::" - 1;
  /* Python's x.mul_(0.9) is mul_.Tensor, which rounds otherwise with short floats. */
  if (*op.results == '_' && strcmp(op.overload, "Scalar") == 0 && strncmp(name, "mul", 3) == 0) return nullptr;
  void* function = attribute_or_null(torch_module().functions, name);
  return function != nullptr ? function : attribute_or_null(torch_module().base_type, name);
}

void run_in_python(Operator& op, const Argument* arguments, size_t count, uint64_t* results, bool is_exact, bool copies = false) {
  Gil gil;
  if (op.keyword_names == nullptr) {
    size_t name_count = 0;
    op.keyword_names = keyword_tuple(op.names, &name_count).release();
    op.quick = find_quick(op);
  }
  PythonArguments objects(count);
  bool is_quick = !is_exact && op.quick != nullptr;
  const bool is_factory = is_quick && strstr(op.names, "pin_memory ") != nullptr; /* there, pin_memory is not optional */
  for (size_t i = 0; i < count; ++i) {
    Object object = object_of(arguments[i].code, arguments[i].value);
    const bool is_absent = is_factory && arguments[i].code == Code<c10::OptionalArg<bool>>::value && is_none(object.get());
    is_quick &= arguments[i].code != Code<at::Tensor>::value || !is_none(object.get()); /* `out` may be None in Python */
    if (copies && arguments[i].code == Code<at::Tensor>::value && !is_none(object.get())) object = call_path(".clone", "", as<at::Tensor>(arguments[i]));
    if (copies && arguments[i].code == Code<at::TensorList>::value) object = call_path("torch._foreach_clone", "", object);
    objects.add(is_absent ? python(false) : static_cast<Object&&>(object));
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

/* Fills a tensor, or adds, subtracts or multiplies on a GPU, where a number from the host takes long, by torch's C functions, which
 * take a double and do what the operators do behind autograd. Not in a mode, which may raise an error. Returns NULL if not done. */
Handle call_with_number(char kind, const at::Tensor& self, const c10::Scalar& value) {
  const bool is_fill = kind == 's';
  if (!self.defined() || value.isBoolean() || !value.is_double()) return nullptr;
  if (!(is_fill || self.is_cuda()) || !(self.is_floating_point() || (is_fill && value.isFloatingPoint()))) return nullptr;
  if (is_observed(self)) return nullptr;
  if (is_fill) return interface().aoti_torch_aten_fill__Scalar(self.handle(), value.real()) == 0 ? self.handle() : nullptr;
  static const auto add = reinterpret_cast<int32_t (*)(Handle, double, double, Handle*)>(cuda_function("aoti_torch_cuda_add_Scalar"));
  static const auto multiply = reinterpret_cast<int32_t (*)(Handle, double, Handle*)>(cuda_function("aoti_torch_cuda_mul_Scalar"));
  Handle result = nullptr; /* of self + alpha * value, or self * value */
  kind == '*' ? multiply(self.handle(), value.real(), &result) : add(self.handle(), value.real(), kind == '+' ? 1 : -1, &result);
  return result;
}
/* Calls torch's C function for `empty`, `zeros`, `full`, or a tensor and a number, which takes less time than values in boxes. NULL if
 * it does not have an option, or after an error. The first two are methods of a tensor, which says nothing if there is a dtype. */
Handle call_shortcut(char kind, const Argument* arguments) {
  if (strchr("ezf", kind) == nullptr) return call_with_number(kind, as<at::Tensor>(arguments[0]), as<c10::Scalar>(arguments[1]));
  const auto& sizes = as<c10::IntArrayRef>(arguments[0]);
  const Argument* const options = arguments + (kind == 'f' ? 2 : 1);
  const auto& dtype = as<c10::OptionalArg<c10::ScalarType>>(options[0]);
  const auto layout = as<c10::OptionalArg<c10::Layout>>(options[1]).value_or(c10::kStrided);
  const auto device = as<c10::OptionalArg<c10::Device>>(options[2]).value_or(c10::kCPU);
  const bool has_format = kind == 'e' && as<c10::OptionalArg<c10::MemoryFormat>>(options[4]).has_value();
  if (!dtype.has_value() || layout != c10::kStrided || has_format || as<c10::OptionalArg<bool>>(options[3]).value_or(false)) return nullptr;
  /* New tensors are of another kind in functionalize() and in modes. In operators, only torch knows. */
  if (kind != 'f' && (!holds_gil || has_modes(torch_module().has_transforms) || has_modes(torch_module().dispatch_modes))) return nullptr;
  auto type = static_cast<int32_t>(*dtype), device_type = static_cast<int32_t>(device.type());
  const auto dim = static_cast<int64_t>(sizes.size());
  const auto method = kind == 'e' ? interface().aoti_torch_aten_new_empty : interface().aoti_torch_aten_new_zeros;
  static const Handle self = empty_tensor(static_cast<int8_t>(c10::kFloat));
  Handle result = nullptr;
  if (kind != 'f') {
    method(self, sizes.data(), dim, &type, nullptr, &device_type, device.index(), nullptr, &result);
  } else if (const auto& number = as<c10::Scalar>(arguments[1]); number.is_double() &&
             (number.isFloatingPoint() || number.real() >= 0)) { /* an unsigned dtype takes -1, but not -1.0 */
    interface().aoti_torch_aten_full(sizes.data(), dim, number.real(), &type, nullptr, &device_type, device.index(), nullptr, &result);
  }
  return result;
}
bool changes_arguments(const Operator& op) {
  return op.name[strlen(op.name) - 1] == '_' || strchr(op.results, '_') != nullptr || *op.results == '\0';
}

}  // namespace

bool is_observed(const at::Tensor& tensor) {
  static bool is_off = false; /* after an error, if torch (2.10 to 2.12) writes errors to its log */
  if (is_off || !tensor.defined() || tensor.layout() != c10::kStrided) return true;
  Gil gil;
  if (has_modes(torch_module().dispatch_modes) || has_modes(torch_module().function_modes) || has_modes(torch_module().is_tracing)) return true;
  const Object object = python(tensor);
  if (is_of_subclass(object.get())) return true;
  static void *const forward_ad = object_at("torch.autograd.forward_ad").release(), *const level = python("_current_level").release(), *const requires_grad = python("requires_grad").release();
  if (PyLong_AsLongLong(Object(PyObject_GetAttr(forward_ad, level)).get()) >= 0) return true; /* it may give tangents gradients */
  const void* data = nullptr; /* as of a fake tensor and in transforms, where it may be an error */
  int64_t* sizes = nullptr;   /* an error for a nested tensor */
  const bool is_plain = interface().aoti_torch_get_sizes(tensor.handle(), &sizes) == 0 &&
                        interface().torch_get_const_data_ptr(tensor.handle(), &data) == 0;
  is_off = !is_plain && interface().last_message == nullptr; /* a graph, below, keeps tensors, but not numbers */
  return data == nullptr || (is_grad_enabled() && PyObject_IsTrue(checked(PyObject_GetAttr(object.get(), requires_grad)).get()) != 0);
}

void run_operator(Operator& op, const Argument* arguments, size_t count, uint64_t* results) {
  if (op.shortcut != '\0') {
    results[0] = reinterpret_cast<uint64_t>(call_shortcut(op.shortcut, arguments));
    if (results[0] != 0) return;
    Gil gil;
    PyErr_Clear(); /* what follows raises the error, too */
  }
  const bool has_number = std::any_of(arguments, arguments + count, is_scalar);
  if (op.needs_python || *op.results == 's' || has_number) {
    /* torch's functions of Python may call another operator, with the number as a tensor. */
    const bool is_exact = has_number && arguments->code == Code<at::Tensor>::value && is_observed(as<at::Tensor>(*arguments));
    return run_in_python(op, arguments, count, results, is_exact);
  }
  uint64_t stack[64];
  for (size_t i = 0; i < count; ++i) stack[i] = stack_value(arguments[i].code, arguments[i].value);
  if (interface().torch_call_dispatcher(op.name, op.overload, stack, op.version) == 0) {
    for (size_t i = 0; op.results[i] != '\0'; ++i) {
      if (op.results[i] == '_') delete_handle(reinterpret_cast<Handle>(stack[i]));
      results[i] = stack[i];
    }
    return;
  }
  Gil gil;
  if (PyErr_Occurred() != nullptr) throw PythonError(); /* by an operator or a mode that is written in Python */
  /* The C interface does not tell the class of an error. The same call raises it in Python. */
  const std::string message = interface().last_message != nullptr ? interface().last_message() : "";
  /* Nothing has run where the dispatcher cannot take a type, or a rule of vmap cannot take its lists. */
  op.needs_python = message.find("Not yet supported conversion") != std::string::npos ||
                    message.find("Expected IntList but got GenericList") != std::string::npos;
  /* Otherwise, the first call may have changed a part of its arguments, which must not change twice. */
  const bool may_have_changed = !op.needs_python && changes_arguments(op);
  const Object generator = call_path("torch.get_rng_state", "");
  try {
    run_in_python(op, arguments, count, results, true, may_have_changed && !message.empty());
    TORCH_CHECK(!may_have_changed, message.empty() ? op.name : message, message.empty() ? " failed" : "");
  } catch (const c10::Error&) {
    if (!op.needs_python) call_path("torch.set_rng_state", "", generator); /* the second call has drawn numbers again */
    throw;
  }
}

Object invoke_path(const char* path, const char* keywords, void** arguments, size_t count) {
  const bool is_of_torch = *path == '.' || strncmp(path, "torch.", 6) == 0;
  const Turn turn(is_of_torch && has_turn);
  Gil gil;
  PythonArguments objects(count, is_of_torch);
  for (size_t i = 0; i < count; ++i) objects.add(Object(arguments[i]));
  size_t keyword_count = 0;
  const Object names = keyword_tuple(keywords, &keyword_count);
  if (*path != '.') return objects.call(object_at(path).get(), keyword_count, names.get());
  TORCH_CHECK(!is_none(objects[0]), "Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'self'");
  Object member = attribute(torch_module().tensor_type, path + 1);
  if (PyCallable_Check(member.get()) == 0) member = attribute(member.get(), "__get__"); /* a property */
  return objects.call(member.get(), keyword_count, names.get());
}

// ---- operators of TORCH_LIBRARY --------------------------------------------------------------------------------------

namespace {

using Kernel = void (*)(uint64_t*, uint64_t, uint64_t);

template <class... P>
int32_t call_torch(const char* name, P... arguments) {
  const auto function = reinterpret_cast<int32_t (*)(P...)>(dlsym(interface().library, name));
  TORCH_CHECK(function != nullptr, "this torch lacks ", name);
  return function(arguments...);
}

/* torch calls an implementation without saying which, so each has a function of its own. */
constexpr size_t kMaxKernels = 256;
struct Implementation : Boxed {
  const char* name; /* with the namespace; NULL when the types are known to be those of the schema */
};
Implementation kernels[kMaxKernels];
size_t kernel_count;

std::string types_of(const Object& schema) {
  std::string types;
  for (const char* const part : {"arguments", "returns"}) {
    const Object items = attribute(schema.get(), part);
    for (size_t i = 0, size = static_cast<size_t>(PySequence_Size(items.get())); i < size; ++i) {
      const Object type = attribute(sequence_item(items.get(), i).get(), "type");
      types += text_of(checked(PyObject_Str(type.get())).get()) + (i + 1 == size ? "" : ", ");
    }
    if (types.find(" -> ") == types.npos) types += " -> ";
  }
  for (size_t at; (at = types.find("SymInt")) != types.npos;) types.replace(at, 6, "int");
  return types;
}
/* Refuses a function whose types are not those of the schema, which is known at the first call. torch refuses it as text. */
void check_schema(Implementation& kernel) {
  Gil gil;
  const char* const dot = strchr(kernel.name, '.');
  const std::string name(kernel.name, dot != nullptr ? static_cast<size_t>(dot - kernel.name) : strlen(kernel.name));
  const Object expected = call_path("torch._C._get_schema", "", name, c10::TextArg(dot != nullptr ? dot + 1 : ""));
  const Object inferred = call_path("torch._C.parse_schema", "", kernel.schema(kernel.name));
  TORCH_CHECK(types_of(expected) == types_of(inferred), "Inferred operator schema for a C++ kernel function doesn't match the "
              "expected function schema.\n  operator: ", kernel.name, "\n  expected types: ", types_of(expected),
              "\n  inferred types: ", types_of(inferred));
  kernel.name = nullptr;
}
__attribute__((noinline)) void run_boxed(Implementation& kernel, uint64_t* stack) {
  const GilNote note(false); /* torch may have released the GIL */
  try {
    if (C10_UNLIKELY(kernel.name != nullptr)) check_schema(kernel);
    kernel.run(kernel, stack);
  } catch (const c10::Error& error) { /* torch has another class of this name */
    throw std::runtime_error(error.what());
  }
}
template <size_t I>
void run_kernel(uint64_t* stack, uint64_t, uint64_t) { run_boxed(kernels[I], stack); }
template <size_t... I>
constexpr std::array<Kernel, sizeof...(I)> make_kernels(std::index_sequence<I...>) { return {&run_kernel<I>...}; }
constexpr std::array<Kernel, kMaxKernels> kKernels = make_kernels(std::make_index_sequence<kMaxKernels>());

}  // namespace

void* new_library(const char* kind, const char* name, const char* key, const char* file, int line) {
  void* library = nullptr;
  const auto number = static_cast<uint32_t>(line);
  if (*kind == 'I') {
    check(call_torch("aoti_torch_library_init_impl", name, key, file, number, &library), "TORCH_LIBRARY_IMPL");
  } else {
    const char* const function = *kind == 'D' ? "aoti_torch_library_init_def" : "aoti_torch_library_init_fragment";
    check(call_torch(function, name, file, number, &library), "TORCH_LIBRARY");
  }
  return library;
}
void define_operator(void* library, const char* schema) {
  check(call_torch("aoti_torch_library_def", library, schema), schema);
}
void implement_operator(void* library, const std::string& name, const Boxed& boxed) {
  TORCH_CHECK(kernel_count != kMaxKernels, "a text can implement ", kMaxKernels, " operators for torch at most");
  kernels[kernel_count] = {boxed, strdup(name.c_str())};
  check(call_torch("torch_library_impl", library, name.c_str(), kKernels[kernel_count++], uint64_t{JITLOAD_TORCH_ABI}), name.c_str());
}

// ---- values of the stack --------------------------------------------------------------------------------------------

Handle take_tensor(uint64_t bits) {
  const Handle tensor = reinterpret_cast<Handle>(bits);
  bool is_defined = false;
  interface().aoti_torch_is_defined(tensor, &is_defined);
  if (is_defined) return tensor;
  delete_handle(tensor);
  return nullptr;
}
uint64_t take_optional(uint64_t optional) {
  uint64_t* const value = reinterpret_cast<uint64_t*>(optional);
  const uint64_t bits = *value;
  if (interface().new_stable_ivalue != nullptr) {
    call_torch("torch_delete_stable_ivalue", value);
  } else {
    delete value;
  }
  return bits;
}
size_t list_size(uint64_t list) {
  size_t size = 0;
  check(interface().torch_list_size(reinterpret_cast<void*>(list), &size), "a list");
  return size;
}
uint64_t list_item(uint64_t list, size_t index) {
  uint64_t item = 0;
  check(interface().torch_list_get_item(reinterpret_cast<void*>(list), index, &item), "a list");
  return item;
}
void delete_list(uint64_t list) { interface().torch_delete_list(reinterpret_cast<void*>(list)); }
static std::string take_text(void* text) {
  size_t size = 0;
  const char* characters = "";
  call_torch("torch_string_length", text, &size);
  call_torch("torch_string_c_str", text, &characters);
  const std::string copy(characters, size);
  call_torch("torch_delete_string", text);
  return copy;
}
void take_value(unsigned code, uint64_t bits, void* value) {
  switch (static_cast<Type>(code)) {
    case Type::tensor: *static_cast<at::Tensor*>(value) = at::Tensor(take_tensor(bits)); break;
    case Type::string: *static_cast<std::string*>(value) = take_text(reinterpret_cast<void*>(bits)); break;
    case Type::device: {
      const auto type = static_cast<c10::DeviceType>(bits >> 32);
      *static_cast<c10::Device*>(value) = c10::Device(type, static_cast<c10::DeviceIndex>(bits));
      break;
    }
    case Type::scalar: { /* the stack has none: this one comes from Python */
      c10::Scalar* const scalar = reinterpret_cast<c10::Scalar*>(bits);
      *static_cast<c10::Scalar*>(value) = *scalar;
      delete scalar;
      break;
    }
    default: memcpy(value, &bits, size_of(code)); /* a number */
  }
}
const char* schema_name(unsigned code) {
  switch (static_cast<Type>(code)) {
    case Type::float64: return "float";
    case Type::boolean: return "bool";
    case Type::int64: return "int";
    case Type::dtype: return "ScalarType";
    case Type::device: return "Device";
    case Type::string: return "str";
    default: return "Tensor";
  }
}

}  // namespace jitload_torch
