/* Errors of checks in the user's text, of Python and of torch, and their messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>
#include <stdexcept>
#include <typeinfo>

#include "library.h"

namespace c10 {
Error::Error(jitload_torch::ErrorKind kind, const char* text) : kind_(kind), text_(strdup(text)) {
  if (text_ == nullptr) throw std::bad_alloc();
}
Error::Error(const Error& other) noexcept : std::exception(other), kind_(other.kind_), text_(strdup(other.text_)) {}
Error::~Error() { free(text_); }
}  // namespace c10

namespace jitload_torch {

// ---- errors of Python -----------------------------------------------------------------------------------------------

struct PythonError::Parts { /* three owned references, and the error's text */
  void *type = nullptr, *value = nullptr, *trace = nullptr;
  std::string text;
  Parts() {
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    const Object text_object(value != nullptr ? PyObject_Str(value) : nullptr);
    const char* characters = text_object.get() != nullptr ? PyUnicode_AsUTF8AndSize(text_object.get(), nullptr) : nullptr;
    if (characters == nullptr) PyErr_Clear();
    text = characters != nullptr ? characters : "an error of Python";
  }
};
PythonError::PythonError() : PythonError(Parts()) {}
PythonError::PythonError(const Parts& parts)
    : c10::Error(ErrorKind::Error, parts.text.c_str()), type_(parts.type), value_(parts.value), trace_(parts.trace) {}
PythonError::PythonError(const PythonError& other) noexcept
    : c10::Error(other), type_(other.type_), value_(other.value_), trace_(other.trace_) {
  Gil gil;
  for (void* object : {type_, value_, trace_}) Py_IncRef(object);
}
PythonError::~PythonError() {
  Gil gil;
  for (void* object : {type_, value_, trace_}) Py_DecRef(object);
}
void PythonError::restore() const {
  for (void* object : {type_, value_, trace_}) Py_IncRef(object);
  PyErr_Restore(type_, value_, trace_);
}

namespace {

/* The class of Python for each `ErrorKind`, in the order of its members. */
const char* const kClasses[] = {"builtins.RuntimeError",        "builtins.IndexError",      "builtins.ValueError",   "builtins.TypeError",
                                "builtins.NotImplementedError", "torch.linalg.LinAlgError", "torch.AcceleratorError"};

/* The class of Python to which pybind11 translates an exception of the standard library. */
const char* class_of(const std::exception& error) {
#define X(name, python) \
  if (dynamic_cast<const std::name*>(&error) != nullptr) return "builtins." python;
  X(bad_alloc, "MemoryError") X(domain_error, "ValueError") X(invalid_argument, "ValueError") X(length_error, "ValueError")
  X(range_error, "ValueError") X(out_of_range, "IndexError") X(overflow_error, "OverflowError")
#undef X
  return "builtins.RuntimeError";
}

}  // namespace

void set_python_error(bool is_torch_wrapped) {
  try {
    throw;
  } catch (const PythonError& error) {
    error.restore();
  } catch (const c10::Error& error) {
    PyErr_SetString(object_at(kClasses[static_cast<int>(error.kind())]).get(), error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(object_at(is_torch_wrapped ? "builtins.RuntimeError" : class_of(error)).get(), error.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

// ---- messages -------------------------------------------------------------------------------------------------------

static std::string& string_at(void* text) { return *static_cast<std::string*>(text); }
Message::Message() : text_(new std::string) {}
Message::~Message() { delete static_cast<std::string*>(text_); }
const char* Message::text() const { return string_at(text_).c_str(); }
size_t Message::size() const { return string_at(text_).size(); }
void Message::append(const char* text, size_t size) { string_at(text_).append(text, size); }
void Message::append(const char* text) { append(text, strlen(text)); }
void Message::append_integer(long long value) { append(std::to_string(value).c_str()); }
void Message::append_unsigned(unsigned long long value) { append(std::to_string(value).c_str()); }
void Message::append_float(double value, int digits) {
  char buffer[64];
  snprintf(buffer, sizeof buffer, "%.*g", digits, value);
  append(buffer);
}
void Message::append_pointer(const void* value) {
  char buffer[32];
  snprintf(buffer, sizeof buffer, "%p", value);
  append(value != nullptr ? buffer : "0");
}
void append(Message& m, const c10::Scalar& value) {
  switch (value.tag()) {
    case c10::Scalar::Tag::floating: return m.append_float(value.toDouble());
    case c10::Scalar::Tag::integer: return m.append_integer(value.toLong());
    case c10::Scalar::Tag::boolean: return m.append(value.toBool() ? "true" : "false");
    default: append_all(m, "(", value.real(), ",", value.imaginary(), ")");
  }
}

// ---- failed checks --------------------------------------------------------------------------------------------------

void fail(ErrorKind kind, const char* message) { throw c10::Error(kind, message); }
void fail_as_torch(const std::exception& error) {
  const bool lacks_kernel = strstr(typeid(error).name(), "NotImplementedError") != nullptr;
  const std::string text = error.what(); /* with a trace of C++ functions */
  const ErrorKind kind = lacks_kernel ? ErrorKind::NotImplementedError : ErrorKind::Error;
  fail(kind, text.substr(0, text.find("\nException raised from")).c_str());
}
void fail_cast(void* object, void (*describe)(Message&, bool)) {
  Gil gil;
  Message m;
  append_all(m, "Unable to cast Python instance of type ", repr_of(checked(PyObject_Type(object)).get()), " to ");
  describe(m, true);
  fail(ErrorKind::Error, m.text());
}
void fail_dimension(int64_t dim, int64_t ndim) {
  TORCH_CHECK_INDEX(ndim != 0, "Dimension specified as ", dim, " but tensor has no dimensions");
  TORCH_CHECK_INDEX(false, "Dimension out of range (expected to be in range of [", -ndim, ", ", ndim - 1, "], but got ", dim, ")");
}
void check_dtype(int8_t expected, int8_t actual) {
  static constexpr int8_t kUnderlying[] = {1, 0, 3, 15, 0, 0}; /* of QInt8 (12) to QUInt2x4 */
  TORCH_CHECK(actual >= 12 && actual < 18 && kUnderlying[actual - 12] == expected, "expected scalar type ", c10::ScalarType(expected), " but found ", c10::ScalarType(actual));
}
void warn(const char* file, int line, const char* message) {
  Gil gil;
  const Text text(message, " (Triggered internally at ", file, ":", line, ".)");
  if (PyErr_WarnEx(PyExc_UserWarning, text.text(), 1) != 0) throw PythonError();
}

}  // namespace jitload_torch
