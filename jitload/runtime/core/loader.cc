/* The functions that jitload's loader calls: they open a record, describe, configure and load kernels, and make tensors
 * of variables.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "choice.h"

jitload_stream_source_fn jitload_stream_source;
jitload_allocator_fn jitload_allocator;

static int jitload_return_text(const char* text, TVMFFIAny* result) {
  const TVMFFIByteArray bytes = {text, strlen(text)};
  return TVMFFIStringFromByteArray(&bytes, result);
}

extern "C" int jitload_get_metadata(intptr_t kernel, const void*, int32_t, void* result) {
  return jitload_return_text(jitload_library_record.module.kernels[kernel].metadata, (TVMFFIAny*)result);
}

extern "C" int jitload_get_doc(intptr_t kernel, const void*, int32_t, void* result) {
  return jitload_return_text(jitload_library_record.module.kernels[kernel].doc, (TVMFFIAny*)result);
}

/* Replace the offsets in a record by addresses. */
static void jitload_open_record(jitload_record* record, const void* const* addresses) {
  char* base = (char*)record;
  const uint32_t* pointers = (const uint32_t*)(base + (uintptr_t)record->pointers);
  const uint32_t* externals = (const uint32_t*)(base + (uintptr_t)record->externals);
  for (int32_t i = 0; i < record->pointer_count; ++i) *(uintptr_t*)(base + pointers[i]) += (uintptr_t)base;
  for (int32_t i = 0; i < record->external_count; ++i) {
    const void** place = (const void**)(base + externals[i]);
    *place = addresses[(uintptr_t)*place];
  }
}

static __attribute__((constructor)) void jitload_open_library(void) {
  if (&jitload_library_record != NULL) jitload_open_record(&jitload_library_record, jitload_library_addresses);
}

/* Return the address of the library's module, which jitload's loader passes to the functions below. */
JITLOAD_LOADER_FUNCTION(module)(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = (int64_t)(uintptr_t)&jitload_library_record.module;
  return 0;
}

/* Open a record in memory; return the address of its module. The record is copied and never freed, because functions and
 * the driver may refer to it. args: the address and the size of the record. */
JITLOAD_LOADER_FUNCTION(open)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const jitload_record* source = num_args == 2 ? (const jitload_record*)(uintptr_t)args[0].v_int64 : NULL;
  if (source == NULL || args[1].v_int64 < (int64_t)sizeof *source || memcmp(source->magic, "jitload", 8) != 0 ||
      source->abi != JITLOAD_ABI || source->size > args[1].v_int64) {
    return jitload_fail("ValueError", "the record was not made for this release of jitload, or is damaged");
  }
  void* memory = NULL;
  if (posix_memalign(&memory, 64, (size_t)args[1].v_int64) != 0) return jitload_fail("MemoryError", "out of memory");
  jitload_record* record = (jitload_record*)memcpy(memory, source, (size_t)args[1].v_int64);
  jitload_open_record(record, NULL);
  result->type_index = kTVMFFIInt;
  result->v_int64 = (int64_t)(uintptr_t)&record->module;
  return 0;
}

static inline const jitload_module* jitload_get_module(const TVMFFIAny* args) {
  return (const jitload_module*)(uintptr_t)args[0].v_int64;
}

JITLOAD_LOADER_FUNCTION(describe)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  return jitload_return_text(jitload_get_module(args)->description, result);
}

static int jitload_configured_call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const jitload_config* config = (const jitload_config*)self;
  return jitload_run(config->kernel, config, args, num_args, NULL, result);
}

/* args: (kernel index, has_grid, x, y, z, has_block, x, y, z, shared_bytes or None, stream or None); the loader has
 * checked their types. */
int jitload_read_config(const jitload_module* module, const TVMFFIAny* args, jitload_config* config) {
  const jitload_kernel* kernel = &module->kernels[args[0].v_int64];
  if (args[10].type_index != kTVMFFINone && (args[10].type_index != kTVMFFIInt || args[10].v_int64 < 0)) {
    return jitload_fail("ValueError", "%s[…]: stream must be an address: from 0 to 2**63 - 1", kernel->name);
  }
  memset(config, 0, sizeof *config);
  config->kernel = kernel;
  config->has_grid = args[1].v_int64 != 0;
  config->has_block = args[5].v_int64 != 0;
  for (int i = 0; i < 3; ++i) {
    config->grid[i] = args[2 + i].v_int64;
    config->block[i] = args[6 + i].v_int64;
  }
  config->has_shared_bytes = args[9].type_index != kTVMFFINone;
  config->shared_bytes = config->has_shared_bytes ? args[9].v_int64 : 0;
  config->has_stream = args[10].type_index != kTVMFFINone;
  config->stream = config->has_stream ? (void*)(uintptr_t)args[10].v_int64 : NULL;
  return 0;
}

/* Return a configured function. args: the module, and those of `jitload_read_config`. */
JITLOAD_LOADER_FUNCTION(configure)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  jitload_config* config = (jitload_config*)malloc(sizeof *config);
  if (config == NULL) return jitload_fail("MemoryError", "out of memory");
  TVMFFIObjectHandle function = NULL;
  if (jitload_read_config(jitload_get_module(args), args + 1, config) != 0 ||
      TVMFFIFunctionCreate(config, jitload_configured_call, free, &function) != 0) {
    free(config);
    return -1;
  }
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)function;
  return 0;
}

/* args: (module, kernel index). */
static const jitload_kernel* jitload_get_kernel(const TVMFFIAny* args) {
  return &jitload_get_module(args)->kernels[args[1].v_int64];
}

JITLOAD_LOADER_FUNCTION(metadata)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  return jitload_return_text(jitload_get_kernel(args)->metadata, result);
}

/* Return the address of one of a kernel's cubins, or None after the last. args: (module, kernel index, index of the
 * cubin). */
JITLOAD_LOADER_FUNCTION(image)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  const jitload_kernel* kernel = jitload_get_kernel(args);
  int64_t left = args[2].v_int64;
  for (int32_t i = 0; i < kernel->module->image_count; ++i) {
    if (kernel->module->images[i].group != kernel->group || left-- != 0) continue;
    result->type_index = kTVMFFIInt;
    result->v_int64 = (int64_t)(uintptr_t)kernel->module->images[i].data;
  }
  return 0;
}

/* Load all kernels on a device that already has an active context, so that the first launch need not. */
static void jitload_preload_device(const jitload_driver* driver, const jitload_module* module, int device) {
  jitload_cu_context before = NULL;
  unsigned flags = 0;
  int is_active = 0;
  if (driver->primary_state(device, &flags, &is_active) != JITLOAD_CUDA_SUCCESS || !is_active) return;
  if (jitload_enter_device(driver, module->name, device, &before) == 0) {
    for (int32_t i = 0; i < module->kernel_count; ++i) {
      jitload_slot* slot = NULL;
      const jitload_kernel* kernel = &module->kernels[i];
      /* Dispatchers have no symbol. */
      if (kernel->symbol == NULL || !jitload_has_image(driver, kernel, device)) continue;
      if (jitload_resolve(driver, kernel, device, &slot) != 0) break;
    }
  }
  driver->set_context(before);
}

/* Load kernels in advance. This initialises no driver and creates no context, and errors are ignored: the first launch
 * reports them. args: (module, addresses of the framework's `current_work_stream` and `managed_tensor_allocator`, or
 * 0, and for functions with a `Tune` that of a `jitload_report_fn`). */
JITLOAD_LOADER_FUNCTION(preload)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {
  const jitload_module* module = jitload_get_module(args);
  if (args[1].v_int64 != 0) jitload_stream_source = (jitload_stream_source_fn)(uintptr_t)args[1].v_int64;
  if (args[2].v_int64 != 0) jitload_allocator = (jitload_allocator_fn)(uintptr_t)args[2].v_int64;
  if (num_args > 3) jitload_report = (jitload_report_fn)(uintptr_t)args[3].v_int64;
  int (*count_devices)(int*) = NULL;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == NULL) return 0;
  *(void**)&count_devices = dlsym(library, "cuDeviceGetCount");
  int count = 0;
  /* Before cuInit, the function returns CUDA_ERROR_NOT_INITIALIZED. Then no context is active. */
  if (count_devices == NULL || count_devices(&count) != JITLOAD_CUDA_SUCCESS) return 0;
  const jitload_driver* driver = jitload_get_driver(module->name);
  for (int device = 0; driver != NULL && device < count; ++device) jitload_preload_device(driver, module, device);
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error != NULL) TVMFFIObjectDecRef(error);
  return 0;
}

/* ---- variables of the module ----------------------------------------------------------------------------------- */

static void jitload_free_tensor(DLManagedTensor* self) { free(self); }

static int jitload_find_global(const jitload_driver* driver, const jitload_module* module, const char* symbol,
                               jitload_cu_device device, jitload_cu_address* address, size_t* size) {
  jitload_slot* slot = NULL;
  /* Resolving a kernel loads its image for this device. */
  jitload_kernel unnamed = {};
  unnamed.name = module->name;
  unnamed.module = module;
  if (jitload_get_slot(driver, &unnamed, device, &slot) != 0) return -1;
  const int image = jitload_select_image(driver, &unnamed, device);
  if (image < 0) return -1;
  const jitload_cu_result code = driver->library_global(address, size, module->state->libraries[image], symbol);
  return code == JITLOAD_CUDA_SUCCESS ? 0 : jitload_raise_driver_error(driver, module->name, symbol, code);
}

static int jitload_wrap_global(const TVMFFIAny* args, int32_t num_args, DLDevice device, uint64_t address,
                               TVMFFIAny* result) {
  const int32_t ndim = num_args - 3;
  const size_t extents = sizeof(int64_t) * (size_t)ndim;
  DLManagedTensor* managed = (DLManagedTensor*)calloc(1, sizeof(DLManagedTensor) + 2 * extents);
  if (managed == NULL) return jitload_fail("MemoryError", "out of memory");
  int64_t* shape = (int64_t*)(managed + 1);
  int64_t* strides = shape + ndim;
  int64_t step = 1;
  for (int32_t i = ndim - 1; i >= 0; --i) {
    shape[i] = args[3 + i].v_int64;
    strides[i] = step;
    step *= shape[i];
  }
  managed->dl_tensor.data = (void*)(uintptr_t)address;
  managed->dl_tensor.device = device;
  managed->dl_tensor.ndim = ndim;
  managed->dl_tensor.dtype = args[1].v_dtype;
  managed->dl_tensor.shape = shape;
  managed->dl_tensor.strides = strides;
  managed->deleter = jitload_free_tensor;
  TVMFFIObjectHandle tensor = NULL;
  if (TVMFFITensorFromDLPack(managed, 0, 0, &tensor) != 0) {
    free(managed);
    return -1;
  }
  result->type_index = kTVMFFITensor;
  result->v_obj = (TVMFFIObject*)tensor;
  return 0;
}

/* Return a tensor over a variable on the current device; a library for both CPU and GPU prefers a GPU. args: (module,
 * index of the variable, dtype, size in bytes, *shape); the loader has checked that the size matches dtype and shape. */
JITLOAD_LOADER_FUNCTION(global)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const jitload_module* module = jitload_get_module(args);
  ++args, --num_args;
  const jitload_variable* variable = &module->variables[args[0].v_int64];
  if (module->has_cpu && (module->image_count == 0 || jitload_count_gpus() == 0)) {
    if (variable->on_cpu != NULL) {
      return jitload_wrap_global(args, num_args, DLDevice{kDLCPU, 0}, (uint64_t)(uintptr_t)variable->on_cpu, result);
    }
    return jitload_fail("ValueError",
                        "%s: variable '%s' cannot be reached on the CPU: it is static, or in an anonymous "
                        "namespace", module->name, variable->name);
  }
  const jitload_driver* driver = jitload_get_driver(module->name);
  if (driver == NULL) return -1;
  jitload_cu_device device = 0;
  jitload_cu_context before = NULL; /* a thread without a context keeps the primary one, as after a launch */
  const int has_context = driver->context_device(&device) == JITLOAD_CUDA_SUCCESS;
  if (!has_context && jitload_enter_device(driver, module->name, device = 0, &before) != 0) return -1;
  jitload_cu_address address = 0;
  size_t size = 0;
  if (jitload_find_global(driver, module, variable->symbol, device, &address, &size) != 0) return -1;
  if ((int64_t)size != args[2].v_int64) {
    return jitload_fail("ValueError", "%s: variable '%s' has %zu bytes on the device, not %lld", module->name,
                        variable->name, size, (long long)args[2].v_int64);
  }
  return jitload_wrap_global(args, num_args, DLDevice{kDLCUDA, device}, address, result);
}
