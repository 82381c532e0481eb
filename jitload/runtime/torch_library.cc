/* Looks up torch's objects and functions, and calls those that belong to no tensor. */
#include "torch_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>

namespace jitload_torch {

namespace {
void* optional_attribute(void* module, const char* name) {
  void* object = PyObject_GetAttrString(module, name);
  if (object == nullptr) PyErr_Clear();
  return object;
}
}  // namespace

Torch::Torch() {
  module = checked(PyImport_ImportModule("torch")).release();
  tensor_type = object_at("torch._C.TensorBase").release();
  device_type = attribute(module, "device").release();
  find_operator = object_at("torch._C._get_operation_overload").release();
  for (int i = 0; i < kDtypeCount; ++i) dtypes[i] = optional_attribute(module, kDtypes[i].name);
  for (int i = 0; i < 4; ++i) layouts[i] = optional_attribute(module, kLayouts[i]);
  for (int i = 0; i < 4; ++i) memory_formats[i] = optional_attribute(module, kMemoryFormats[i]);
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
Torch& torch_module() {
  static Torch* torch = new Torch; /* never destroyed, as Python may be gone by then */
  return *torch;
}

namespace {
template <class T>
bool find(void* library, const char* name, T*& target) {
  target = reinterpret_cast<T*>(dlsym(library, name));
  return target != nullptr;
}
/* The offset of the TensorImpl's address in a torch.Tensor object; 0 if it is not known. */
ptrdiff_t tensor_offset() {
  const Object count = python_integer(0), tensor = call(attribute(torch_module().module, "empty").get(), {count.get()});
  const long long address = PyLong_AsLongLong(attribute(tensor.get(), "_cdata").get());
  for (size_t i = 2; i <= 4; ++i) {
    if (static_cast<long long*>(tensor.get())[i] == address) return static_cast<ptrdiff_t>(i * sizeof(void*));
  }
  return 0;
}
}  // namespace

Direct::Direct() {
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
              find(core, "_ZN3c108GradMode11set_enabledEb", set_grad_enabled);
  undefined = singleton;
  offset = is_usable ? tensor_offset() : 0;
  is_usable = offset != 0;
}
Direct* direct_functions;
void find_direct_functions() { direct_functions = new Direct; } /* under the GIL, before any of them is called */

bool set_grad_enabled(bool enabled) {
  Gil gil;
  if (direct().is_usable) {
    const bool was_enabled = direct().is_grad_enabled();
    direct().set_grad_enabled(enabled);
    return was_enabled;
  }
  const bool was_enabled = python_value<bool>(call_path("torch.is_grad_enabled", ""));
  call_path("torch._C._set_grad_enabled", "", enabled);
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
    /* The solvers are in another library, which torch loads only when it needs one. */
    library = dlopen((std::string(directory) + "/libtorch_cuda_linalg.so").c_str(), RTLD_LAZY);
    address = library != nullptr ? dlsym(library, function) : nullptr;
  }
  if (address == nullptr) {
    throw CheckError(ErrorKind::runtime, std::string("this torch does not have the function ") + function +
                                             " in libtorch_cuda.so or libtorch_cuda_linalg.so");
  }
  return reinterpret_cast<void* (*)()>(address)();
}

}  // namespace jitload_torch
