/* Objects of Python: how they are held, and values of C++ as objects and back. */
#include <string.h>

#include "torch_library.h"

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
  void* const own = PyObject_Type(object);
  const bool is_same = own == type || PyType_IsSubtype(own, type) != 0;
  Py_DecRef(own);
  return is_same;
}

// ---- values of Python -----------------------------------------------------------------------------------------------

namespace {
/* The object that a function of Python's C API makes of these arguments. */
template <class... P, class... A>
Object make(void* (*function)(P...), A... arguments) {
  Gil gil;
  return checked(function(arguments...));
}
}  // namespace
Object none() { return borrow(&_Py_NoneStruct); }
Object borrow(void* object) {
  Gil gil;
  Py_IncRef(object);
  return Object(object);
}
Object python_integer(long long value) { return make(PyLong_FromLongLong, value); }
Object python_unsigned(unsigned long long value) { return make(PyLong_FromUnsignedLongLong, value); }
Object python_float(double value) { return make(PyFloat_FromDouble, value); }
Object python_bool(bool value) { return make(PyBool_FromLong, value); }
Object python_complex(double real, double imaginary) { return make(PyComplex_FromDoubles, real, imaginary); }
Object python_text(const char* text, size_t size) {
  return make(PyUnicode_FromStringAndSize, text, static_cast<ptrdiff_t>(size));
}
Object python_dtype(int8_t scalar_type) {
  Gil gil;
  for (int i = 0; i < kDtypeCount; ++i) {
    if (kDtypes[i].scalar_type == scalar_type && torch_module().dtypes[i] != nullptr) return borrow(torch_module().dtypes[i]);
  }
  throw CheckError(ErrorKind::runtime, "this torch does not have the dtype that the C++ asks for");
}
Object python_device(int8_t type, int8_t index) {
  Gil gil;
  void*& device = torch_module().devices[type * 256 + index];
  if (device == nullptr) {
    const char* name = c10::device_name(static_cast<c10::DeviceType>(type));
    const Object text = python_text(name, strlen(name)), number = python_integer(index);
    device = index == -1 ? call(torch_module().device_type, {text.get()}).release()
                         : call(torch_module().device_type, {text.get(), number.get()}).release();
  }
  return borrow(device);
}
Object python_layout(int8_t layout) {
  Gil gil;
  return borrow(torch_module().layouts[layout]);
}
Object python_memory_format(int8_t format) {
  Gil gil;
  return borrow(torch_module().memory_formats[format]);
}
Object python_slice(Object start, Object stop, Object step) { return make(PySlice_New, start.get(), stop.get(), step.get()); }
Object python_ellipsis() {
  Gil gil;
  return object_at("builtins.Ellipsis");
}
Object python_list(size_t size) { return make(PyList_New, static_cast<ptrdiff_t>(size)); }
Object python_tuple(size_t size) { return make(PyTuple_New, static_cast<ptrdiff_t>(size)); }
Object python_dict() { return make(PyDict_New); }
void set_dict_item(const Object& dict, Object key, Object item) {
  Gil gil;
  if (PyObject_SetItem(dict.get(), key.get(), item.get()) != 0) throw PythonError();
}
void set_list_item(const Object& list, size_t index, Object item) {
  Gil gil;
  if (PyList_SetItem(list.get(), static_cast<ptrdiff_t>(index), item.release()) != 0) throw PythonError();
}
void set_tuple_item(const Object& tuple, size_t index, Object item) {
  Gil gil;
  if (PyTuple_SetItem(tuple.get(), static_cast<ptrdiff_t>(index), item.release()) != 0) throw PythonError();
}

bool is_none(void* object) { return object == &_Py_NoneStruct; }
bool is_bool(void* object) { return object == &_Py_TrueStruct || object == &_Py_FalseStruct; }
bool is_float(void* object) {
  Gil gil;
  return is_instance(object, &PyFloat_Type);
}
bool is_integer(void* object) {
  Gil gil;
  return is_instance(object, &PyLong_Type);
}
c10::ScalarType default_dtype() { return python_value<c10::ScalarType>(call_path("torch.get_default_dtype", "")); }
bool is_builtin(void* object, const char* type) {
  Gil gil;
  return *type == 'o' || is_instance(object, *type == 't' ? &PyTuple_Type : *type == 'l' ? &PyList_Type : &PyDict_Type);
}

/* Tensors come from and go to Python through C functions of torch's stable interface from 2.14 on. Before, it has functions
 * of Python that pass the handle in a capsule, and shortcuts. */
Object python_tensor(Handle tensor) {
  Gil gil;
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

namespace {
/* An int for an object, as pybind11 accepts it: never of a float, and without `convert` only of an int. */
Object index_of(void* object, bool convert) {
  if (is_instance(object, &PyFloat_Type)) return Object();
  if (is_instance(object, &PyLong_Type)) {
    Py_IncRef(object);
    return Object(object);
  }
  if (!convert && PyIndex_Check(object) == 0) return Object();
  Object index(PyNumber_Index(object));
  if (index.get() == nullptr) {
    PyErr_Clear();
    if (convert && PyNumber_Check(object) != 0) index = Object(PyNumber_Long(object));
    if (index.get() == nullptr) PyErr_Clear();
  }
  return index;
}
bool has_failed() {
  if (PyErr_Occurred() == nullptr) return false;
  PyErr_Clear();
  return true;
}
}  // namespace

bool integer_from(void* object, bool convert, long long low, long long high, long long* value) {
  Gil gil;
  const Object index = index_of(object, convert);
  if (index.get() == nullptr) return false;
  *value = PyLong_AsLongLong(index.get());
  return !(*value == -1 && has_failed()) && *value >= low && *value <= high;
}
bool unsigned_from(void* object, bool convert, unsigned long long high, unsigned long long* value) {
  Gil gil;
  const Object index = index_of(object, convert);
  if (index.get() == nullptr) return false;
  *value = PyLong_AsUnsignedLongLong(index.get());
  return !(*value == static_cast<unsigned long long>(-1) && has_failed()) && *value <= high;
}
bool float_from(void* object, bool convert, double* value) {
  Gil gil;
  if (!convert && !is_instance(object, &PyFloat_Type)) return false;
  *value = PyFloat_AsDouble(object);
  if (*value != -1 || !has_failed()) return true;
  if (!convert || PyNumber_Check(object) == 0) return false;
  const Object number(PyNumber_Float(object));
  if (number.get() == nullptr) return !has_failed();
  *value = PyFloat_AsDouble(number.get());
  return true;
}
bool bool_from(void* object, bool convert, bool* value) {
  Gil gil;
  if (!is_bool(object)) {
    if (!convert) return false;
    if (!is_none(object) && PyObject_HasAttrString(object, "__bool__") == 0) return false;
  }
  const int truth = PyObject_IsTrue(object);
  if (truth < 0) PyErr_Clear();
  *value = truth == 1;
  return truth >= 0;
}
bool complex_from(void* object, double* real, double* imaginary) {
  Gil gil;
  *real = PyComplex_RealAsDouble(object);
  if (*real == -1 && has_failed()) return false;
  *imaginary = PyComplex_ImagAsDouble(object);
  return true;
}
bool text_from(void* object, const char** text, size_t* size) {
  Gil gil;
  ptrdiff_t length = 0;
  *text = PyUnicode_AsUTF8AndSize(object, &length);
  if (*text == nullptr) {
    PyErr_Clear();
    char* bytes = nullptr;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) != 0) {
      PyErr_Clear();
      return false;
    }
    *text = bytes;
  }
  *size = static_cast<size_t>(length);
  return true;
}
bool character_from(void* object, char* value) {
  const char* text = nullptr;
  size_t size = 0;
  if (is_none(object)) throw CheckError(ErrorKind::value, "Cannot convert None to a character");
  if (!text_from(object, &text, &size)) return false;
  const unsigned char first = static_cast<unsigned char>(*text);
  if (size == 0) throw CheckError(ErrorKind::value, "Cannot convert empty string to a character");
  if (size == 2 && first >= 0xc0 && first < 0xe0) { /* a character of two bytes in UTF-8 */
    if (first >= 0xc4) throw CheckError(ErrorKind::value, "Character code point not in range(0x100)");
    *value = static_cast<char>((first & 3) << 6 | (text[1] & 0x3f));
    return true;
  }
  if (size > 1 && (first >= 0x80)) throw CheckError(ErrorKind::value, "Character code point not in range(0x100)");
  if (size > 1) throw CheckError(ErrorKind::value, "Expected a character, but multi-character string found");
  *value = *text;
  return true;
}
bool dtype_from(void* object, int8_t* scalar_type) {
  Gil gil;
  for (int i = 0; i < kDtypeCount; ++i) {
    if (torch_module().dtypes[i] == object) {
      *scalar_type = kDtypes[i].scalar_type;
      return true;
    }
  }
  return false;
}
namespace {
template <size_t N>
bool position_in(void* const (&objects)[N], void* object, int8_t* index) {
  for (size_t i = 0; i < N; ++i) {
    if (objects[i] == object && object != nullptr) {
      *index = static_cast<int8_t>(i);
      return true;
    }
  }
  return false;
}
}  // namespace
bool layout_from(void* object, int8_t* layout) {
  Gil gil;
  return position_in(torch_module().layouts, object, layout);
}
bool memory_format_from(void* object, int8_t* format) {
  Gil gil;
  return position_in(torch_module().memory_formats, object, format);
}
bool device_from(void* object, int8_t* type, int8_t* index) {
  Gil gil;
  if (!is_instance(object, torch_module().device_type)) return false;
  const std::string name = text_of(attribute(object, "type").get());
  const Object number = attribute(object, "index");
  *type = static_cast<int8_t>(c10::DeviceType::PrivateUse1);
  for (c10::DeviceType candidate : {c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::HIP, c10::DeviceType::XPU,
                                    c10::DeviceType::MPS, c10::DeviceType::Meta}) {
    if (name == c10::device_name(candidate)) *type = static_cast<int8_t>(candidate);
  }
  *index = is_none(number.get()) ? -1 : static_cast<int8_t>(PyLong_AsLongLong(number.get()));
  return true;
}
bool sequence_size(void* object, size_t* size) {
  Gil gil;
  if (PySequence_Check(object) == 0 || is_instance(object, &PyUnicode_Type) || is_instance(object, &PyBytes_Type)) return false;
  const ptrdiff_t count = PySequence_Size(object);
  if (count < 0) PyErr_Clear();
  *size = static_cast<size_t>(count);
  return count >= 0;
}
Object items_of(void* object) {
  Gil gil;
  const bool is_set = is_instance(object, &PySet_Type) || is_instance(object, &PyFrozenSet_Type);
  return is_set ? checked(PySequence_List(object)) : borrow(object);
}
Object mapping_items(void* object, bool convert) {
  Gil gil;
  if (!is_instance(object, &PyDict_Type) && (!convert || PyObject_HasAttrString(object, "items") == 0)) return Object();
  Object items(PyMapping_Items(object));
  if (items.get() == nullptr) PyErr_Clear();
  return items;
}
Object sequence_item(void* object, size_t index) {
  Gil gil;
  Object item(PySequence_GetItem(object, static_cast<ptrdiff_t>(index)));
  if (item.get() == nullptr) PyErr_Clear();
  return item;
}

}  // namespace jitload_torch
