/* Errors of checks in the user's text, of Python and of torch, and their messages. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>
#include <stdexcept>

#include "torch_library.h"

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
    : c10::Error(ErrorKind::runtime, parts.text.c_str()), type_(parts.type), value_(parts.value), trace_(parts.trace) {}
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

CheckError::~CheckError() = default;

namespace {

/* The class of Python for each `ErrorKind`, in the order of its members. */
const char* const kClasses[] = {"builtins.RuntimeError",        "builtins.IndexError",      "builtins.ValueError",   "builtins.TypeError",
                                "builtins.NotImplementedError", "torch.linalg.LinAlgError", "torch.AcceleratorError"};

/* The class of Python to which pybind11 translates an exception of the standard library. */
const char* class_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "builtins.MemoryError";
  if (dynamic_cast<const std::domain_error*>(&error) || dynamic_cast<const std::invalid_argument*>(&error) ||
      dynamic_cast<const std::length_error*>(&error) || dynamic_cast<const std::range_error*>(&error)) {
    return "builtins.ValueError";
  }
  if (dynamic_cast<const std::out_of_range*>(&error)) return "builtins.IndexError";
  if (dynamic_cast<const std::overflow_error*>(&error)) return "builtins.OverflowError";
  return "builtins.RuntimeError";
}

Object class_at(const char* path) {
  try {
    return object_at(path);
  } catch (const PythonError&) { /* an older torch does not have the class */
    return borrow(PyExc_RuntimeError);
  }
}

/* The message of an error as torch's own functions show it: `torch.cuda.FloatTensor` instead of `CUDAFloatType`. */
std::string message_of(const std::exception& error, bool is_torch_wrapped) {
  std::string message = error.what();
  if (!is_torch_wrapped || message.find("Type") == std::string::npos) return message;
  void* const library = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const function =
      library != nullptr ? dlsym(library, kMessageName) : nullptr;
  return function != nullptr ? reinterpret_cast<std::string (*)(std::string)>(function)(message) : message;
}

}  // namespace

void set_python_error(bool is_torch_wrapped) {
  try {
    throw;
  } catch (const PythonError& error) {
    error.restore();
  } catch (const CheckError& error) {
    const Object type = class_at(kClasses[static_cast<int>(error.kind())]);
    PyErr_SetString(type.get(), message_of(error, is_torch_wrapped).c_str());
  } catch (const std::exception& error) {
    const Object type = class_at(is_torch_wrapped ? "builtins.RuntimeError" : class_of(error));
    PyErr_SetString(type.get(), message_of(error, is_torch_wrapped).c_str());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

// ---- messages -------------------------------------------------------------------------------------------------------

namespace {
std::string& string_at(void* text) { return *static_cast<std::string*>(text); }
}  // namespace
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
void append(Message& m, const c10::TensorOptions& value) {
  const auto flag = [&](const char* name, const c10::OptionalArg<bool>& flag) {
    append_all(m, name, flag.value_or(false) ? "true" : "false", flag.has_value() ? "" : " (default)");
  };
  append_all(m, "TensorOptions(dtype=", value.dtype(), value.has_dtype() ? "" : " (default)", ", device=", value.device(),
             value.has_device() ? "" : " (default)", ", layout=", value.layout(),
             value.layout_opt().has_value() ? "" : " (default)");
  flag(", requires_grad=", value.requires_grad_opt());
  flag(", pinned_memory=", value.pinned_memory_opt());
  m.append(", memory_format=");
  if (value.memory_format_opt().has_value()) {
    append(m, *value.memory_format_opt());
  } else {
    m.append("(nullopt)");
  }
  m.append(")");
}

// ---- failed checks --------------------------------------------------------------------------------------------------

void fail(ErrorKind kind, const char* message) { throw CheckError(kind, message); }
void fail_internal(const char* condition, const char* file, int line, const char* message) {
  throw CheckError(ErrorKind::runtime, std::string(condition) + " INTERNAL ASSERT FAILED at \"" + file + "\":" +
                                           std::to_string(line) + ", please report a bug to PyTorch. " + message);
}
void fail_comparison(const char* file, int line, const char* message) {
  const char* name = strrchr(file, '/');
  throw CheckError(ErrorKind::runtime,
                   "[" + std::string(name != nullptr ? name + 1 : file) + ":" + std::to_string(line) + "] " + message + "\n");
}
void fail_cuda(const char* description, const char* name) {
  std::string text = std::string("CUDA error: ") + description;
  if (strcmp(name, "cudaErrorInvalidDevice") == 0) {
    text += "\nGPU device may be out of range, do you have enough GPUs?";
  } else {
    text += std::string("\nSearch for `") + name +
            "' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.";
  }
  const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking == nullptr || atoi(blocking) == 0) {
    text += "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
            "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1";
  }
  text += "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n";
  throw CheckError(ErrorKind::accelerator, text);
}
void fail_cusolver(int status, const char* expression) {
  static const char* const names[] = {
      "CUSOLVER_STATUS_SUCCESS",          "CUSOLVER_STATUS_NOT_INITIALIZED",  "CUSOLVER_STATUS_ALLOC_FAILED",
      "CUSOLVER_STATUS_INVALID_VALUE",    "CUSOLVER_STATUS_ARCH_MISMATCH",    "CUSOLVER_STATUS_MAPPING_ERROR",
      "CUSOLVER_STATUS_EXECUTION_FAILED", "CUSOLVER_STATUS_INTERNAL_ERROR",   "CUSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED"};
  const bool is_known = status > 0 && status < static_cast<int>(sizeof names / sizeof *names);
  const bool is_value = status == 3;
  const std::string text =
      std::string("cusolver error: ") + (is_known ? names[status] : "Unknown cusolver error number") + ", when calling `" +
      expression + (is_value ? "`. This error may appear if the input matrix contains NaN. " : "`. ") +
      "If you keep seeing this error, you may use `torch.backends.cuda.preferred_linalg_library()` to try linear algebra "
      "operators with other supported backends. See "
      "https://pytorch.org/docs/stable/backends.html#torch.backends.cuda.preferred_linalg_library";
  throw CheckError(is_value ? ErrorKind::linear_algebra : ErrorKind::runtime, text);
}
void fail_dimension(int64_t dim, int64_t ndim) {
  const std::string number = std::to_string(dim);
  if (ndim == 0) throw CheckError(ErrorKind::index, "Dimension specified as " + number + " but tensor has no dimensions");
  throw CheckError(ErrorKind::index, "Dimension out of range (expected to be in range of [" + std::to_string(-ndim) + ", " +
                                         std::to_string(ndim - 1) + "], but got " + number + ")");
}
void fail_device() { throw CheckError(ErrorKind::runtime, "tensor does not have a device"); }
void fail_dtype(int8_t expected, int8_t actual) {
  Message message;
  append_all(message, "expected scalar type ", c10::ScalarType(expected), " but found ", c10::ScalarType(actual));
  throw CheckError(ErrorKind::runtime, message.text());
}
void warn(const char* file, int line, const char* message) {
  Gil gil;
  const std::string text =
      std::string(message) + " (Triggered internally at " + file + ":" + std::to_string(line) + ".)";
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) throw PythonError();
}

}  // namespace jitload_torch
