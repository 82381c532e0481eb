/* A library's kernels on the devices of this process: finding the driver, loading cubins, and the functions that
 * jitload's loader calls.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <jitload/driver.h>

#include "device.h"

/* ---- the driver ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t jitload_lock = PTHREAD_MUTEX_INITIALIZER;
const jitload_driver* jitload_loaded_driver;
int jitload_is_forked;
jitload_stream_source_fn jitload_stream_source;
jitload_allocator_fn jitload_allocator;

static int jitload_is_started; /* set before cuInit, so that a fork during cuInit counts as well */

static void jitload_after_fork(void) {
  jitload_is_forked |= jitload_is_started;
  pthread_mutex_init(&jitload_lock, NULL); /* another thread of the parent may hold it */
}

/* glibc exports no pthread_atfork: it is a static function over __register_atfork. */
static void jitload_watch_forks(void) {
  typedef int (*register_fn)(void (*)(void), void (*)(void), void (*)(void), void*);
  register_fn watch = (register_fn)dlsym(RTLD_DEFAULT, "__register_atfork");
  if (watch == NULL) watch = (register_fn)dlsym(RTLD_DEFAULT, "pthread_atfork");
  if (watch != NULL) watch(NULL, NULL, jitload_after_fork, NULL);
}

/* Look up libcuda's functions and initialise it. On failure set an error and return NULL. */
static const jitload_driver* jitload_start_driver(const char* function, void* library) {
  static jitload_driver driver;
#define JITLOAD_RESOLVE_(field, symbol, parameters)                                                                   \
  *(void**)&driver.field = dlsym(library, symbol);                                                                    \
  if (driver.field == NULL) {                                                                                         \
    jitload_fail("RuntimeError", "%s(): the CUDA driver has no %s: it must support CUDA 12.0 or newer", function, symbol); \
    return NULL;                                                                                                      \
  }
  JITLOAD_DRIVER_FUNCTIONS(JITLOAD_RESOLVE_)
#undef JITLOAD_RESOLVE_
  *(void**)&driver.load_function = dlsym(library, "cuFuncLoad");
  jitload_is_started = 1;
  const jitload_cu_result code = driver.init(0);
  if (code == JITLOAD_CUDA_SUCCESS) return &driver;
  jitload_is_started = 0;
  jitload_raise_driver_error(&driver, function, "the CUDA driver cannot start", code);
  return NULL;
}

const jitload_driver* jitload_load_driver(const char* function) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, jitload_watch_forks); /* before a fork could see the driver half initialised */
  if (jitload_is_forked) {
    jitload_fail("RuntimeError",
                 "%s(): CUDA was used in this process before it forked, and cannot be used in the child; start workers "
                 "with the 'spawn' or 'forkserver' method",
                 function);
    return NULL;
  }
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) {
    jitload_fail("RuntimeError", "%s(): launching needs an NVIDIA driver, and libcuda.so.1 was not found: %s", function,
                 dlerror());
    return NULL;
  }
  pthread_mutex_lock(&jitload_lock);
  const jitload_driver* driver = jitload_loaded_driver;
  if (driver == NULL) driver = jitload_start_driver(function, library);
  __atomic_store_n(&jitload_loaded_driver, driver, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&jitload_lock);
  return driver;
}

/* Make the device's primary context current. `*before` becomes the context to restore, or NULL if there is none. */
int jitload_enter_device(const jitload_driver* driver, const char* function, jitload_cu_device device,
                         jitload_cu_context* before) {
  static jitload_cu_context retained[JITLOAD_MAX_RETAINED_CONTEXTS];
  jitload_cu_context primary = NULL;
  *before = NULL;
  driver->get_context(before);
  jitload_cu_result code = jitload_retain_primary(driver, retained, device, &primary);
  if (code == JITLOAD_CUDA_SUCCESS) code = driver->set_context(primary);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  char action[64];
  snprintf(action, sizeof action, "cannot use cuda:%d", (int)device);
  return jitload_raise_driver_error(driver, function, action, code);
}

/* ---- images and kernels ---------------------------------------------------------------------------------------- */

/* Rank an image for a device; 0 means that the device cannot run it. Any cubin is better than PTX. */
static int jitload_image_rank(const jitload_image* image, int capability) {
  const int is_same = image->capability == capability;
  const int is_family = image->capability / 10 == capability / 10 && image->capability <= capability;
  const int machine_code = image->is_ptx ? 0 : 3000;
  if (image->suffix == 'a') return is_same ? machine_code + 2000 : 0;
  if (image->suffix == 'f') return is_family ? machine_code + 1000 + image->capability : 0;
  return (image->is_ptx ? image->capability <= capability : is_family) ? machine_code + image->capability : 0;
}

/* Return the index of the best image for a device, or -1. */
static int jitload_best_image(const jitload_kernel* kernel, int capability) {
  const jitload_module* module = kernel->module;
  int best = -1, best_rank = 0;
  for (int i = 0; i < module->image_count; ++i) {
    if (module->images[i].group != kernel->group) continue;
    const int rank = jitload_image_rank(&module->images[i], capability);
    if (rank > best_rank) best_rank = rank, best = i;
  }
  return best;
}

static int jitload_capability(const jitload_driver* driver, jitload_cu_device device) {
  int major = 0, minor = 0;
  driver->device_attribute(&major, JITLOAD_DEVICE_MAJOR, device);
  driver->device_attribute(&minor, JITLOAD_DEVICE_MINOR, device);
  return 10 * major + minor;
}

int jitload_has_image(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device) {
  return jitload_best_image(kernel, jitload_capability(driver, device)) >= 0;
}

int jitload_select_image(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device) {
  const jitload_module* module = kernel->module;
  const int capability = jitload_capability(driver, device);
  const int best = jitload_best_image(kernel, capability);
  if (best >= 0) return best;
  char names[256] = "";
  size_t used = (size_t)snprintf(names, sizeof names, "%s", module->has_cpu ? "cpu, " : "");
  for (int i = 0; i < module->image_count && used < sizeof names; ++i) {
    const jitload_image* image = &module->images[i];
    if (image->group != kernel->group) continue;
    const char suffix[2] = {(char)image->suffix, 0};
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s_%d%s", i ? ", " : "",
                             image->is_ptx ? "compute" : "sm", (int)image->capability, suffix);
  }
  jitload_fail("RuntimeError",
               "%s(): this library has %s; this GPU, cuda:%d, is sm_%d: build it with arch=\"sm_%d\"",
               kernel->name, names, (int)device, capability, capability);
  return -1;
}

/* Create the module's state. The caller holds the lock. */
static jitload_state* jitload_create_state(const jitload_driver* driver, const char* function,
                                           const jitload_module* module) {
  int count = 0;
  jitload_cu_result code = driver->device_count(&count);
  if (code == JITLOAD_CUDA_SUCCESS && count < 1) code = JITLOAD_CUDA_ERROR_NO_DEVICE;
  if (code != JITLOAD_CUDA_SUCCESS) {
    jitload_raise_driver_error(driver, function, "no CUDA device can be used", code);
    return NULL;
  }
  /* A module that has variables but no kernels needs a slot, too. */
  const size_t kernels = module->kernel_count > 0 ? (size_t)module->kernel_count : 1;
  const size_t slot_bytes = (size_t)count * kernels * sizeof(jitload_slot);
  jitload_state* state =
      (jitload_state*)calloc(1, sizeof *state + slot_bytes + (size_t)module->image_count * sizeof(jitload_cu_library));
  if (state == NULL) {
    jitload_fail("MemoryError", "%s(): out of memory", function);
    return NULL;
  }
  state->slots = (jitload_slot*)(state + 1);
  state->libraries = (jitload_cu_library*)((char*)state->slots + slot_bytes);
  state->device_count = count;
  __atomic_store_n(&((jitload_module*)module)->state, state, __ATOMIC_RELEASE);
  return state;
}

/* Load the image and the kernel. The caller holds the lock, with the device's context current and capture mode
 * relaxed. */
static int jitload_resolve_locked(const jitload_driver* driver, const jitload_kernel* kernel, jitload_state* state,
                                  jitload_cu_device device, jitload_slot* slot) {
  const int image = jitload_select_image(driver, kernel, device);
  if (image < 0) return -1;
  jitload_cu_result code = JITLOAD_CUDA_SUCCESS;
  jitload_cu_library* library = &state->libraries[image];
  if (*library == NULL) {
    code = driver->library_load(library, kernel->module->images[image].data, NULL, NULL, 0, NULL, NULL, 0);
    if (code != JITLOAD_CUDA_SUCCESS) {
      const int is_ptx = kernel->module->images[image].is_ptx;
      return jitload_raise_driver_error(
          driver, kernel->name, is_ptx ? "the driver cannot compile the PTX" : "the driver cannot load the cubin", code);
    }
  }
  if (kernel->symbol == NULL) return 0;
  jitload_cu_kernel handle = NULL;
  void* function = NULL;
  code = driver->library_kernel(&handle, *library, kernel->symbol);
  if (code == JITLOAD_CUDA_SUCCESS) code = driver->kernel_function(&function, handle);
  if (code == JITLOAD_CUDA_SUCCESS && driver->load_function != NULL) code = driver->load_function(function);
  if (code != JITLOAD_CUDA_SUCCESS) {
    return jitload_raise_driver_error(driver, kernel->name, "the driver cannot load the kernel", code);
  }
  int static_shared = 0;
  driver->kernel_attribute(&static_shared, JITLOAD_FUNCTION_STATIC_SHARED, handle, device);
  if ((kernel->flags & JITLOAD_HAS_CLUSTER) ||
      jitload_declared_cluster_size(driver, handle, device) > JITLOAD_PORTABLE_CLUSTER) {
    driver->set_kernel_attribute(JITLOAD_FUNCTION_NON_PORTABLE_CLUSTER, 1, handle, device);
  }
  slot->dynamic_shared_limit = JITLOAD_DEFAULT_SHARED - static_shared;
  __atomic_store_n(&slot->kernel, handle, __ATOMIC_RELEASE);
  return 0;
}

/* Load a kernel on a device whose context is current. Relaxed capture mode allows this during a graph capture, in which
 * the driver otherwise rejects loading code. */
int jitload_resolve(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                    jitload_slot** slot) {
  int mode = JITLOAD_CAPTURE_RELAXED;
  int failed = 0;
  pthread_mutex_lock(&jitload_lock);
  jitload_state* state = kernel->module->state;
  if (state == NULL) state = jitload_create_state(driver, kernel->name, kernel->module);
  if (state == NULL) {
    failed = -1;
  } else if (device >= state->device_count) {
    failed = jitload_fail("ValueError", "%s(): there is no cuda:%d; this process sees %d device%s", kernel->name,
                          (int)device, (int)state->device_count, state->device_count == 1 ? "" : "s");
  } else {
    *slot = &state->slots[kernel->index * state->device_count + device];
    if ((*slot)->kernel == NULL) {
      driver->exchange_capture_mode(&mode);
      failed = jitload_resolve_locked(driver, kernel, state, device, *slot);
      driver->exchange_capture_mode(&mode);
    }
  }
  pthread_mutex_unlock(&jitload_lock);
  return failed;
}

/* Raise the kernel's limit of dynamic shared memory to the device's maximum, so that it changes at most once. */
int jitload_increase_shared_limit(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                                  jitload_slot* slot, int64_t bytes) {
  int max_shared = 0, static_shared = 0, mode = JITLOAD_CAPTURE_RELAXED;
  jitload_cu_result code = jitload_shared_limit(driver, slot->kernel, device, &max_shared, &static_shared);
  if (code != JITLOAD_CUDA_SUCCESS) {
    return jitload_raise_driver_error(driver, kernel->name, "cannot read the shared memory limit", code);
  }
  const int64_t limit = max_shared - static_shared;
  if (bytes > limit) {
    return jitload_fail("ValueError", "%s(): " JITLOAD_TOO_MUCH_SHARED, kernel->name, (long long)bytes, (int)device,
                        max_shared, static_shared);
  }
  pthread_mutex_lock(&jitload_lock);
  driver->exchange_capture_mode(&mode);
  code = driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, (int)limit, slot->kernel, device);
  driver->exchange_capture_mode(&mode);
  if (code == JITLOAD_CUDA_SUCCESS) __atomic_store_n(&slot->dynamic_shared_limit, limit, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&jitload_lock);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  return jitload_raise_driver_error(driver, kernel->name, "cannot raise the shared memory limit", code);
}

/* ---- functions for the loader ---------------------------------------------------------------------------------- */

static int jitload_return_text(const char* text, TVMFFIAny* result) {
  const TVMFFIByteArray bytes = {text, strlen(text)};
  return TVMFFIStringFromByteArray(&bytes, result);
}

extern "C" int jitload_get_metadata(intptr_t kernel, const void* args, int32_t num_args, void* result) {
  (void)args, (void)num_args;
  return jitload_return_text(jitload_library_record.module.kernels[kernel].metadata, (TVMFFIAny*)result);
}

extern "C" int jitload_get_doc(intptr_t kernel, const void* args, int32_t num_args, void* result) {
  (void)args, (void)num_args;
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

/* Open a record in memory; return the address of its module. The record is copied, together with the images, and never
 * freed, because functions and the driver may refer to it. args: the address and the size of the record, and those of
 * each image. */
JITLOAD_LOADER_FUNCTION(open)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  enum { kAlignment = 64 };
  const int32_t count = num_args / 2;
  size_t size = 0;
  for (int32_t i = 0; i < count; ++i) size += ((size_t)args[2 * i + 1].v_int64 + 2 * kAlignment) & -(size_t)kAlignment;
  const jitload_record* source = count != 0 ? (const jitload_record*)(uintptr_t)args[0].v_int64 : NULL;
  if (source == NULL || args[1].v_int64 < (int64_t)sizeof *source || memcmp(source->magic, "jitload", 8) != 0 ||
      source->abi != JITLOAD_ABI || source->size > args[1].v_int64) {
    return jitload_fail("ValueError", "the record was not made for this release of jitload, or is damaged");
  }
  char* memory = NULL;
  if (posix_memalign((void**)&memory, kAlignment, size) != 0) return jitload_fail("MemoryError", "out of memory");
  jitload_record* record = (jitload_record*)memory;
  const void** addresses = (const void**)__builtin_alloca(sizeof(void*) * (size_t)count);
  for (int32_t i = 0; i < count; ++i) {
    memcpy(memory, (const void*)(uintptr_t)args[2 * i].v_int64, (size_t)args[2 * i + 1].v_int64);
    memory[args[2 * i + 1].v_int64] = '\0'; /* ends PTX */
    addresses[i] = memory;
    memory += ((size_t)args[2 * i + 1].v_int64 + 2 * kAlignment) & -(size_t)kAlignment;
  }
  jitload_open_record(record, addresses + 1);
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
  if (config->kernel->host != NULL) return jitload_call_host(config->kernel, config, args, num_args, result);
  return jitload_run(config->kernel, config, args, num_args, NULL);
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
JITLOAD_LOADER_FUNCTION(configure)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  if (num_args != 12) {
    return jitload_fail("TypeError", "_jitload_configure() takes 12 arguments, got %d", (int)num_args);
  }
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

/* Return a kernel of a record as a function, its metadata, or its doc. args: (module, kernel index). */
static const jitload_kernel* jitload_get_kernel(const TVMFFIAny* args) {
  return &jitload_get_module(args)->kernels[args[1].v_int64];
}

static int jitload_call_kernel(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {
  return jitload_run((const jitload_kernel*)self, NULL, args, num_args, NULL);
}

JITLOAD_LOADER_FUNCTION(function)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionCreate((void*)jitload_get_kernel(args), jitload_call_kernel, NULL, &function) != 0) return -1;
  result->type_index = kTVMFFIFunction;
  result->v_obj = (TVMFFIObject*)function;
  return 0;
}

JITLOAD_LOADER_FUNCTION(metadata)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny* result) {
  return jitload_return_text(jitload_get_kernel(args)->metadata, result);
}

/* Return the address of one of a kernel's cubins, or None after the last. args: (module, kernel index, index of the
 * cubin). */
JITLOAD_LOADER_FUNCTION(image)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  if (num_args != 3) return jitload_fail("TypeError", "_jitload_image() takes 3 arguments, got %d", (int)num_args);
  const jitload_kernel* kernel = &jitload_get_module(args)->kernels[args[1].v_int64];
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
 * 0). */
JITLOAD_LOADER_FUNCTION(preload)(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  const jitload_module* module = jitload_get_module(args);
  if (args[1].v_int64 != 0) jitload_stream_source = (jitload_stream_source_fn)(uintptr_t)args[1].v_int64;
  if (args[2].v_int64 != 0) jitload_allocator = (jitload_allocator_fn)(uintptr_t)args[2].v_int64;
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
  /* Resolving any kernel loads the image for this device. Without kernels, an empty record stands for one. */
  jitload_kernel empty;
  memset(&empty, 0, sizeof empty);
  empty.name = module->name;
  empty.module = module;
  const jitload_kernel* kernel = module->kernel_count > 0 ? &module->kernels[0] : &empty;
  if (jitload_get_slot(driver, kernel, device, &slot) != 0) return -1;
  const int image = jitload_select_image(driver, kernel, device);
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
  if (num_args < 4) {
    return jitload_fail("TypeError", "_jitload_global() takes at least 4 arguments, got %d", (int)num_args);
  }
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
