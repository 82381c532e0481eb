/* What is looked up once in the torch of this process: objects of Python, and functions of its C++ libraries. */
#ifndef JITLOAD_TORCH_LIBRARY_H_
#define JITLOAD_TORCH_LIBRARY_H_

#include <exception>
#include <map>

#include "torch_python.h"

namespace jitload_torch {

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
    {26, 11, 8, "float8_e4m3fnuz"}, {44, 14, 8, "float8_e8m0fnu"}, {45, 17, 4, "float4_e2m1fn_x2"},
    {27, 1, 16, "uint16"},   {28, 1, 32, "uint32"},
    /* DLPack has no quantized dtypes: 254 and 255 are none of its codes. */
    {29, 1, 64, "uint64"},      {12, 255, 8, "qint8"},       {13, 254, 8, "quint8"},       {14, 255, 32, "qint32"},
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
  int (*view)(void*, View*) = nullptr;                /* like `stream` and `import`, of DLPack's exchange table */
  int (*stream)(int, int32_t, void**) = nullptr;
  int (*import)(Managed*, void**) = nullptr;
  std::map<int, void*> devices; /* objects of Python by type and index */

  Torch();
};
Torch& torch_module(); /* throws an error for a release without DLPack's exchange table */

/* The functions of torch's C++ libraries that are called directly.
 *
 * They are for the releases of torch in `kMinors`, whose classes have the layout that direct.h knows. */
constexpr int kMinors[] = {10, 13}; /* the first and the last minor release of torch 2: 2.10 to 2.13 */
struct Direct {
  void *torch = nullptr, *core = nullptr;
  ptrdiff_t offset = 0; /* where a torch.Tensor of Python has the address of its TensorImpl */
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

  Direct();
  void* const* slot(void* object) const { return reinterpret_cast<void* const*>(static_cast<char*>(object) + offset); }
};
extern Direct* direct_functions; /* NULL until they are looked up */
void find_direct_functions();
inline const Direct& direct() {
  if (direct_functions == nullptr) find_direct_functions();
  return *direct_functions;
}

inline void* const* slot_of(const Node* node) {
  return node->object != nullptr ? direct().slot(node->object) : &node->impl;
}

}  // namespace jitload_torch

#endif  // JITLOAD_TORCH_LIBRARY_H_
