/* Calls of ATen's operators, directly or through Python, and of functions of Python by their paths. */
#include <dlfcn.h>
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

struct Arguments { /* owns the references in `objects` */
  void** objects;
  size_t count;
  ~Arguments() {
    for (size_t i = 0; i < count; ++i) Py_DecRef(objects[i]);
  }
};

Object find_operator(const char* schema) {
  std::string name = schema, overload;
  const size_t dot = name.find('.', 1);
  if (dot != std::string::npos) {
    overload = name.substr(dot + 1);
    name.resize(dot);
  }
  name = "aten::" + name;
  const Object first = python_text(name.data(), name.size()), second = python_text(overload.data(), overload.size());
  const Object pair = call(torch_module().find_operator, {first.get(), second.get()});
  if (is_none(pair.get())) {
    throw CheckError(ErrorKind::not_implemented, "this torch has no operator " + name + (overload.empty() ? "" : "." + overload));
  }
  return checked(PySequence_GetItem(pair.get(), 0));
}

}  // namespace

void* find_direct(Operator& op) {
  static char none; /* stands for a function that is not called directly */
  if (op.function == nullptr) {
    Gil gil;
    void* function = nullptr;
    if (direct().is_usable && *op.types != '\0') {
      std::string name = op.name;
      std::replace(name.begin(), name.end(), '.', '_');
      function = dlsym(direct().torch, ("_ZN2at4_ops" + std::to_string(name.size()) + name + "4call" + op.types).c_str());
    }
    op.function = function != nullptr ? function : &none;
  }
  return op.function != &none ? op.function : nullptr;
}

bool requires_grad(const at::Tensor& tensor) {
  Gil gil;
  if (tensor.defined() && direct().is_usable) return direct().requires_grad(*tensor_slot(tensor));
  return python_value<bool>(call_path(".requires_grad", "", tensor));
}

RawScalar::RawScalar(const c10::Scalar& value) : RawScalar() {
  const bool has_parts = value.isFloatingPoint() || value.isComplex();
  const double parts[2] = {value.real(), value.isComplex() ? value.imaginary() : 0};
  const int64_t whole = has_parts ? 0 : value.toLong();
  tag = value.isFloatingPoint() ? floating : value.isComplex() ? complex : value.isBoolean() ? boolean : integer;
  memcpy(words, has_parts ? static_cast<const void*>(parts) : &whole, has_parts ? sizeof parts : sizeof whole);
}
c10::Scalar RawScalar::get() const {
  double parts[2];
  memcpy(parts, words, sizeof parts);
  switch (tag) {
    case floating: return parts[0];
    case complex: return c10::Scalar::complex(parts[0], parts[1]);
    case boolean: return words[0] != 0;
    default: break;
  }
  if (tag == unsigned_integer && words[0] < 0) {
    throw CheckError(ErrorKind::runtime, "jitload's headers for torch do not support integers of 2**63 or more");
  }
  return words[0];
}
Raw<'o'>::Raw(const c10::OptionalArg<at::Tensor>& argument)
    : value(&argument), passed{argument.has_value() ? *tensor_slot(*argument) : nullptr, argument.has_value()} {}
Raw<'q'>::Raw(const c10::ArrayRef<at::Tensor>& argument) : value(argument), passed{{nullptr, argument.size()}, 0} {
  void** impls = new void*[argument.size() + 1];
  for (size_t i = 0; i < argument.size(); ++i) impls[i] = *tensor_slot(argument[i]);
  passed.array.data = impls;
}
bool is_plain(int64_t value) { return value >= -(static_cast<int64_t>(1) << 62); }
bool is_plain(const RawArray<int64_t>& values) {
  return std::all_of(values.data, values.data + values.size, [](int64_t value) { return is_plain(value); });
}

namespace {
template <class T>
const T& as(const void* value) {
  return *static_cast<const T*>(value);
}
template <class T>
Object python_optional(const void* value) {
  const auto& optional = as<RawOptional<T>>(value);
  return optional.has_value ? Caster<T>::to_python(optional.value) : none();
}
template <class T>
Object python_array(const RawArray<T>& array) {
  return Caster<c10::ArrayRef<T>>::to_python(c10::ArrayRef<T>(array.data, array.size));
}

/* The Python object for the value of an argument, by the letter of its type. */
Object python_argument(char letter, const void* value) {
  switch (letter) {
    case 't': return Caster<at::Tensor>::to_python(*as<const at::Tensor*>(value));
    case 'o': return Caster<c10::OptionalArg<at::Tensor>>::to_python(*as<const c10::OptionalArg<at::Tensor>*>(value));
    case 'q':
    case 'Q': return Caster<c10::ArrayRef<at::Tensor>>::to_python(as<c10::ArrayRef<at::Tensor>>(value));
    case 's': return Caster<c10::Scalar>::to_python(as<RawScalar>(value).get());
    case 'S':
      return as<RawOptional<RawScalar>>(value).has_value
                 ? Caster<c10::Scalar>::to_python(as<RawOptional<RawScalar>>(value).value.get())
                 : none();
    case 'l':
    case 'y': return python_integer(as<int64_t>(value));
    case 'L':
    case 'Y': return python_optional<int64_t>(value);
    case 'b': return python_bool(as<bool>(value));
    case 'B': return python_optional<bool>(value);
    case 'd': return python_float(as<double>(value));
    case 'D': return python_optional<double>(value);
    case 'c': return Caster<c10::ScalarType>::to_python(as<c10::ScalarType>(value));
    case 'C': return python_optional<c10::ScalarType>(value);
    case 'v': return Caster<c10::Device>::to_python(as<c10::Device>(value));
    case 'V': return python_optional<c10::Device>(value);
    case 'U': return python_optional<c10::Layout>(value);
    case 'm': return Caster<c10::MemoryFormat>::to_python(as<c10::MemoryFormat>(value));
    case 'M': return python_optional<c10::MemoryFormat>(value);
    case 'a':
    case 'x': return python_array(as<RawArray<int64_t>>(value));
    case 'A':
    case 'X':
      return as<RawOptional<RawArray<int64_t>>>(value).has_value ? python_array(as<RawArray<int64_t>>(value)) : none();
    case 'e': return as<RawOptional<RawArray<double>>>(value).has_value ? python_array(as<RawArray<double>>(value)) : none();
    case 'w': return python_text(as<RawText>(value).data, as<RawText>(value).size);
    case 'W':
      return as<RawOptional<RawText>>(value).has_value ? python_text(as<RawText>(value).data, as<RawText>(value).size) : none();
    default: return none(); /* a generator, which is always absent */
  }
}
}  // namespace

Object invoke(Operator& op, const char* letters, const void* const* values, size_t count) {
  Gil gil;
  if (op.callable == nullptr) {
    size_t keyword_count = 0;
    op.keyword_names = keyword_tuple(op.keywords, &keyword_count).release();
    op.callable = find_operator(op.name).release();
  }
  std::vector<Object> objects;
  std::vector<void*> arguments;
  for (size_t i = 0; i < count; ++i) {
    objects.push_back(python_argument(letters[i], values[i]));
    arguments.push_back(objects.back().get());
  }
  const size_t keyword_count = static_cast<size_t>(PySequence_Size(op.keyword_names));
  return checked(PyObject_Vectorcall(op.callable, arguments.data(), count - keyword_count,
                                     keyword_count != 0 ? op.keyword_names : nullptr));
}

Object invoke_path(const char* path, const char* keywords, void** arguments, size_t count) {
  Gil gil;
  const Arguments owner{arguments, count};
  size_t keyword_count = 0;
  const Object names = keyword_tuple(keywords, &keyword_count);
  void* const tuple = keyword_count != 0 ? names.get() : nullptr;
  if (*path != '.') return checked(PyObject_Vectorcall(object_at(path).get(), arguments, count - keyword_count, tuple));
  if (is_none(arguments[0])) {
    throw CheckError(ErrorKind::runtime, "Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'self'");
  }
  Object member = attribute(arguments[0], path + 1);
  if (strcmp(path, ".grad") == 0 || strcmp(path, ".requires_grad") == 0) return member;
  return checked(PyObject_Vectorcall(member.get(), arguments + 1, count - 1 - keyword_count, tuple));
}

}  // namespace jitload_torch
