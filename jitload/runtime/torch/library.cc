/* Looks up torch's functions and objects, and calls those that belong to no tensor. */
#include "library.h"

#include <dlfcn.h>
#include <limits.h>

#include <exception>
#include <mutex>

namespace jitload_torch {

namespace {
template <class T>
bool find(void* library, const char* name, T*& target) {
  target = reinterpret_cast<T*>(dlsym(library, name));
  return target != nullptr;
}
void* loaded_torch() { return dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD); }
}  // namespace

Interface::Interface() : library(loaded_torch()) {
  if (library == nullptr) {
    Gil gil;
    checked(PyImport_ImportModule("torch"));
    library = loaded_torch();
  }
  TORCH_CHECK(library != nullptr, "this torch lacks libtorch_cpu.so");
#define X(name, ...) \
  TORCH_CHECK(find(library, #name, this->name), "this torch lacks " #name " of its stable C interface, which 2.10 has");
  JITLOAD_TORCH_INTERFACE_(X) X(aoti_torch_grad_mode_is_enabled) X(aoti_torch_grad_mode_set_enabled)
#undef X
  find(library, "torch_exception_get_what_without_backtrace", last_message);
  find(library, "torch_tensor_from_pyobject", tensor_from_object);
  find(library, "torch_tensor_to_pyobject", tensor_to_object);
  find(library, "torch_new_stable_ivalue", new_stable_ivalue);
  find(library, "torch_from_blob", from_blob);
  aoti_torch_new_uninitialized_tensor(&undefined);
}
Interface* interface_functions;
void find_interface() {
  static std::mutex mutex;
  const GilRelease release; /* another thread may need the GIL to import torch */
  const std::lock_guard<std::mutex> lock(mutex);
  if (interface_functions == nullptr) interface_functions = new Interface;
}

void fail_torch(const char* action) {
  const char* message = interface().last_message != nullptr ? interface().last_message() : "";
  TORCH_CHECK(*message == '\0', message);
  TORCH_CHECK(false, "torch refused ", action, "; its reason is in its log, on stderr");
}

Torch::Torch() {
  module = checked(PyImport_ImportModule("torch")).release();
#define X(name, path) name = object_at("torch." path).release();
  JITLOAD_TORCH_OBJECTS_(X)
#undef X
#define X(T, name, number, python, cpp) dtypes[number] = attribute_or_null(module, python);
  JITLOAD_TORCH_ALL_SCALAR_TYPES(X)
#undef X
  for (int i = 0; i < 8; ++i) layouts[i] = attribute_or_null(module, kLayouts[i]);
  for (int i = 0; i < 4; ++i) memory_formats[i] = attribute_or_null(module, kMemoryFormats[i]);
  find_shortcuts();
}
void Torch::find_shortcuts() {
  if (interface().tensor_from_object != nullptr) return;
  /* Not made by Python, where a mode may see it. */
  const Handle handle = empty_tensor(static_cast<int8_t>(c10::kFloat)), copy = copy_handle(handle);
  const Object capsule = checked(PyCapsule_New(copy, nullptr, nullptr)), tensor = call(from_capsule, {capsule.get()});
  const Object count_references = attribute(tensor.get(), "_use_count"), second = call(to_capsule, {tensor.get()});
  const auto references = [&] { return PyLong_AsLongLong(call(count_references.get(), {}).get()); };
  const long long before = references();
  call(from_capsule, {second.get()});
  keeps_handle = references() == before;
  if (keeps_handle) delete_handle(copy), delete_handle(PyCapsule_GetPointer(second.get(), nullptr));
  for (size_t i = 2; i <= 4 && offset == 0; ++i) { /* both are an at::Tensor, whose only member is its address */
    void* const* member = static_cast<void* const*>(tensor.get()) + i;
    if (*member == *static_cast<void* const*>(handle)) offset = i * sizeof(void*);
  }
  void* const library = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr && offset != 0 && find(library, kWrapName, wrap)) {
    const Object wrapped(wrap(static_cast<char*>(tensor.get()) + offset));
    if (wrapped.get() != tensor.get()) wrap = nullptr;
  }
  delete_handle(handle);
}
Torch* torch_objects;
void find_torch() { torch_objects = new Torch; } /* under the GIL; never destroyed, as Python may be gone by then */

bool is_grad_enabled() { return interface().aoti_torch_grad_mode_is_enabled(); }
void set_grad_enabled(bool enabled) { interface().aoti_torch_grad_mode_set_enabled(enabled); }

void parallel_for(int64_t begin, int64_t end, int64_t grain_size, void (*function)(int64_t, int64_t, void*), void* context) {
  struct Work {
    void (*function)(int64_t, int64_t, void*);
    void* context;
    std::mutex mutex;
    std::exception_ptr error;
  } work{function, context, {}, {}};
  const auto run = [](int64_t first, int64_t last, void* argument) {
    Work& work = *static_cast<Work*>(argument);
    const GilNote note(false);
    try {
      work.function(first, last, work.context);
    } catch (...) { /* the first error is thrown again below, in the thread that called */
      const std::lock_guard<std::mutex> lock(work.mutex);
      if (work.error == nullptr) work.error = std::current_exception();
    }
  };
  const GilRelease release; /* the other threads may need the GIL */
  check(interface().torch_parallel_for(begin, end, grain_size, run, &work), "at::parallel_for");
  if (work.error != nullptr) std::rethrow_exception(work.error);
}

// ---- CUDA -----------------------------------------------------------------------------------------------------------

void* cuda_function(const char* name) {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* address = library != nullptr ? dlsym(library, name) : nullptr;
  char directory[PATH_MAX];
  if (library != nullptr && address == nullptr && dlinfo(library, RTLD_DI_ORIGIN, directory) == 0) {
    /* The solvers are in another library, which torch loads only when it needs one. */
    library = dlopen((std::string(directory) + "/libtorch_cuda_linalg.so").c_str(), RTLD_LAZY);
    address = library != nullptr ? dlsym(library, name) : nullptr;
  }
  TORCH_CHECK(address != nullptr, "this torch does not have the function ", name,
              " in libtorch_cuda.so or libtorch_cuda_linalg.so");
  return address;
}
template <class... P>
static void call_cuda(void* function, const char* action, P... arguments) {
  check(reinterpret_cast<int32_t (*)(P...)>(function)(arguments...), action);
}
template <class... P>
static void* pointer_from(void* function, const char* action, P... arguments) {
  void* pointer = nullptr;
  call_cuda(function, action, arguments..., &pointer);
  return pointer;
}
void* current_stream(int device_index) {
  static void* const function = cuda_function("aoti_torch_get_current_cuda_stream");
  return pointer_from(function, "to tell the current stream", device_index);
}
void set_current_stream(void* stream, int device_index) {
  call_cuda(cuda_function("torch_set_current_cuda_stream"), "to change the current stream", stream, device_index);
}
void* stream_from_pool(bool is_high_priority, int device_index) {
  return pointer_from(cuda_function("torch_get_cuda_stream_from_pool"), "a stream of its pool", is_high_priority, device_index);
}
void* blas_handle() { return pointer_from(cuda_function("torch_get_current_cuda_blas_handle"), "cuBLAS's handle"); }
void fail_cuda(int status, const char* description) {
  std::string text = std::string("CUDA error: ") + description;
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr) {
    char* message = nullptr;
    call_cuda(cuda_function("torch_c10_cuda_check_msg"), "to report it", status, "", "", uint32_t{0}, true, &message);
    if (message != nullptr) text = message;
    reinterpret_cast<void (*)(char*)>(cuda_function("torch_c10_cuda_free_error_msg"))(message);
  }
  fail(ErrorKind::AcceleratorError, text.c_str());
}
void* library_handle(const char* function) { return call_torch(reinterpret_cast<void* (*)()>(cuda_function(function))); }

}  // namespace jitload_torch
