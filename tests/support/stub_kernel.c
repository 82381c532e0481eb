/* Entry points of the stub libcuda.so.1 for libraries, kernels, functions, variables and tensor maps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

enum {
  FUNCTION_MAX_THREADS = 0,
  FUNCTION_STATIC_SHARED = 1,
  FUNCTION_LOCAL = 3,
  FUNCTION_REGISTERS = 4,
  FUNCTION_MAX_DYNAMIC_SHARED = 8,
  FUNCTION_CARVEOUT = 9,
  FUNCTION_CLUSTER_WIDTH = 11,
  FUNCTION_CLUSTER_DEPTH = 13,
  FUNCTION_NON_PORTABLE_CLUSTER = 14,
};

/* ---- libraries ------------------------------------------------------------------------------------------------- */

/* Bytes that are no cubin load too: the driver looks at them when a kernel is asked for. */
STUB_API CUresult cuLibraryLoadData(CUlibrary* library, const void* code, int* jit_options, void** jit_values,
                                    unsigned jit_count, int* options, void** values, unsigned count) {
  CUresult result = stub_begin("cuLibraryLoadData", NEEDS_INIT | IS_UNSAFE_IN_CAPTURE);
  (void)jit_options, (void)jit_values, (void)options, (void)values;
  if (result == CUDA_SUCCESS && (library == NULL || code == NULL)) result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) return stub_end(result, "code=%p", code);
  *library = stub_read_image(code);
  return stub_end(result, "library=%p code=%p size=%zu capability=%d jit_options=%u options=%u", (void*)*library, code,
                  (*library)->size, (*library)->capability, jit_count, count);
}

STUB_API CUresult cuLibraryUnload(CUlibrary library) {
  CUresult result = stub_begin("cuLibraryUnload", NEEDS_INIT);
  if (result == CUDA_SUCCESS && !stub_is_library(library)) result = CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS) library->is_loaded = 0;
  return stub_end(result, "library=%p", (void*)library);
}

static CUresult check_library(CUlibrary library, const void* out, const char* name) {
  if (!stub_is_library(library)) return CUDA_ERROR_INVALID_HANDLE;
  if (out == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
  return library->image != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

STUB_API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  CUresult result = stub_begin("cuLibraryGetKernel", NEEDS_INIT);
  CUkernel found = NULL;
  if (result == CUDA_SUCCESS) result = check_library(library, kernel, name);
  if (result == CUDA_SUCCESS) {
    found = library->kernels;
    while (found != NULL && strcmp(found->name, name) != 0) found = found->next;
    if (found == NULL) result = CUDA_ERROR_NOT_FOUND;
  }
  if (result == CUDA_SUCCESS) *kernel = found;
  return stub_end(result, "library=%p name=%s kernel=%p", (void*)library, stub_quote(name), (void*)found);
}

STUB_API CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  *count = 0;
  for (CUkernel kernel = library->kernels; kernel != NULL; kernel = kernel->next) ++*count;
  return CUDA_SUCCESS;
}

STUB_API CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  CUkernel kernel = library->kernels;
  for (unsigned i = 0; i < count && kernel != NULL; ++i, kernel = kernel->next) kernels[i] = kernel;
  return CUDA_SUCCESS;
}

STUB_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  *name = kernel->name;
  return CUDA_SUCCESS;
}

static unsigned char* global_copy(stub_global* global, CUdevice device) {
  unsigned char** copy = &global->copies[device];
  if (*copy != NULL) return *copy;
  /* As device memory is: aligned to 256 bytes, at least. */
  *copy = aligned_alloc(256, (global->size + 256) & ~(size_t)255);
  if (*copy == NULL) abort();
  memset(*copy, 0, global->size);
  if (global->initial != NULL) memcpy(*copy, global->initial, global->size);
  return *copy;
}

/* Variables exist once a device, in host memory here. */
STUB_API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* size, CUlibrary library, const char* name) {
  CUresult result = stub_begin("cuLibraryGetGlobal", NEEDS_CONTEXT);
  const CUdevice device = stub_device_of_current();
  if (result == CUDA_SUCCESS) result = check_library(library, address, name);
  if (result == CUDA_SUCCESS) {
    stub_global* global = library->globals;
    while (global != NULL && strcmp(global->name, name) != 0) global = global->next;
    if (global == NULL) result = CUDA_ERROR_NOT_FOUND;
    if (global != NULL) *address = (CUdeviceptr)(uintptr_t)global_copy(global, device);
    if (global != NULL && size != NULL) *size = global->size;
  }
  return stub_end(result, "library=%p name=%s device=%d", (void*)library, stub_quote(name), device);
}

/* ---- kernels and functions ------------------------------------------------------------------------------------- */

static CUresult check_architecture(const struct stub_kernel* kernel, CUdevice device) {
  const int* attributes = stub_config.attributes[device];
  const int capability = kernel->library->capability;
  const int is_fit = capability / 10 == attributes[DEVICE_MAJOR] && capability % 10 <= attributes[DEVICE_MINOR];
  return is_fit ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult stub_get_function(const void* handle, CUdevice device, stub_function** function) {
  const CUkernel kernel = stub_find_kernel(handle, function);
  if (kernel == NULL) return CUDA_ERROR_INVALID_HANDLE;
  if (device < 0 || device >= stub_config.device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (*function == NULL) *function = &kernel->functions[device];
  return (*function)->device == device ? check_architecture(kernel, device) : CUDA_ERROR_INVALID_HANDLE;
}

static const char* name_of(const stub_function* function) {
  return stub_quote(function != NULL ? function->kernel->name : NULL);
}

STUB_API CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  CUresult result = stub_begin("cuKernelGetFunction", NEEDS_CONTEXT | IS_UNSAFE_IN_CAPTURE);
  stub_function* found = NULL;
  if (result == CUDA_SUCCESS && function == NULL) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = stub_get_function(kernel, stub_device_of_current(), &found);
  if (result == CUDA_SUCCESS) *function = found;
  return stub_end(result, "kernel=%s device=%d", name_of(found), stub_device_of_current());
}

STUB_API CUresult cuFuncLoad(CUfunction function) {
  CUresult result = stub_begin("cuFuncLoad", NEEDS_CONTEXT | IS_UNSAFE_IN_CAPTURE);
  stub_function* found = NULL;
  if (result == CUDA_SUCCESS) result = stub_get_function(function, stub_device_of_current(), &found);
  if (result == CUDA_SUCCESS) found->is_loaded = 1;
  return stub_end(result, "kernel=%s device=%d", name_of(found), stub_device_of_current());
}

static CUresult get_attribute(const stub_function* function, int attribute, int* value) {
  const struct stub_kernel* kernel = function->kernel;
  if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case FUNCTION_MAX_THREADS: *value = kernel->max_threads; break;
    case FUNCTION_STATIC_SHARED: *value = kernel->static_shared; break;
    case FUNCTION_LOCAL: *value = kernel->local_bytes; break;
    case FUNCTION_REGISTERS: *value = kernel->registers; break;
    case FUNCTION_MAX_DYNAMIC_SHARED: *value = function->max_dynamic_shared; break;
    case FUNCTION_CARVEOUT: *value = function->carveout; break;
    case FUNCTION_NON_PORTABLE_CLUSTER: *value = function->allows_non_portable_cluster; break;
    default:
      if (attribute < FUNCTION_CLUSTER_WIDTH || attribute > FUNCTION_CLUSTER_DEPTH) return CUDA_ERROR_INVALID_VALUE;
      *value = (int)kernel->cluster[attribute - FUNCTION_CLUSTER_WIDTH];
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(stub_function* function, int attribute, int value) {
  const int most = stub_config.attributes[function->device][DEVICE_MAX_SHARED_OPTIN] - function->kernel->static_shared;
  switch (attribute) {
    case FUNCTION_MAX_DYNAMIC_SHARED:
      if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
      function->max_dynamic_shared = value;
      return CUDA_SUCCESS;
    case FUNCTION_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      function->carveout = value;
      return CUDA_SUCCESS;
    case FUNCTION_NON_PORTABLE_CLUSTER:
      function->allows_non_portable_cluster = value != 0;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

STUB_API CUresult cuKernelGetAttribute(int* value, int attribute, CUkernel kernel, CUdevice device) {
  CUresult result = stub_begin("cuKernelGetAttribute", NEEDS_INIT);
  stub_function* found = NULL;
  if (result == CUDA_SUCCESS) result = stub_get_function(kernel, device, &found);
  if (result == CUDA_SUCCESS) result = get_attribute(found, attribute, value);
  return stub_end(result, "kernel=%s attribute=%d device=%d", name_of(found), attribute, device);
}

STUB_API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  CUresult result = stub_begin("cuKernelSetAttribute", NEEDS_INIT | IS_UNSAFE_IN_CAPTURE);
  stub_function* found = NULL;
  if (result == CUDA_SUCCESS) result = stub_get_function(kernel, device, &found);
  if (result == CUDA_SUCCESS) result = set_attribute(found, attribute, value);
  return stub_end(result, "kernel=%s attribute=%d value=%d device=%d", name_of(found), attribute, value, device);
}

STUB_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  CUresult result = stub_begin("cuKernelGetParamInfo", NEEDS_INIT);
  stub_function* function;
  const CUkernel found = stub_find_kernel(kernel, &function);
  if (result == CUDA_SUCCESS && found == NULL) result = CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS && (offset == NULL || index >= found->slot_count)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    *offset = found->slots[index].offset;
    if (size != NULL) *size = found->slots[index].size;
  }
  return stub_end(result, "kernel=%s index=%zu", stub_quote(found != NULL ? found->name : NULL), index);
}

/* ---- tensor maps ----------------------------------------------------------------------------------------------- */

/* Add a number to a list of them, "4,2". */
static void append(char text[128], uint64_t number) {
  const size_t used = strlen(text);
  snprintf(text + used, 128 - used, "%s%llu", used != 0 ? "," : "", (unsigned long long)number);
}

/* As below, for im2col: the corners are of the axes between the first and the last one. */
STUB_API CUresult cuTensorMapEncodeIm2col(void* map, int type, uint32_t rank, void* address, const uint64_t* extents,
                                          const uint64_t* strides, const int* lower, const int* upper,
                                          uint32_t channels, uint32_t pixels, const uint32_t* steps, int interleave,
                                          int swizzle, int promotion, int fill) {
  CUresult result = stub_begin("cuTensorMapEncodeIm2col", NEEDS_INIT);
  if (result == CUDA_SUCCESS && ((uintptr_t)map % 64 != 0 || rank < 3 || rank > 5)) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    const uint64_t words[16] = {(uint64_t)(uintptr_t)address, rank};
    memcpy(map, words, sizeof words);
  }
  char texts[3][128] = {"", "", ""}, corners[2][64] = {"", ""};
  for (uint32_t i = 0; i < rank && i < 5; ++i) {
    append(texts[0], extents[i]);
    append(texts[1], steps[i]);
    if (i + 1 < rank) append(texts[2], strides[i]);
    if (i + 2 >= rank) continue;
    snprintf(corners[0] + strlen(corners[0]), 16, "%s%d", i ? "," : "", lower[i]);
    snprintf(corners[1] + strlen(corners[1]), 16, "%s%d", i ? "," : "", upper[i]);
  }
  return stub_end(result,
                  "type=%d rank=%u address=%p interleave=%d swizzle=%d promotion=%d fill=%d extents=%s steps=%s strides=%s "
                  "lower=%s upper=%s channels=%u pixels=%u",
                  type, rank, address, interleave, swizzle, promotion, fill, texts[0], texts[1], texts[2], corners[0],
                  corners[1], channels, pixels);
}

/* The driver's 128 bytes are secret; these hold the address and the rank, so that a test knows the map again. */
STUB_API CUresult cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* address, const uint64_t* extents,
                                         const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                                         int interleave, int swizzle, int promotion, int fill) {
  CUresult result = stub_begin("cuTensorMapEncodeTiled", NEEDS_INIT);
  const int is_aligned = (uintptr_t)map % 64 == 0 && (uintptr_t)address % 16 == 0;
  const int is_complete = map != NULL && extents != NULL && box != NULL && steps != NULL && (strides != NULL || rank == 1);
  if (result == CUDA_SUCCESS && (!is_complete || !is_aligned || rank < 1 || rank > 5)) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  if (result == CUDA_SUCCESS) {
    const uint64_t words[16] = {(uint64_t)(uintptr_t)address, rank};
    memcpy(map, words, sizeof words);
  }
  char texts[4][128] = {"", "", "", ""};
  for (uint32_t i = 0; is_complete && rank <= 5 && i < 5; ++i) {
    if (i < rank) append(texts[0], extents[i]);
    if (i + 1 < rank) append(texts[1], strides[i]);
    if (i < rank) append(texts[2], box[i]);
    if (i < rank) append(texts[3], steps[i]);
  }
  return stub_end(result,
                  "type=%d rank=%u address=%p interleave=%d swizzle=%d promotion=%d fill=%d extents=%s strides=%s box=%s "
                  "steps=%s",
                  type, rank, address, interleave, swizzle, promotion, fill, texts[0], texts[1], texts[2], texts[3]);
}
