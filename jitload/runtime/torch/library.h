/* What is looked up once in the torch of this process: functions of its stable C interface, and objects of Python. */
#pragma once

#include <map>

#include "python.h"

namespace jitload_torch {

/* Functions of torch/csrc/stable/c/shim.h, and of c/shim.h and generated/c_shim_aten.h in torch/csrc/inductor/aoti_torch, which
 * torch promises to keep. All return 0 or an error, and need no GIL. X(name, parameters...) */
#define JITLOAD_TORCH_INTERFACE_(X)                                                                                  \
  X(torch_call_dispatcher, const char*, const char*, uint64_t*, uint64_t)                                            \
  X(torch_get_const_data_ptr, Handle, const void**) X(torch_get_mutable_data_ptr, Handle, void**)                    \
  X(torch_new_list_reserve_size, size_t, void**) X(torch_list_push_back, void*, uint64_t)                            \
  X(torch_list_size, void*, size_t*) X(torch_list_get_item, void*, size_t, uint64_t*) X(torch_delete_list, void*)    \
  X(torch_new_string_handle, const char*, size_t, void**)                                                            \
  X(torch_parse_device_string, const char*, uint32_t*, int32_t*)                                                     \
  X(torch_parallel_for, int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*)                         \
  X(torch_set_requires_grad, Handle, bool) X(aoti_torch_get_sizes, Handle, int64_t**)                                \
  X(aoti_torch_get_strides, Handle, int64_t**) X(aoti_torch_get_dim, Handle, int64_t*)                               \
  X(aoti_torch_get_numel, Handle, int64_t*) X(aoti_torch_get_dtype, Handle, int32_t*)                                \
  X(aoti_torch_get_device_type, Handle, int32_t*) X(aoti_torch_get_device_index, Handle, int32_t*)                   \
  X(aoti_torch_get_layout, Handle, int32_t*) X(aoti_torch_get_storage_offset, Handle, int64_t*)                      \
  X(aoti_torch_is_contiguous, Handle, bool*) X(aoti_torch_is_defined, Handle, bool*)                                 \
  X(aoti_torch_new_tensor_handle, Handle, Handle*) X(aoti_torch_new_uninitialized_tensor, Handle*)                   \
  X(aoti_torch_delete_tensor_object, Handle)                                                                         \
  X(aoti_torch_create_tensor_from_blob, void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t,            \
    int32_t, int32_t, Handle*)                                                                                       \
  X(aoti_torch_empty_strided, int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*)           \
  X(aoti_torch_item_float64, Handle, double*) X(aoti_torch_item_int64, Handle, int64_t*)                             \
  X(aoti_torch_item_bool, Handle, bool*) X(aoti_torch_aten_fill__Scalar, Handle, double)                             \
  X(aoti_torch_aten_new_empty, Handle, const int64_t*, int64_t, int32_t*, int32_t*, int32_t*, int32_t, int32_t*, Handle*) \
  X(aoti_torch_aten_new_zeros, Handle, const int64_t*, int64_t, int32_t*, int32_t*, int32_t*, int32_t, int32_t*, Handle*) \
  X(aoti_torch_aten_full, const int64_t*, int64_t, double, int32_t*, int32_t*, int32_t*, int32_t, int32_t*, Handle*)

struct Interface {
#define X(name, ...) int32_t (*name)(__VA_ARGS__);
  JITLOAD_TORCH_INTERFACE_(X)
#undef X
  void* library; /* libtorch_cpu.so */
  Handle undefined; /* torch's undefined tensor */
  bool (*aoti_torch_grad_mode_is_enabled)();
  void (*aoti_torch_grad_mode_set_enabled)(bool);
  /* Of later releases; NULL before. Without the first, torch writes a message to its log. */
  const char* (*last_message)();                             /* 2.13 */
  int32_t (*tensor_from_object)(void*, Handle*);             /* 2.14, as is the next */
  int32_t (*tensor_to_object)(Handle, void*, void**);
  int32_t (*new_stable_ivalue)(uint64_t**);                  /* 2.13 */
  int32_t (*from_blob)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, Handle*, int32_t,
                       const uint8_t*, int64_t, void (*)(void*, void*), void*); /* 2.11, with a deleter */

  Interface(); /* throws an error for a torch without the interface, which is before 2.10 */
};
extern Interface* interface_functions; /* NULL until they are looked up */
void find_interface();
inline const Interface& interface() {
  if (interface_functions == nullptr) find_interface();
  return *interface_functions;
}
/* A function of libtorch_cuda.so, or an error. */
void* cuda_function(const char* name);
Handle take_tensor(uint64_t bits); /* a handle of the stack, or NULL for an undefined tensor */
bool is_observed(const at::Tensor& tensor); /* whether somebody may see which operators are called with it */
[[noreturn]] void fail_as_torch(const std::exception& error);
void fail_torch(const char* action); /* throws an error with torch's own message if torch tells it */

/* Calls a C++ function of torch, whose errors have the names of ours, but another layout. */
template <class F>
auto call_torch(const F& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    fail_as_torch(error);
  }
}
inline void check(int32_t status, const char* action) {
  if (status != 0) fail_torch(action);
}

/* What these files use of torch beside its stable interface and its Python, and what happens where it is missing:
 * 1. Where a torch.Tensor has its at::Tensor, which is a handle (`Torch::offset`): torch's conversion makes the handle.
 * 2. The function that makes a torch.Tensor for a handle (`Torch::wrap`): torch's conversion does so.
 * 3. The function that prints a tensor: it is printed as Python prints it.
 * 4. The functions that return handles of cuBLASLt, cuSPARSE, cuSOLVER and cuDNN (`cuda_function`): an error.
 * The first two are compared with torch's conversion before they are used, and are not needed from torch 2.14 on. */
const char* const kWrapName = "_Z16THPVariable_WrapRKN2at10TensorBaseE";
const char* const kPrintName = "_ZN2at5printERSoRKNS_6TensorEl";

const char* const kLayouts[] = {"strided",    "sparse_coo", "sparse_csr", "_mkldnn",
                                "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"};
const char* const kMemoryFormats[] = {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"};

/* What is looked up in torch's Python once. The capsules are torch's conversions between tensors and handles, and
 * `without_modes` concerns those of __torch_function__. X(name, path behind torch.) */
#define JITLOAD_TORCH_OBJECTS_(X)                                                                                    \
  X(base_type, "_C.TensorBase") X(tensor_type, "Tensor") X(parameter_type, "nn.Parameter") X(device_type, "device")  \
  X(functions, "_C._VariableFunctions") X(to_capsule, "_C._aoti.unsafe_alloc_void_ptr_from_tensor")                  \
  X(from_capsule, "_C._aoti.alloc_tensor_by_stealing_from_void_ptr") X(without_modes, "_C.DisableTorchFunction")     \
  X(function_modes, "_C._len_torch_function_stack") X(dispatch_modes, "_C._len_torch_dispatch_stack")                \
  X(is_tracing, "_C._is_tracing") X(has_transforms, "_C._are_functorch_transforms_active")
struct Torch { /* the references are kept */
#define X(name, path) void* name;
  X(module, "") JITLOAD_TORCH_OBJECTS_(X)
#undef X
  void* dtypes[static_cast<int>(c10::ScalarType::NumOptions)] = {};
  void* layouts[8];
  void* memory_formats[4];
  bool keeps_handle = false;                 /* from_capsule does not take over the handle, whatever its name says */
  size_t offset = 0;                         /* 0 if it is not known */
  void* (*wrap)(Handle) = nullptr;           /* NULL if it is not known */
  std::map<int, void*> devices;              /* objects of Python by type and index */

  Torch();

 private:
  void find_shortcuts();
};
extern Torch* torch_objects; /* NULL until they are looked up */
void find_torch();
inline Torch& torch_module() {
  if (torch_objects == nullptr) find_torch();
  return *torch_objects;
}

}  // namespace jitload_torch
