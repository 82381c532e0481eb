/* What the loader asks of a library: its functions' configurations, their kernels beforehand, its variables. */
#include <dlfcn.h>
#include <stdlib.h>

#include "device.h"

static int jitload_return_text(const char* text, TVMFFIAny* result) {
  const TVMFFIByteArray bytes = {text, strlen(text)};
  return TVMFFIStringFromByteArray(&bytes, result);
}

extern "C" int jitload_tell_metadata(intptr_t kernel, const void* args, int32_t num_args, void* result) {
  (void)args, (void)num_args;
  return jitload_return_text(jitload_library.kernels[kernel].metadata, (TVMFFIAny*)result);
}

extern "C" int jitload_tell_doc(intptr_t kernel, const void* args, int32_t num_args, void* result) {
  (void)args, (void)num_args;
  return jitload_return_text(jitload_library.kernels[kernel].doc, (TVMFFIAny*)result);
}

JITLOAD_FOR_LOADER(describe)(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  return jitload_return_text(jitload_library.description, result);
}

static int jitload_configured_call(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)result;
  const jitload_config* config = (const jitload_config*)self;
  return jitload_run(config->kernel, config, args, num_args, NULL);
}

/* (kernel, has_grid, x, y, z, has_block, x, y, z, shared_bytes or None, stream or None); the loader has checked the
 * kinds. */
extern "C" int jitload_read_config(const TVMFFIAny* args, jitload_config* config) {
  const jitload_kernel* kernel = &jitload_library.kernels[args[0].v_int64];
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

/* The configured function for what `jitload_read_config` takes. */
JITLOAD_FOR_LOADER(configure)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  if (num_args != 11) return jitload_fail("TypeError", "_jitload_configure() takes 11 arguments, got %d", (int)num_args);
  jitload_config* config = (jitload_config*)malloc(sizeof *config);
  if (config == NULL) return jitload_fail("MemoryError", "out of memory");
  TVMFFIObjectHandle function = NULL;
  if (jitload_read_config(args, config) != 0 ||
      TVMFFIFunctionCreate(config, jitload_configured_call, free, &function) != 0) {
    free(config);
    return -1;
  }
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)function;
  return 0;
}

/* Resolve every kernel on the devices that are in use already, so that the first launch finds it there. Nothing is
 * started for this: no driver, no context. What fails here fails with its message at the first launch. */
static void jitload_preload_device(const jitload_driver* driver, const jitload_module* module, int device) {
  jitload_cu_context before = NULL;
  unsigned flags = 0;
  int is_active = 0;
  if (driver->primary_state(device, &flags, &is_active) != JITLOAD_CUDA_SUCCESS || !is_active) return;
  if (jitload_enter_device(driver, module->name, device, &before) == 0) {
    for (int32_t i = 0; i < module->kernel_count; ++i) {
      jitload_slot* slot = NULL;
      const jitload_kernel* kernel = &module->kernels[i];
      if (kernel->symbol == NULL || !jitload_suits(driver, kernel, device)) continue; /* a dispatcher has no symbol */
      if (jitload_resolve(driver, kernel, device, &slot) != 0) break;
    }
  }
  driver->set_context(before);
}

/* (addresses of the framework's `current_work_stream` and `managed_tensor_allocator`, or 0) */
JITLOAD_FOR_LOADER(preload)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {
  const jitload_module* module = &jitload_library;
  if (num_args > 0 && args[0].v_int64 != 0) {
    jitload_stream_source = (jitload_stream_source_fn)(uintptr_t)args[0].v_int64;
  }
  if (num_args > 1 && args[1].v_int64 != 0) jitload_allocator = (jitload_allocator_fn)(uintptr_t)args[1].v_int64;
  int (*count_devices)(int*) = NULL;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == NULL) return 0;
  *(void**)&count_devices = dlsym(library, "cuDeviceGetCount");
  int count = 0;
  /* Before cuInit this says CUDA_ERROR_NOT_INITIALIZED, and then no context is active either. */
  if (count_devices == NULL || count_devices(&count) != JITLOAD_CUDA_SUCCESS) return 0;
  const jitload_driver* driver = jitload_get_driver(module->name);
  for (int device = 0; driver != NULL && device < count; ++device) jitload_preload_device(driver, module, device);
  TVMFFIObjectHandle refused = NULL;
  TVMFFIErrorMoveFromRaised(&refused);
  if (refused != NULL) TVMFFIObjectDecRef(refused);
  return 0;
}

/* ---- variables of the module ----------------------------------------------------------------------------------- */

static void jitload_free_tensor(DLManagedTensor* self) { free(self); }

static int jitload_find_global(const jitload_driver* driver, const jitload_module* module, const char* symbol,
                                     jitload_cu_device device, jitload_cu_address* address, size_t* size) {
  jitload_slot* slot = NULL;
  /* Any kernel of the module will do: resolving it loads the image for this device. */
  jitload_kernel stand_in;
  memset(&stand_in, 0, sizeof stand_in);
  stand_in.name = module->name;
  stand_in.module = module;
  const jitload_kernel* kernel = module->kernel_count > 0 ? &module->kernels[0] : &stand_in;
  if (jitload_find_slot(driver, kernel, device, &slot) != 0) return -1;
  const int image = jitload_pick_image(driver, kernel, device);
  if (image < 0) return -1;
  const jitload_cu_result code = driver->library_global(address, size, (*module->state)->libraries[image], symbol);
  return code == JITLOAD_CUDA_SUCCESS ? 0 : jitload_driver_error(driver, module->name, symbol, code);
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

/* (variable number, dtype, size in bytes that dtype and shape make, *shape) -> a tensor over the variable on the
 * current device: of a library for both, on the GPU where there is one. The loader has checked the size. */
JITLOAD_FOR_LOADER(global)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const jitload_module* module = &jitload_library;
  if (num_args < 3) return jitload_fail("TypeError", "_jitload_global() takes at least 3 arguments, got %d", (int)num_args);
  const jitload_variable* variable = &module->variables[args[0].v_int64];
  if (module->cpu_run != NULL && (module->image_count == 0 || jitload_count_gpus() == 0)) {
    if (variable->on_cpu != NULL) {
      return jitload_wrap_global(args, num_args, DLDevice{kDLCPU, 0}, (uint64_t)(uintptr_t)variable->on_cpu, result);
    }
    return jitload_fail("ValueError", "%s: variable '%s' cannot be reached on the CPU: it is static, or in an anonymous "
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
