/* Objects of Python: how they are held, and values of C++ as objects and back. */
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "library.h"

namespace jitload_torch {

__thread bool holds_gil = false;

void Object::drop(void* object) {
  if (holds_gil) return Py_DecRef(object);
  if (Py_IsInitialized() == 0) return; /* at the process's end, for a static tensor of the user's text */
  Gil gil;
  Py_DecRef(object);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

Object checked(void* owned) {
  if (owned == nullptr) throw PythonError();
  return Object(owned);
}

Object attribute(void* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }
void* attribute_or_null(void* object, const char* name) {
  void* found = PyObject_GetAttrString(object, name);
  if (found == nullptr) PyErr_Clear();
  return found;
}

Object call(void* function, std::initializer_list<void*> arguments) {
  return checked(PyObject_Vectorcall(function, arguments.begin(), arguments.size(), nullptr));
}

Object object_at(const std::string& path) {
  size_t end = path.find('.');
  Object object = checked(PyImport_ImportModule(path.substr(0, end).c_str()));
  while (end != std::string::npos) {
    const size_t start = end + 1;
    end = path.find('.', start);
    object = attribute(object.get(), path.substr(start, end - start).c_str());
  }
  return object;
}

std::string text_of(void* text) {
  ptrdiff_t size = 0;
  const char* characters = PyUnicode_AsUTF8AndSize(text, &size);
  if (characters == nullptr) throw PythonError();
  return std::string(characters, static_cast<size_t>(size));
}

std::string repr_of(void* object) { return text_of(checked(PyObject_Repr(object)).get()); }

bool is_instance(void* object, void* type) {
  const Object own(PyObject_Type(object));
  return own.get() == type || PyType_IsSubtype(own.get(), type) != 0;
}

// ---- tensors --------------------------------------------------------------------------------------------------------

/* Tensors come from and go to Python through C functions of torch's stable interface from 2.14 on. Before, it has functions
 * of Python that pass the handle in a capsule, and shortcuts. */
namespace {
Object python_tensor(Handle tensor) {
  void* object = nullptr;
  if (torch_module().wrap != nullptr) return checked(torch_module().wrap(tensor));
  if (interface().tensor_to_object == nullptr) {
    const Handle copy = copy_handle(tensor);
    const Object capsule = checked(PyCapsule_New(copy, nullptr, nullptr));
    Object result = call(torch_module().from_capsule, {capsule.get()});
    if (torch_module().keeps_handle) delete_handle(copy);
    return result;
  }
  if (interface().tensor_to_object(tensor, nullptr, &object) != 0) fail_torch("a tensor for Python");
  return Object(object);
}
}  // namespace
bool tensor_from(void* object, Handle* tensor) {
  Gil gil;
  if (!is_instance(object, torch_module().base_type)) return false;
  if (torch_module().offset != 0) {
    *tensor = copy_handle(static_cast<char*>(object) + torch_module().offset);
  } else if (interface().tensor_from_object == nullptr) {
    const Object capsule = call(torch_module().to_capsule, {object});
    *tensor = PyCapsule_GetPointer(capsule.get(), nullptr);
  } else if (interface().tensor_from_object(object, tensor) != 0) {
    fail_torch("a tensor of Python");
  }
  return true;
}

// ---- values to Python -----------------------------------------------------------------------------------------------

namespace {
template <class T>
Object number_object(T value) {
  if constexpr (!std::is_integral_v<T>) return checked(PyFloat_FromDouble(value));
  else if constexpr (std::is_signed_v<T>) return checked(PyLong_FromLongLong(value));
  else return checked(PyLong_FromUnsignedLongLong(value));
}
Object text_object(const char* text, size_t size) {
  return checked(PyUnicode_FromStringAndSize(text, static_cast<ptrdiff_t>(size)));
}
Object device_object(const c10::Device& value) {
  void*& device = torch_module().devices[static_cast<int>(value.type()) * 256 + value.index()];
  if (device == nullptr) device = call(torch_module().device_type, {python(Text(value).text()).get()}).release();
  return borrow(device);
}
Object scalar_object(const c10::Scalar& value) {
  switch (value.tag()) {
    case c10::Scalar::Tag::floating: return python(value.toDouble());
    case c10::Scalar::Tag::integer: return python(value.toLong());
    case c10::Scalar::Tag::boolean: return python(value.toBool());
    default: return checked(PyComplex_FromDoubles(value.real(), value.imaginary()));
  }
}
Object array_object(unsigned code, const c10::ArrayRef<char>& values) {
  Object tuple = python_tuple(values.size());
  for (size_t i = 0; i < values.size(); ++i) set_item(tuple, i, object_of(code, values.data() + i * size_of(code)));
  return tuple;
}
template <class T>
const T& as(const void* value) { return *static_cast<const T*>(value); }
}  // namespace

Object object_of(unsigned code, const void* value) {
  Gil gil;
  if (holder_of(code) == kArray) return array_object(inner_of(code), as<c10::ArrayRef<char>>(value));
  if (holder_of(code) == kOptional) {
    const void* const inner = optional_value(inner_of(code), value);
    return inner != nullptr ? object_of(inner_of(code), inner) : none();
  }
  switch (static_cast<Type>(code)) {
#define X(T, name) \
  case Type::name: return number_object(as<T>(value));
    JITLOAD_TORCH_INTEGERS_(X) JITLOAD_TORCH_FLOATS_(X)
#undef X
    case Type::boolean: return checked(PyBool_FromLong(as<bool>(value)));
    case Type::c_string: return as<char*>(value) ? text_object(as<char*>(value), strlen(as<char*>(value))) : none();
    case Type::text: return text_object(as<c10::TextArg>(value).data(), as<c10::TextArg>(value).size());
    case Type::string: return text_object(as<std::string>(value).data(), as<std::string>(value).size());
    case Type::dtype: {
      void* const dtype = torch_module().dtypes[as<int8_t>(value)];
      if (dtype == nullptr) fail(ErrorKind::Error, "this torch does not have the dtype that the C++ asks for");
      return borrow(dtype);
    }
    case Type::layout: return borrow(torch_module().layouts[as<int8_t>(value)]);
    case Type::memory_format: return borrow(torch_module().memory_formats[as<int8_t>(value)]);
    case Type::device: return device_object(as<c10::Device>(value));
    case Type::scalar: return scalar_object(as<c10::Scalar>(value));
    case Type::object: return borrow(as<Object>(value).get());
    case Type::tensor: return as<at::Tensor>(value).defined() ? python_tensor(as<at::Tensor>(value).handle()) : none();
    case Type::index: return as<at::indexing::TensorIndex>(value).to_python();
    default: return none();
  }
}

const char* type_name(unsigned code, bool is_result) {
  switch (static_cast<Type>(code)) {
    case Type::float32: case Type::float64: return is_result ? "float" : "typing.SupportsFloat | typing.SupportsIndex";
    case Type::boolean: return "bool";
    case Type::c_string: case Type::string: return "str";
    case Type::dtype: return "torch.dtype";
    case Type::layout: return "torch.layout";
    case Type::memory_format: return "torch.memory_format";
    case Type::device: return "torch.device";
    case Type::scalar: return "Union[Number, torch.SymInt, torch.SymFloat, torch.SymBool]";
    case Type::tensor: return "torch.Tensor";
    default: return is_result ? "int" : "typing.SupportsInt | typing.SupportsIndex";
  }
}

// ---- values of torch's stack ------------------------------------------------------------------------------------------------------

static uint64_t bits_of(Type type, const void* value) {
  uint64_t bits = 0;
  switch (type) {
    case Type::tensor: {
      const at::Tensor& tensor = *static_cast<const at::Tensor*>(value);
      return reinterpret_cast<uint64_t>(copy_handle(tensor.defined() ? tensor.handle() : interface().undefined));
    }
    case Type::text:
    case Type::string: {
      const auto text = type == Type::text ? *static_cast<const c10::TextArg*>(value)
                                           : c10::TextArg(*static_cast<const std::string*>(value));
      void* handle = nullptr;
      check(interface().torch_new_string_handle(text.data(), text.size(), &handle), "a text");
      return reinterpret_cast<uint64_t>(handle);
    }
    case Type::device: {
      const c10::Device& device = *static_cast<const c10::Device*>(value);
      return static_cast<uint64_t>(device.type()) << 32 | static_cast<uint32_t>(static_cast<int32_t>(device.index()));
    }
    case Type::int64:
    case Type::float64: memcpy(&bits, value, sizeof bits); return bits; /* faster with a size that is known */
    default: memcpy(&bits, value, size_of(static_cast<unsigned>(type))); return bits;
  }
}

uint64_t stack_value(unsigned code, const void* value) {
  if (holder_of(code) == kPlain) return bits_of(static_cast<Type>(code), value);
  const unsigned inner = inner_of(code);
  if (holder_of(code) == kOptional) {
    const void* const present = optional_value(inner, value);
    return present != nullptr ? new_optional(stack_value(inner, present)) : 0;
  }
  const auto& values = *static_cast<const c10::ArrayRef<char>*>(value);
  const uint64_t list = new_list(values.size());
  const size_t size = size_of(inner);
  for (size_t i = 0; i < values.size(); ++i) push_item(list, stack_value(inner, values.data() + i * size));
  return list;
}
uint64_t new_optional(uint64_t bits) {
  uint64_t* value = nullptr; /* torch frees it */
  if (interface().new_stable_ivalue == nullptr) {
    value = new uint64_t;
  } else {
    check(interface().new_stable_ivalue(&value), "a value");
  }
  *value = bits;
  return reinterpret_cast<uint64_t>(value);
}
uint64_t new_list(size_t size) {
  void* list = nullptr;
  check(interface().torch_new_list_reserve_size(size, &list), "a list");
  return reinterpret_cast<uint64_t>(list);
}
void push_item(uint64_t list, uint64_t item) {
  check(interface().torch_list_push_back(reinterpret_cast<void*>(list), item), "a list");
}

// ---- values of Python -----------------------------------------------------------------------------------------------

namespace {
bool has_failed() {
  if (PyErr_Occurred() == nullptr) return false;
  PyErr_Clear();
  return true;
}
/* An int for an object, as pybind11 accepts it: never of a float, and without `convert` only of an int or an index. */
Object index_of(void* object, bool convert, bool is_signed) {
  if (is_instance(object, &PyFloat_Type)) return Object();
  if (is_instance(object, &PyLong_Type)) return borrow(object);
  if (!convert && (!is_signed || PyIndex_Check(object) == 0)) return Object();
  Object index(PyNumber_Index(object));
  if (index.get() == nullptr) {
    PyErr_Clear();
    if (convert && PyNumber_Check(object) != 0) index = Object(PyNumber_Long(object));
    if (index.get() == nullptr) PyErr_Clear();
  }
  return index;
}
template <class T>
bool load_integer(void* object, bool convert, void* value) {
  constexpr bool is_signed = std::is_signed_v<T>;
  using Wide = std::conditional_t<is_signed, long long, unsigned long long>;
  const Object index = index_of(object, convert, is_signed);
  if (index.get() == nullptr) return false;
  const Wide wide = static_cast<Wide>(is_signed ? PyLong_AsLongLong(index.get()) : PyLong_AsUnsignedLongLong(index.get()));
  *static_cast<T*>(value) = static_cast<T>(wide);
  return !(wide == static_cast<Wide>(-1) && has_failed()) && static_cast<Wide>(static_cast<T>(wide)) == wide;
}
bool load_float(void* object, bool convert, double* value) {
  if (!convert && !is_instance(object, &PyFloat_Type)) return false;
  *value = PyFloat_AsDouble(object);
  if (*value != -1 || !has_failed()) return true;
  if (!convert || PyNumber_Check(object) == 0) return false;
  const Object number(PyNumber_Float(object));
  if (number.get() == nullptr) return !has_failed();
  *value = PyFloat_AsDouble(number.get());
  return true;
}
bool is_bool(void* object) { return object == &_Py_TrueStruct || object == &_Py_FalseStruct; }
bool load_bool(void* object, bool convert, bool* value) {
  const Object type(PyObject_Type(object));
  const bool may_convert = convert && (is_none(object) || PyType_GetSlot(type.get(), 9) != nullptr); /* Py_nb_bool */
  if (!is_bool(object) && !may_convert &&
      text_of(checked(PyObject_Str(type.get())).get()).rfind("<class 'numpy.bool", 0) != 0) /* as in pybind11 */
    return false;
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) PyErr_Clear();
  *value = truth == 1;
  return truth >= 0;
}
bool load_scalar(void* object, c10::Scalar* value) {
  if (is_bool(object)) {
    *value = object == &_Py_TrueStruct;
  } else if (is_instance(object, &PyFloat_Type)) {
    *value = PyFloat_AsDouble(object);
  } else if (is_instance(object, &PyLong_Type)) {
    long integer = 0;
    const bool is_small = load_integer<long>(object, true, &integer);
    TORCH_CHECK(is_small, "jitload's headers for torch do not support integers of 2**63 or more");
    *value = integer;
  } else if (is_instance(object, &PyComplex_Type)) {
    *value = c10::Scalar::complex(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  } else { /* a number of NumPy, or a tensor */
    const Object item(attribute_or_null(object, "item"));
    if (item.get() == nullptr) return false;
    const Object number = call(item.get(), {});
    return PyObject_HasAttrString(number.get(), "item") == 0 && load_scalar(number.get(), value);
  }
  return true;
}
bool load_text(void* object, const char** text, size_t* size) {
  ptrdiff_t length = 0;
  *text = PyUnicode_AsUTF8AndSize(object, &length);
  if (*text == nullptr) {
    PyErr_Clear();
    if (PyBytes_AsStringAndSize(object, const_cast<char**>(text), &length) != 0) return !has_failed();
  }
  *size = static_cast<size_t>(length);
  return true;
}
/* Stores the position of an object in an array, for types that are numbers of one byte. */
template <size_t N>
bool load_position(void* const (&objects)[N], void* object, void* value) {
  const auto found = std::find(objects, objects + N, object);
  *static_cast<int8_t*>(value) = static_cast<int8_t>(found - objects);
  return found != objects + N;
}
bool load_device(void* object, c10::Device* value) {
  if (!is_instance(object, torch_module().device_type)) return false;
  *value = c10::Device(text_of(checked(PyObject_Str(object)).get()));
  return true;
}
bool load_tensor(void* object, at::Tensor* value) {
  Handle handle = nullptr;
  if (!tensor_from(object, &handle)) return false;
  *value = at::Tensor(handle);
  return true;
}
}  // namespace

bool load_object(unsigned code, void* object, bool convert, void* value) {
  Gil gil;
  const char* text = nullptr;
  size_t size = 0;
  double number = 0;
  switch (static_cast<Type>(code)) {
#define X(T, name) \
  case Type::name: return load_integer<T>(object, convert, value);
    JITLOAD_TORCH_INTEGERS_(X)
#undef X
    case Type::float32:
      return load_float(object, convert, &number) && (*static_cast<float*>(value) = static_cast<float>(number), true);
    case Type::float64: return load_float(object, convert, static_cast<double*>(value));
    case Type::boolean: return load_bool(object, convert, static_cast<bool*>(value));
    case Type::c_string: return (convert && is_none(object)) || load_text(object, static_cast<const char**>(value), &size);
    case Type::string:
      return load_text(object, &text, &size) && (static_cast<std::string*>(value)->assign(text, size), true);
    case Type::dtype: return load_position(torch_module().dtypes, object, value);
    case Type::layout: return load_position(torch_module().layouts, object, value);
    case Type::memory_format: return load_position(torch_module().memory_formats, object, value);
    case Type::device: return load_device(object, static_cast<c10::Device*>(value));
    case Type::scalar: return load_scalar(object, static_cast<c10::Scalar*>(value));
    case Type::tensor: return load_tensor(object, static_cast<at::Tensor*>(value));
    default: return false;
  }
}

// ---- objects --------------------------------------------------------------------------------------------------------

Object none() { return borrow(&_Py_NoneStruct); }
Object borrow(void* object) {
  Gil gil;
  Py_IncRef(object);
  return Object(object);
}
Object python_list(size_t size) {
  Gil gil;
  return checked(PyList_New(static_cast<ptrdiff_t>(size)));
}
Object python_tuple(size_t size) {
  Gil gil;
  return checked(PyTuple_New(static_cast<ptrdiff_t>(size)));
}
void set_item(const Object& sequence, size_t index, Object item) {
  Gil gil;
  const auto set = is_instance(sequence.get(), &PyTuple_Type) ? PyTuple_SetItem : PyList_SetItem;
  if (set(sequence.get(), static_cast<ptrdiff_t>(index), item.release()) != 0) throw PythonError();
}
bool is_none(void* object) { return object == &_Py_NoneStruct; }
bool is_builtin(void* object, const char* type) {
  Gil gil;
  return is_instance(object, object_at(std::string("builtins.") + type).get());
}
bool sequence_size(void* object, size_t* size) {
  Gil gil;
  if (PySequence_Check(object) == 0 || is_instance(object, &PyUnicode_Type) || is_instance(object, &PyBytes_Type)) return false;
  const ptrdiff_t count = PySequence_Size(object);
  if (count < 0) PyErr_Clear();
  *size = static_cast<size_t>(count);
  return count >= 0;
}
bool is_int_list(void* object, size_t size) {
  if (!is_instance(object, &PyTuple_Type) && !is_instance(object, &PyList_Type)) return false;
  while (size-- > 0) {
    const Object item = sequence_item(object, size);
    if (!is_instance(item.get(), &PyLong_Type) && !is_instance(item.get(), torch_module().base_type)) return false;
  }
  return true;
}
Object items_of(void* object, bool convert) {
  Gil gil;
  const bool is_set = is_instance(object, &PySet_Type) || is_instance(object, &PyFrozenSet_Type);
  return is_set && convert ? checked(PySequence_List(object)) : borrow(object);
}
Object sequence_item(void* object, size_t index) {
  Gil gil;
  Object item(PySequence_GetItem(object, static_cast<ptrdiff_t>(index)));
  if (item.get() == nullptr) PyErr_Clear();
  return item;
}

}  // namespace jitload_torch
