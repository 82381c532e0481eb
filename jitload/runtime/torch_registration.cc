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

Handle take_tensor(uint64_t bits) {
  const Handle tensor = reinterpret_cast<Handle>(bits);
  bool is_defined = false;
  interface().aoti_torch_is_defined(tensor, &is_defined);
  if (is_defined) return tensor;
  delete_handle(tensor);
  return nullptr;
}
uint64_t take_optional(uint64_t optional) {
  uint64_t* const value = reinterpret_cast<uint64_t*>(optional);
  const uint64_t bits = *value;
  if (interface().new_stable_ivalue != nullptr) {
    call_torch("torch_delete_stable_ivalue", value);
  } else {
    delete value;
  }
  return bits;
}
size_t list_size(uint64_t list) {
  size_t size = 0;
  check(interface().torch_list_size(reinterpret_cast<void*>(list), &size), "a list");
  return size;
}
uint64_t list_item(uint64_t list, size_t index) {
  uint64_t item = 0;
  check(interface().torch_list_get_item(reinterpret_cast<void*>(list), index, &item), "a list");
  return item;
}
void delete_list(uint64_t list) { interface().torch_delete_list(reinterpret_cast<void*>(list)); }
namespace {
std::string take_text(void* text) {
  size_t size = 0;
  const char* characters = "";
  call_torch("torch_string_length", text, &size);
  call_torch("torch_string_c_str", text, &characters);
  const std::string copy(characters, size);
  call_torch("torch_delete_string", text);
  return copy;
}
}  // namespace
void take_value(unsigned code, uint64_t bits, void* value) {
  switch (static_cast<Type>(code)) {
    case Type::tensor: *static_cast<at::Tensor*>(value) = at::Tensor(take_tensor(bits)); break;
    case Type::string: *static_cast<std::string*>(value) = take_text(reinterpret_cast<void*>(bits)); break;
    case Type::device: {
      const auto type = static_cast<c10::DeviceType>(bits >> 32);
      *static_cast<c10::Device*>(value) = c10::Device(type, static_cast<c10::DeviceIndex>(bits));
      break;
    }
    case Type::scalar: { /* the stack has none: this one comes from Python */
      c10::Scalar* const scalar = reinterpret_cast<c10::Scalar*>(bits);
      *static_cast<c10::Scalar*>(value) = *scalar;
      delete scalar;
      break;
    }
    default: memcpy(value, &bits, size_of(code)); /* a number */
  }
}
const char* schema_name(unsigned code) {
  switch (static_cast<Type>(code)) {
    case Type::float64: return "float";
    case Type::boolean: return "bool";
    case Type::int64: return "int";
    case Type::dtype: return "ScalarType";
    case Type::device: return "Device";
    case Type::string: return "str";
    default: return "Tensor";
  }
}

}  // namespace jitload_torch
