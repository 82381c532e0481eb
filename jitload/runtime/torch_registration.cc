/* Operators that TORCH_LIBRARY registers: their values on torch's stack, and the functions that torch calls. */
#include <dlfcn.h>
#include <string.h>

#include <array>
#include <stdexcept>
#include <utility>

#include "../include/torch_light/jitload_torch/library.h"
#include "torch_library.h"

namespace jitload_torch {

namespace {

using Kernel = void (*)(uint64_t*, uint64_t, uint64_t);

template <class... P>
int32_t call_torch(const char* name, P... arguments) {
  const auto function = reinterpret_cast<int32_t (*)(P...)>(dlsym(interface().library, name));
  if (function == nullptr) throw CheckError(ErrorKind::runtime, std::string("this torch lacks ") + name);
  return function(arguments...);
}
void check(int32_t status, const char* action) {
  if (status != 0) fail_torch(action);
}

/* torch calls an implementation without saying which, so each has a function of its own. */
constexpr size_t kMaxKernels = 256;
Boxed kernels[kMaxKernels];
size_t kernel_count;

__attribute__((noinline)) void run_boxed(const Boxed& boxed, uint64_t* stack) {
  const GilNote note(false); /* torch may have released the GIL */
  try {
    boxed.run(boxed, stack);
  } catch (const c10::Error& error) { /* torch has another class of this name */
    throw std::runtime_error(error.what());
  }
}
template <size_t I>
void run_kernel(uint64_t* stack, uint64_t, uint64_t) {
  run_boxed(kernels[I], stack);
}
template <size_t... I>
constexpr std::array<Kernel, sizeof...(I)> make_kernels(std::index_sequence<I...>) {
  return {&run_kernel<I>...};
}
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
void implement_operator(void* library, const char* name, const Boxed& boxed) {
  if (kernel_count == kMaxKernels) throw CheckError(ErrorKind::runtime, "a text can implement 256 operators for torch at most");
  kernels[kernel_count] = boxed;
  check(call_torch("torch_library_impl", library, name, kKernels[kernel_count++], uint64_t{JITLOAD_TORCH_ABI}), name);
}

// ---- values of the stack --------------------------------------------------------------------------------------------

at::Tensor Stacked<at::Tensor>::take(uint64_t bits) {
  const Handle tensor = reinterpret_cast<Handle>(bits);
  bool is_defined = false;
  interface().aoti_torch_is_defined(tensor, &is_defined);
  if (is_defined) return at::Tensor(tensor);
  delete_handle(tensor);
  return at::Tensor();
}
uint64_t Stacked<at::Tensor>::make(const at::Tensor& tensor) {
  return reinterpret_cast<uint64_t>(copy_handle(tensor.defined() ? tensor.handle() : interface().undefined));
}
uint64_t take_value(uint64_t optional) {
  uint64_t* const value = reinterpret_cast<uint64_t*>(optional);
  const uint64_t bits = *value;
  if (interface().new_stable_ivalue != nullptr) {
    call_torch("torch_delete_stable_ivalue", value);
  } else {
    delete value;
  }
  return bits;
}
uint64_t make_value(uint64_t bits) {
  uint64_t* value = nullptr;
  if (interface().new_stable_ivalue == nullptr) {
    value = new uint64_t;
  } else {
    check(interface().new_stable_ivalue(&value), "a value");
  }
  *value = bits;
  return reinterpret_cast<uint64_t>(value);
}
void* take_list(uint64_t bits, size_t* size) {
  void* const list = reinterpret_cast<void*>(bits);
  check(interface().torch_list_size(list, size), "a list");
  uint64_t* const items = new uint64_t[*size + 1];
  for (size_t i = 0; i < *size; ++i) interface().torch_list_get_item(list, i, &items[i]);
  interface().torch_delete_list(list);
  return items;
}
void free_items(void* items) { delete[] static_cast<uint64_t*>(items); }
uint64_t make_list(const uint64_t* items, size_t size) {
  void* list = nullptr;
  check(interface().torch_new_list_reserve_size(size, &list), "a list");
  for (size_t i = 0; i < size; ++i) check(interface().torch_list_push_back(list, items[i]), "a list");
  return reinterpret_cast<uint64_t>(list);
}
std::string take_text(uint64_t bits) {
  void* const text = reinterpret_cast<void*>(bits);
  size_t size = 0;
  const char* characters = "";
  call_torch("torch_string_length", text, &size);
  call_torch("torch_string_c_str", text, &characters);
  const std::string copy(characters, size);
  call_torch("torch_delete_string", text);
  return copy;
}
uint64_t make_text(const std::string& text) {
  void* handle = nullptr;
  check(interface().torch_new_string_handle(text.data(), text.size(), &handle), "a text");
  return reinterpret_cast<uint64_t>(handle);
}

}  // namespace jitload_torch
