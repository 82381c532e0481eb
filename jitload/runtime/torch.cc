/* The compiled part of the light torch: tensors are Python's, and operators are called through torch's dispatcher.
 *
 * Everything here holds the GIL, as torch's own functions do, also in code that has released it.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "../include/torch_light/jitload_torch/pybind.h"

/* Of CPython's C API, with which a library of any version of Python works. */
extern "C" {
typedef struct {
  const char* name;
  void* function;
  int flags;
  const char* doc;
} PyMethodDef;
extern char _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct, PyDict_Type, PyFloat_Type, PyLong_Type, PyUnicode_Type, PyBytes_Type;
extern void *PyExc_RuntimeError, *PyExc_ValueError, *PyExc_IndexError, *PyExc_TypeError, *PyExc_NotImplementedError, *PyExc_MemoryError, *PyExc_OverflowError,
    *PyExc_UserWarning;
int Py_IsInitialized(void);
void Py_IncRef(void*);
void Py_DecRef(void*);
int PyGILState_Ensure(void);
void PyGILState_Release(int);
int PyGILState_Check(void);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
void* PyObject_Type(void*);
int PyType_IsSubtype(void*, void*);
void* PyObject_GetAttrString(void*, const char*);
int PyObject_SetAttrString(void*, const char*, void*);
int PyObject_HasAttrString(void*, const char*);
void* PyObject_Vectorcall(void*, void* const*, size_t, void*);
int PyObject_IsTrue(void*);
void* PyObject_Str(void*);
void* PyObject_Repr(void*);
void* PyImport_ImportModule(const char*);
void* PyLong_FromLongLong(long long);
void* PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLong(void*);
unsigned long long PyLong_AsUnsignedLongLong(void*);
void* PyLong_FromVoidPtr(void*);
void* PyFloat_FromDouble(double);
double PyFloat_AsDouble(void*);
void* PyComplex_FromDoubles(double, double);
double PyComplex_RealAsDouble(void*);
double PyComplex_ImagAsDouble(void*);
void* PyBool_FromLong(long);
int PyNumber_Check(void*);
void* PyNumber_Index(void*);
void* PyNumber_Long(void*);
void* PyNumber_Float(void*);
int PyIndex_Check(void*);
void* PyUnicode_FromStringAndSize(const char*, ptrdiff_t);
const char* PyUnicode_AsUTF8AndSize(void*, ptrdiff_t*);
int PyBytes_AsStringAndSize(void*, char**, ptrdiff_t*);
void* PyList_New(ptrdiff_t);
int PyList_SetItem(void*, ptrdiff_t, void*);
void* PyTuple_New(ptrdiff_t);
int PyTuple_SetItem(void*, ptrdiff_t, void*);
void* PyDict_New(void);
int PyObject_SetItem(void*, void*, void*);
void* PyMapping_Items(void*);
int PySequence_Check(void*);
ptrdiff_t PySequence_Size(void*);
void* PySequence_GetItem(void*, ptrdiff_t);
void* PySlice_New(void*, void*, void*);
void* PyCapsule_New(void*, const char*, void (*)(void*));
void* PyCapsule_GetPointer(void*, const char*);
void* PyCMethod_New(PyMethodDef*, void*, void*, void*);
void* PyErr_Occurred(void);
void PyErr_Clear(void);
void PyErr_Fetch(void**, void**, void**);
void PyErr_Restore(void*, void*, void*);
void PyErr_NormalizeException(void**, void**, void**);
void PyErr_SetString(void*, const char*);
int PyErr_WarnEx(void*, const char*, ptrdiff_t);
int TVMFFIErrorSetRaisedFromCStr(const char*, const char*);
}

namespace jitload_torch {
namespace {

constexpr size_t kKeep = static_cast<size_t>(1) << (8 * sizeof(size_t) - 1); /* PY_VECTORCALL_ARGUMENTS_OFFSET */

/* Whether this thread is in a call from Python that has not released the GIL; asking Python takes longer. */
thread_local bool holds_gil = false;

struct Gil {
  Gil() : was_held(holds_gil), state(was_held ? 0 : PyGILState_Ensure()) { holds_gil = true; }
  ~Gil() {
    holds_gil = was_held;
    if (!was_held) PyGILState_Release(state);
  }
  const bool was_held;
  const int state;
};

/* While it lives, `holds_gil` has another value. */
struct GilNote {
  explicit GilNote(bool holds) : before(holds_gil) { holds_gil = holds; }
  ~GilNote() { holds_gil = before; }
  const bool before;
};

void* none_object() { return &_Py_NoneStruct; }

/* A Python exception: owned references to its parts, and its text. */
struct PythonParts {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
  std::string text;
  static PythonParts fetch() {
    PythonParts parts;
    PyErr_Fetch(&parts.type, &parts.value, &parts.trace);
    PyErr_NormalizeException(&parts.type, &parts.value, &parts.trace);
    const Object text(parts.value != nullptr ? PyObject_Str(parts.value) : nullptr);
    const char* characters = text.get() != nullptr ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
    if (characters == nullptr) PyErr_Clear();
    parts.text = characters != nullptr ? characters : "an error of Python";
    return parts;
  }
};

/* A Python exception that is thrown through C++. */
class PythonError : public c10::Error {
 public:
  PythonError() : PythonError(PythonParts::fetch()) {}
  PythonError(const PythonError& other) noexcept
      : c10::Error(other), type_(other.type_), value_(other.value_), trace_(other.trace_) {
    Gil gil;
    for (void* object : {type_, value_, trace_}) Py_IncRef(object);
  }
  ~PythonError() override {
    Gil gil;
    for (void* object : {type_, value_, trace_}) Py_DecRef(object);
  }
  void restore() const {
    for (void* object : {type_, value_, trace_}) Py_IncRef(object);
    PyErr_Restore(type_, value_, trace_);
  }

 private:
  explicit PythonError(const PythonParts& parts)
      : c10::Error(ErrorKind::runtime, parts.text.c_str()), type_(parts.type), value_(parts.value), trace_(parts.trace) {}
  void *type_, *value_, *trace_;
};

/* An error of the text's own checks. */
class CheckError : public c10::Error {
 public:
  CheckError(ErrorKind kind, const std::string& text) : c10::Error(kind, text.c_str()) {}
  ErrorKind kind() const { return kind_; }
};

Object checked(void* owned) {
  if (owned == nullptr) throw PythonError();
  return Object(owned);
}

Object attribute(void* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }

Object call(void* function, std::initializer_list<void*> arguments) {
  return checked(PyObject_Vectorcall(function, arguments.begin(), arguments.size(), nullptr));
}

/* The object of a dotted path that begins with a module. */
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

/* ---- torch, as this process has it ---- */

std::string text_of(void* text) {
  ptrdiff_t size = 0;
  const char* characters = PyUnicode_AsUTF8AndSize(text, &size);
  if (characters == nullptr) throw PythonError();
  return std::string(characters, static_cast<size_t>(size));
}

struct Dtype {
  int8_t scalar_type;
  uint8_t code, bits;
  const char* name;
};
constexpr Dtype kDtypes[] = {
    {0, 1, 8, "uint8"},         {1, 0, 8, "int8"},           {2, 0, 16, "int16"},          {3, 0, 32, "int32"},
    {4, 0, 64, "int64"},        {5, 2, 16, "float16"},       {6, 2, 32, "float32"},        {7, 2, 64, "float64"},
    {8, 5, 32, "complex32"},    {9, 5, 64, "complex64"},     {10, 5, 128, "complex128"},   {11, 6, 8, "bool"},
    {15, 4, 16, "bfloat16"},    {23, 12, 8, "float8_e5m2"},  {24, 10, 8, "float8_e4m3fn"}, {25, 13, 8, "float8_e5m2fnuz"},
    {26, 11, 8, "float8_e4m3fnuz"}, {44, 14, 8, "float8_e8m0fnu"}, {45, 17, 4, "float4_e2m1fn_x2"}, {27, 1, 16, "uint16"},   {28, 1, 32, "uint32"},
    {29, 1, 64, "uint64"},      {12, 255, 8, "qint8"},       {13, 254, 8, "quint8"},       {14, 255, 32, "qint32"}, /* not of DLPack */
};
constexpr int kDtypeCount = sizeof kDtypes / sizeof *kDtypes;
const char* const kLayouts[] = {"strided", "sparse_coo", "sparse_csr", "_mkldnn"};
const char* const kMemoryFormats[] = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};

struct Managed { /* DLManagedTensorVersioned */
  uint32_t major, minor;
  void* context;
  void (*deleter)(Managed*);
  uint64_t flags;
  View view;
};

/* What is looked up in torch once; the references are kept. */
struct Torch {
  void *module, *tensor_type, *device_type, *find_operator;
  void* dtypes[kDtypeCount];
  void* layouts[4];
  void* memory_formats[4];
  int (*view)(void*, View*) = nullptr;                /* of DLPack's exchange table */
  int (*stream)(int, int32_t, void**) = nullptr;
  int (*import)(Managed*, void**) = nullptr;
  std::map<int, void*> devices; /* by type and index */

  Torch() {
    module = checked(PyImport_ImportModule("torch")).release();
    tensor_type = object_at("torch._C.TensorBase").release();
    device_type = attribute(module, "device").release();
    find_operator = object_at("torch._C._get_operation_overload").release();
    for (int i = 0; i < kDtypeCount; ++i) dtypes[i] = optional_attribute(kDtypes[i].name);
    for (int i = 0; i < 4; ++i) layouts[i] = optional_attribute(kLayouts[i]);
    for (int i = 0; i < 4; ++i) memory_formats[i] = optional_attribute(kMemoryFormats[i]);
    Object tensor = attribute(module, "Tensor");
    Object capsule(PyObject_GetAttrString(tensor.get(), "__dlpack_c_exchange_api__"));
    void** table = capsule.get() != nullptr
                       ? static_cast<void**>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"))
                       : nullptr;
    if (table == nullptr || *reinterpret_cast<uint32_t*>(table) != 1) {
      PyErr_Clear();
      throw CheckError(ErrorKind::runtime, "this needs torch 2.10 or newer, which has DLPack's exchange table");
    }
    import = reinterpret_cast<int (*)(Managed*, void**)>(table[4]);
    view = reinterpret_cast<int (*)(void*, View*)>(table[5]);
    stream = reinterpret_cast<int (*)(int, int32_t, void**)>(table[6]);
  }
  void* optional_attribute(const char* name) {
    void* object = PyObject_GetAttrString(module, name);
    if (object == nullptr) PyErr_Clear();
    return object;
  }
};
Torch& torch_module() {
  static Torch* torch = new Torch; /* never destroyed, as Python may be gone by then */
  return *torch;
}

/* The functions of torch's C++ libraries that are called directly.
 *
 * They are for the releases of torch in `kMinors`, whose classes have the layout that direct.h knows. */
constexpr int kMinors[] = {10, 13}; /* of torch 2 */
struct Direct {
  void *torch = nullptr, *core = nullptr;
  ptrdiff_t offset = 0; /* of the address of the TensorImpl in a torch.Tensor of Python */
  void* undefined = nullptr; /* torch's undefined tensor */
  void* (*wrap)(void** tensor); /* returns the torch.Tensor, and may take over the reference */
  void (*translate)(const std::exception_ptr& error);
  int32_t (*assign)(void* const* source, void** target);
  int32_t (*get_dim)(void* const*, int64_t*);
  int32_t (*get_sizes)(void* const*, int64_t**);
  int32_t (*get_strides)(void* const*, int64_t**);
  int32_t (*get_dtype)(void* const*, int32_t*);
  int32_t (*get_layout)(void* const*, int32_t*);
  int32_t (*get_device_type)(void* const*, int32_t*);
  int32_t (*get_device_index)(void* const*, int32_t*);
  int32_t (*get_data)(void* const*, void**);
  bool (*requires_grad)(const void* impl);
  bool (*is_grad_enabled)();
  void (*set_grad_enabled)(bool);
  bool is_usable = false;

  Direct() {
    const Object version = attribute(torch_module().module, "__version__"), text = checked(PyObject_Str(version.get()));
    int major = 0, minor = 0;
    if (sscanf(text_of(text.get()).c_str(), "%d.%d", &major, &minor) != 2 || major != 2 || minor < kMinors[0] ||
        minor > kMinors[1]) {
      return;
    }
    torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    core = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void* python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    void* singleton = nullptr;
    is_usable = torch != nullptr && core != nullptr && python != nullptr &&
                find(core, "_ZN3c1019UndefinedTensorImpl10_singletonE", singleton) &&
                (find(python, "_Z16THPVariable_WrapON2at10TensorBaseE", wrap) ||
                 find(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", wrap)) &&
                find(python, "_ZN5torch29translate_exception_to_pythonERKNSt15__exception_ptr13exception_ptrE", translate) &&
                find(torch, "aoti_torch_assign_tensors", assign) &&
                find(torch, "aoti_torch_get_dim", get_dim) && find(torch, "aoti_torch_get_sizes", get_sizes) &&
                find(torch, "aoti_torch_get_strides", get_strides) && find(torch, "aoti_torch_get_dtype", get_dtype) &&
                find(torch, "aoti_torch_get_layout", get_layout) &&
                find(torch, "aoti_torch_get_device_type", get_device_type) &&
                find(torch, "aoti_torch_get_device_index", get_device_index) &&
                find(torch, "aoti_torch_get_data_ptr", get_data) &&
                find(core, "_ZNK3c1010TensorImpl13requires_gradEv", requires_grad) &&
                find(core, "_ZN3c108GradMode10is_enabledEv", is_grad_enabled) &&
                find(core, "_ZN3c108GradMode11set_enabledEb", set_grad_enabled) && find_offset();
    undefined = singleton;
  }
  template <class T>
  static bool find(void* library, const char* name, T*& target) {
    target = reinterpret_cast<T*>(dlsym(library, name));
    return target != nullptr;
  }
  bool find_offset() {
    const Object count = python_integer(0), tensor = call(attribute(torch_module().module, "empty").get(), {count.get()});
    const long long address = PyLong_AsLongLong(attribute(tensor.get(), "_cdata").get());
    for (offset = 2 * sizeof(void*); offset <= static_cast<ptrdiff_t>(4 * sizeof(void*)); offset += sizeof(void*)) {
      if (reinterpret_cast<long long>(*slot(tensor.get())) == address) return true;
    }
    return false;
  }
  void* const* slot(void* object) const { return reinterpret_cast<void* const*>(static_cast<char*>(object) + offset); }
};
Direct* direct_functions;
Direct& direct() {
  if (direct_functions == nullptr) direct_functions = new Direct; /* under the GIL, before anything is called */
  return *direct_functions;
}

Object repr_of(void* object) { return checked(PyObject_Repr(object)); }

bool is_instance(void* object, void* type) {
  void* const own = PyObject_Type(object);
  const bool is_same = own == type || PyType_IsSubtype(own, type) != 0;
  Py_DecRef(own);
  return is_same;
}

/* The message of an error as torch's own functions show it: `torch.cuda.FloatTensor` instead of `CUDAFloatType`. */
std::string message_of(const std::exception& error, bool is_torch_wrapped) {
  using Process = std::string (*)(std::string);
  std::string message = error.what();
  if (!is_torch_wrapped || message.find("Type") == std::string::npos) return message;
  void* const python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const function =
      python != nullptr
          ? dlsym(python, "_ZN5torch15processErrorMsgENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE")
          : nullptr;
  return function != nullptr ? reinterpret_cast<Process>(function)(message) : message;
}

/* Sets Python's error for the exception that is being handled. */
void set_python_error(bool is_torch_wrapped) {
  try {
    throw;
  } catch (const PythonError& error) {
    error.restore();
  } catch (const CheckError& error) {
    void* type = nullptr;
    Object named;
    switch (error.kind()) {
      case ErrorKind::index: type = PyExc_IndexError; break;
      case ErrorKind::value: type = PyExc_ValueError; break;
      case ErrorKind::type: type = PyExc_TypeError; break;
      case ErrorKind::not_implemented: type = PyExc_NotImplementedError; break;
      case ErrorKind::linear_algebra:
      case ErrorKind::accelerator: {
        const bool is_linear = error.kind() == ErrorKind::linear_algebra;
        const Object owner(is_linear ? PyImport_ImportModule("torch.linalg") : PyImport_ImportModule("torch"));
        if (owner.get() != nullptr) {
          named = Object(PyObject_GetAttrString(owner.get(), is_linear ? "LinAlgError" : "AcceleratorError"));
        }
        if (named.get() == nullptr) PyErr_Clear();
        type = named.get();
        break;
      }
      default: break;
    }
    PyErr_SetString(type != nullptr ? type : PyExc_RuntimeError, message_of(error, is_torch_wrapped).c_str());
  } catch (const std::exception& error) {
    void* type = PyExc_RuntimeError;
    if (!is_torch_wrapped) { /* as pybind11 translates them */
      if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
        type = PyExc_MemoryError;
      } else if (dynamic_cast<const std::domain_error*>(&error) || dynamic_cast<const std::invalid_argument*>(&error) ||
          dynamic_cast<const std::length_error*>(&error) || dynamic_cast<const std::range_error*>(&error)) {
        type = PyExc_ValueError;
      } else if (dynamic_cast<const std::out_of_range*>(&error)) {
        type = PyExc_IndexError;
      } else if (dynamic_cast<const std::overflow_error*>(&error)) {
        type = PyExc_OverflowError;
      }
    }
    PyErr_SetString(type, message_of(error, is_torch_wrapped).c_str());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "Caught an unknown exception!");
  }
}

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

struct Arguments { /* owns the references */
  void** objects;
  size_t count;
  ~Arguments() {
    for (size_t i = 0; i < count; ++i) Py_DecRef(objects[i]);
  }
};

}  // namespace

}  // namespace jitload_torch

namespace c10 {
Error::Error(jitload_torch::ErrorKind kind, const char* text) : kind_(kind), text_(strdup(text)) {
  if (text_ == nullptr) throw std::bad_alloc();
}
Error::Error(const Error& other) noexcept : std::exception(other), kind_(other.kind_), text_(strdup(other.text_)) {}
Error::~Error() { free(text_); }
}  // namespace c10

namespace jitload_torch {

namespace {
void* const* slot_of(const Node* node) { return node->object != nullptr ? direct().slot(node->object) : &node->impl; }
}  // namespace

// ---- objects and texts ----------------------------------------------------------------------------------------------

void Object::drop(void* object) {
  if (holds_gil) return Py_DecRef(object);
  if (Py_IsInitialized() == 0) return; /* a static tensor of the text at the end of the process */
  Gil gil;
  Py_DecRef(object);
}

Message::~Message() { free(text_); }
void Message::append(const char* text, size_t size) {
  if (size_ + size + 1 > capacity_) {
    capacity_ = 2 * (size_ + size + 1);
    text_ = static_cast<char*>(realloc(text_, capacity_));
    if (text_ == nullptr) throw std::bad_alloc();
  }
  memcpy(text_ + size_, text, size);
  size_ += size;
  text_[size_] = '\0';
}
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
void fail_result(const char* name) {
  throw CheckError(ErrorKind::runtime, std::string("aten::") + name + " returned a value of another type than its schema says");
}
void fail_dimension(int64_t dim, int64_t ndim) {
  const std::string number = std::to_string(dim);
  if (ndim == 0) throw CheckError(ErrorKind::index, "Dimension specified as " + number + " but tensor has no dimensions");
  throw CheckError(ErrorKind::index, "Dimension out of range (expected to be in range of [" + std::to_string(-ndim) + ", " +
                                         std::to_string(ndim - 1) + "], but got " + number + ")");
}
void fail_device() { throw CheckError(ErrorKind::runtime, "tensor does not have a device"); }
void fail_strides(const char* method) {
  throw CheckError(ErrorKind::runtime, std::string("Sparse CSR tensors do not have ") + method);
}
void read_memory(Node* node) {
  const bool is_readable = node->view.byte_offset == kUnreadMemory;
  if (is_readable && direct().get_data(slot_of(node), &node->view.data) == 0) {
    node->view.byte_offset = 0;
    return;
  }
  Gil gil;
  const Object method = attribute(object_of(node), "data_ptr");
  const Object address = call(method.get(), {}); /* throws torch's error */
  throw CheckError(ErrorKind::runtime, "this tensor has no memory that can be accessed");
}
void warn(const char* file, int line, const char* message) {
  Gil gil;
  const std::string text =
      std::string(message) + " (Triggered internally at " + file + ":" + std::to_string(line) + ".)";
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 1) != 0) throw PythonError();
}

// ---- tensors --------------------------------------------------------------------------------------------------------

namespace {
Node* make_node(void* object, void* impl) {
  Node* node = new Node; /* whose view is filled in when it is needed */
  node->count = 1;
  node->object = object;
  node->impl = impl;
  node->is_viewed = false;
  node->sizes = nullptr;
  return node;
}
}  // namespace
Node* share(Object tensor) { return make_node(tensor.release(), nullptr); }
Node* adopt(void* impl) { return impl != direct().undefined ? make_node(nullptr, impl) : nullptr; }

void destroy(Node* node) {
  if (node->object != nullptr) Object::drop(node->object);
  if (node->impl != nullptr) direct().assign(&direct().undefined, &node->impl); /* frees the former one */
  delete[] node->sizes;
  delete node;
}

void* object_of(Node* node) {
  if (node->object == nullptr) {
    Gil gil;
    Object object = checked(direct().wrap(&node->impl));
    direct().assign(&direct().undefined, &node->impl);
    node->impl = nullptr;
    node->object = object.release();
  }
  return node->object;
}

void* const* tensor_slot(const at::Tensor& tensor) {
  const Node* node = tensor.node();
  return node != nullptr ? slot_of(node) : &direct().undefined;
}

namespace {
/* Reads a tensor that DLPack does not export: a sparse one, or one on another device. */
void read_attributes(Node* node) {
  const Object shape = attribute(node->object, "shape"), dtype = attribute(node->object, "dtype");
  const Object device = attribute(node->object, "device"), layout = attribute(node->object, "layout");
  size_t count = 0;
  int8_t type = 0, index = 0, layout_number = -1;
  sequence_size(shape.get(), &count);
  delete[] node->sizes;
  node->sizes = new int64_t[2 * count + 1];
  const bool is_strided = layout_from(layout.get(), &layout_number) && layout_number == 0;
  const Object strides = is_strided ? call(attribute(node->object, "stride").get(), {}) : Object();
  for (size_t i = 0; i < count; ++i) {
    node->sizes[i] = PyLong_AsLongLong(sequence_item(shape.get(), i).get());
    node->sizes[count + i] = is_strided ? PyLong_AsLongLong(sequence_item(strides.get(), i).get()) : 0;
  }
  if (PyErr_Occurred() != nullptr) throw PythonError();
  if (!dtype_from(dtype.get(), &node->scalar_type)) {
    throw CheckError(ErrorKind::runtime, "a tensor has a dtype that is not supported here");
  }
  device_from(device.get(), &type, &index);
  const bool is_meta = type == static_cast<int8_t>(c10::DeviceType::Meta);
  node->view = {nullptr, kOtherDevice + type, index, static_cast<int32_t>(count), 0, 0, 1, node->sizes,
                is_strided || layout_number == 1 ? node->sizes + count : nullptr, is_meta && is_strided ? 0 : kNoMemory};
  node->is_viewed = true;
}
}  // namespace

bool has_layout(Node* node, int8_t layout) {
  Gil gil;
  int8_t number = -1;
  return layout_from(attribute(object_of(node), "layout").get(), &number) && number == layout;
}

namespace {
/* Reads a tensor through torch's C interface; returns whether it is one with strides on the CPU or a GPU. */
bool read_impl(Node* node) {
  const Direct& functions = direct();
  if (!functions.is_usable) return false;
  void* const* tensor = slot_of(node);
  int64_t ndim = 0;
  int32_t scalar_type = 0, layout = 0, device_type = 0, device_index = 0;
  View& view = node->view;
  if (functions.get_layout(tensor, &layout) != 0 || layout != 0 || functions.get_device_type(tensor, &device_type) != 0 ||
      device_type > static_cast<int32_t>(c10::DeviceType::CUDA) || functions.get_dim(tensor, &ndim) != 0 || functions.get_sizes(tensor, &view.sizes) != 0 ||
      functions.get_strides(tensor, &view.strides) != 0 || functions.get_dtype(tensor, &scalar_type) != 0 ||
      functions.get_device_index(tensor, &device_index) != 0) {
    return false;
  }
  view.device_type = device_type == 0 ? 1 : 2; /* as DLPack numbers them */
  view.device_index = device_index;
  view.ndim = static_cast<int32_t>(ndim);
  view.byte_offset = kUnreadMemory;
  node->scalar_type = static_cast<int8_t>(scalar_type);
  node->is_viewed = true;
  return true;
}
}  // namespace

void read_view(Node* node) {
  Gil gil;
  if (read_impl(node)) return;
  if (torch_module().view(object_of(node), &node->view) != 0) {
    PyErr_Clear();
    return read_attributes(node);
  }
  for (const Dtype& dtype : kDtypes) {
    if (dtype.code == node->view.dtype_code && dtype.bits == node->view.dtype_bits) {
      node->scalar_type = dtype.scalar_type;
      node->is_viewed = true;
      return;
    }
  }
  throw CheckError(ErrorKind::runtime, "a tensor has a dtype that is not supported here");
}

void check_dtype(Node* node, int8_t scalar_type) {
  const c10::ScalarType found = node != nullptr ? c10::ScalarType(node->scalar_type) : c10::ScalarType::Undefined;
  Message message;
  append_all(message, "expected scalar type ", c10::ScalarType(scalar_type), " but found ", found);
  throw CheckError(ErrorKind::runtime, message.text());
}

bool dtype_of_dlpack(int8_t scalar_type, uint8_t* code, uint8_t* bits) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.scalar_type != scalar_type) continue;
    *code = dtype.code;
    *bits = dtype.bits;
    return true;
  }
  return false;
}

Object tensor_over(const View& view, void (*release)(void* context, void* data), void* context) {
  Gil gil;
  struct Memory {
    Managed managed;
    void (*release)(void*, void*);
    void* context;
  };
  Memory* memory = new Memory{{1, 0, nullptr, nullptr, 0, view}, release, context};
  memory->managed.context = memory;
  memory->managed.deleter = [](Managed* managed) {
    const GilNote note(false); /* torch may have released it */
    Memory* mine = static_cast<Memory*>(managed->context);
    if (mine->release != nullptr) mine->release(mine->context, managed->view.data);
    delete[] managed->view.sizes; /* the strides are behind them */
    delete mine;
  };
  void* tensor = nullptr;
  if (torch_module().import(&memory->managed, &tensor) != 0) throw PythonError();
  return Object(tensor);
}

void print(std::ostream& stream, const at::Tensor& tensor) {
  using Print = std::ostream& (*)(std::ostream&, void* const*, int64_t);
  Gil gil;
  void* const function = direct().is_usable ? dlsym(direct().torch, "_ZN2at5printERSoRKNS_6TensorEl") : nullptr;
  if (function == nullptr) throw CheckError(ErrorKind::runtime, "tensors are printed only with torch 2.10 to 2.13");
  try {
    reinterpret_cast<Print>(function)(stream, tensor_slot(tensor), 80);
  } catch (...) {
    rethrow_from_torch();
  }
}
void append(Message& m, const at::Tensor& value) {
  std::ostringstream stream;
  print(stream, value);
  m.append(stream.str().c_str());
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

bool set_grad_enabled(bool enabled) {
  Gil gil;
  if (direct().is_usable) {
    const bool was_enabled = direct().is_grad_enabled();
    direct().set_grad_enabled(enabled);
    return was_enabled;
  }
  bool was_enabled = false;
  bool_from(call(object_at("torch.is_grad_enabled").get(), {}).get(), true, &was_enabled);
  call(object_at("torch._C._set_grad_enabled").get(), {python_bool(enabled).get()});
  return was_enabled;
}

void* current_stream(int device_index) {
  Gil gil;
  void* stream = nullptr;
  if (torch_module().stream(2, device_index, &stream) != 0) throw PythonError();
  return stream;
}

void* library_handle(const char* function) {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* address = library != nullptr ? dlsym(library, function) : nullptr;
  char directory[PATH_MAX];
  if (library != nullptr && address == nullptr && dlinfo(library, RTLD_DI_ORIGIN, directory) == 0) {
    /* torch loads the library with the solvers when it needs one */
    library = dlopen((std::string(directory) + "/libtorch_cuda_linalg.so").c_str(), RTLD_LAZY);
    address = library != nullptr ? dlsym(library, function) : nullptr;
  }
  if (address == nullptr) {
    throw CheckError(ErrorKind::runtime, std::string("this torch does not have the function ") + function +
                                             " in libtorch_cuda.so or libtorch_cuda_linalg.so");
  }
  return reinterpret_cast<void* (*)()>(address)();
}

// ---- values of Python -----------------------------------------------------------------------------------------------

Object none() { return borrow(none_object()); }
Object borrow(void* object) {
  Gil gil;
  Py_IncRef(object);
  return Object(object);
}
Object python_integer(long long value) {
  Gil gil;
  return checked(PyLong_FromLongLong(value));
}
Object python_unsigned(unsigned long long value) {
  Gil gil;
  return checked(PyLong_FromUnsignedLongLong(value));
}
Object python_float(double value) {
  Gil gil;
  return checked(PyFloat_FromDouble(value));
}
Object python_bool(bool value) {
  Gil gil;
  return checked(PyBool_FromLong(value));
}
Object python_complex(double real, double imaginary) {
  Gil gil;
  return checked(PyComplex_FromDoubles(real, imaginary));
}
Object python_text(const char* text, size_t size) {
  Gil gil;
  return checked(PyUnicode_FromStringAndSize(text, static_cast<ptrdiff_t>(size)));
}
Object python_dtype(int8_t scalar_type) {
  Gil gil;
  for (int i = 0; i < kDtypeCount; ++i) {
    if (kDtypes[i].scalar_type == scalar_type && torch_module().dtypes[i] != nullptr) return borrow(torch_module().dtypes[i]);
  }
  throw CheckError(ErrorKind::runtime, "a dtype that this torch does not have");
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
Object python_layout(int8_t layout) { return borrow(torch_module().layouts[layout]); }
Object python_memory_format(int8_t format) { return borrow(torch_module().memory_formats[format]); }
Object python_slice(Object start, Object stop, Object step) {
  Gil gil;
  return checked(PySlice_New(start.get(), stop.get(), step.get()));
}
Object python_ellipsis() {
  Gil gil;
  return object_at("builtins.Ellipsis");
}
Object python_list(size_t size) {
  Gil gil;
  return checked(PyList_New(static_cast<ptrdiff_t>(size)));
}
Object python_tuple(size_t size) {
  Gil gil;
  return checked(PyTuple_New(static_cast<ptrdiff_t>(size)));
}
Object python_dict() {
  Gil gil;
  return checked(PyDict_New());
}
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

bool is_none(void* object) { return object == none_object(); }
bool is_bool(void* object) { return object == &_Py_TrueStruct || object == &_Py_FalseStruct; }
bool is_float(void* object) {
  Gil gil;
  return is_instance(object, &PyFloat_Type);
}
bool is_integer(void* object) {
  Gil gil;
  return is_instance(object, &PyLong_Type);
}
bool is_tensor(void* object) {
  Gil gil;
  return is_instance(object, torch_module().tensor_type);
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
  if (size == 2 && first >= 0xc0 && first < 0xe0) { /* one of two bytes in UTF-8 */
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

// ---- operators ------------------------------------------------------------------------------------------------------

namespace {
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
  bool value = false;
  bool_from(call_path(".requires_grad", "", tensor).get(), true, &value);
  return value;
}

void rethrow_from_torch() {
  Gil gil;
  try {
    throw;
  } catch (const CheckError&) {
    throw;
  } catch (const PythonError&) {
    throw;
  } catch (...) {
    direct().translate(std::current_exception());
  }
  throw PythonError();
}

RawScalar::RawScalar(const c10::Scalar& value) : RawScalar() {
  const bool has_parts = value.isFloatingPoint() || value.isComplex();
  const double parts[2] = {value.toDouble(), value.isComplex() ? value.imaginary() : 0};
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
    default: return words[0];
  }
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
    default: return none(); /* no generator */
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
    for (const char* method : {".cpu", ".cuda", ".to"}) {
      if (strcmp(path, method) == 0) fail_device();
    }
    throw CheckError(ErrorKind::runtime, "Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #0 'self'");
  }
  Object member = attribute(arguments[0], path + 1);
  if (strcmp(path, ".grad") == 0 || strcmp(path, ".requires_grad") == 0) return member;
  return checked(PyObject_Vectorcall(member.get(), arguments + 1, count - 1 - keyword_count, tuple));
}

// ---- functions of Python --------------------------------------------------------------------------------------------

GilRelease::GilRelease(bool releases)
    : state_(releases && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr), was_held_(holds_gil) {
  if (state_ != nullptr) holds_gil = false;
}
GilRelease::~GilRelease() {
  if (state_ == nullptr) return;
  PyEval_RestoreThread(state_);
  holds_gil = was_held_;
}

namespace {

struct Function { /* never freed, as its library is not unloaded */
  std::string name, doc;
  std::vector<Record> overloads;
  PyMethodDef method;
};
std::map<std::string, Function*>* functions_of_module; /* while a module is filled, under the GIL */

std::string signature_of(const std::string& name, Record& record) {
  Message message;
  record.describe(message, &record);
  return name + message.text();
}

/* Puts the arguments of a call in the order of the parameters; returns these, or NULL if they do not fit. */
void* const* place_arguments(const Record& record, void* const* arguments, size_t count, void* keyword_names,
                             std::vector<void*>& placed) {
  if (count == record.count && keyword_names == nullptr) return arguments;
  if (count > record.count) return nullptr;
  placed.assign(arguments, arguments + count);
  placed.resize(record.count + 1, nullptr);
  const size_t keyword_count = keyword_names != nullptr ? static_cast<size_t>(PySequence_Size(keyword_names)) : 0;
  for (size_t k = 0; k < keyword_count; ++k) {
    const Object key(PySequence_GetItem(keyword_names, static_cast<ptrdiff_t>(k)));
    const std::string name = text_of(key.get());
    size_t i = count;
    while (i < record.count &&
           (record.parameters == nullptr || record.parameters[i].name == nullptr || name != record.parameters[i].name)) {
      ++i;
    }
    if (i == record.count || placed[i] != nullptr) return nullptr;
    placed[i] = arguments[count + k];
  }
  for (size_t i = count; i < record.count; ++i) {
    if (placed[i] == nullptr && record.parameters != nullptr) placed[i] = record.parameters[i].default_value;
    if (placed[i] == nullptr) return nullptr;
  }
  return placed.data();
}

void fail_arguments(Function& function, void* const* arguments, size_t count, void* keyword_names) {
  std::string text = function.name + "(): incompatible function arguments. The following argument types are supported:\n";
  for (size_t i = 0; i < function.overloads.size(); ++i) {
    text += "    " + std::to_string(i + 1) + ". " + signature_of("", function.overloads[i]) + "\n";
  }
  text += "\nInvoked with: ";
  for (size_t i = 0; i < count; ++i) text += (i != 0 ? ", " : "") + text_of(repr_of(arguments[i]).get());
  const size_t keyword_count = keyword_names != nullptr ? static_cast<size_t>(PySequence_Size(keyword_names)) : 0;
  for (size_t k = 0; k < keyword_count; ++k) {
    const Object key(PySequence_GetItem(keyword_names, static_cast<ptrdiff_t>(k)));
    text += k != 0 ? ", " : count != 0 ? "; kwargs: " : "kwargs: ";
    text += text_of(key.get()) + "=" + text_of(repr_of(arguments[count + k]).get());
  }
  PyErr_SetString(PyExc_TypeError, text.c_str());
}

extern "C" void* call_function(void* capsule, void* const* arguments, ptrdiff_t count, void* keyword_names) {
  Function& function = *static_cast<Function*>(PyCapsule_GetPointer(capsule, nullptr));
  const GilNote note(true);
  bool is_torch_wrapped = false;
  try {
    std::vector<void*> placed;
    const size_t positional = static_cast<size_t>(count);
    for (int convert = function.overloads.size() == 1; convert < 2; ++convert) {
      for (Record& record : function.overloads) {
        is_torch_wrapped = record.is_torch_wrapped;
        Object result;
        void* const* ordered = place_arguments(record, arguments, positional, keyword_names, placed);
        if (ordered != nullptr && record.call(&record, ordered, convert != 0, &result)) return result.release();
      }
    }
    fail_arguments(function, arguments, positional, keyword_names);
  } catch (...) {
    set_python_error(is_torch_wrapped);
  }
  return nullptr;
}

}  // namespace

void append_parameter(Message& m, const Record* record, size_t index, void (*describe)(Message&, bool)) {
  if (index != 0) m.append(", ");
  const Parameter* parameter = record->parameters != nullptr ? &record->parameters[index] : nullptr;
  if (parameter != nullptr && parameter->name != nullptr) {
    m.append(parameter->name);
  } else {
    append_all(m, "arg", index);
  }
  m.append(": ");
  describe(m, parameter != nullptr && parameter->is_exact);
  if (parameter == nullptr || parameter->default_value == nullptr) return;
  m.append(" = ");
  m.append(text_of(repr_of(parameter->default_value).get()).c_str());
}

void add_function(void* module, const char* name, const Record& record) {
  Function*& function = (*functions_of_module)[name];
  const bool is_new = function == nullptr;
  if (is_new) function = new Function{name, "", {}, {}};
  function->overloads.push_back(record);
  if (!is_new) return;
  function->doc = signature_of(name, function->overloads[0]) + "\n";
  if (*record.doc != '\0') function->doc += std::string("\n") + record.doc + "\n";
  /* METH_FASTCALL | METH_KEYWORDS */
  function->method = {function->name.c_str(), reinterpret_cast<void*>(&call_function), 0x0080 | 0x0002, function->doc.c_str()};
  const Object capsule = checked(PyCapsule_New(function, nullptr, nullptr));
  const Object module_name = attribute(module, "__name__");
  const Object object = checked(PyCMethod_New(&function->method, capsule.get(), module_name.get(), nullptr));
  set_attribute(module, name, borrow(object.get()));
}

void set_attribute(void* module, const char* name, Object value) {
  if (PyObject_SetAttrString(module, name, value.get()) != 0) throw PythonError();
}
void set_doc(void* module, const char* text) { set_attribute(module, "__doc__", python_text(text, strlen(text))); }

int run_module(void (*define)(pybind11::module_&), const Any* arguments, int32_t count, Any* result) {
  Gil gil;
  *result = {0, 0, 0};
  try {
    if (count != 1) throw CheckError(ErrorKind::type, "_jitload_torch_module takes the address of a module");
    pybind11::module_ module(reinterpret_cast<void*>(arguments[0].value));
    std::map<std::string, Function*> functions;
    functions_of_module = &functions;
    define(module);
    return 0;
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
    return -1;
  }
}

}  // namespace jitload_torch
