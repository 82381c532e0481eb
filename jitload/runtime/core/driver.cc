/* A library's kernels on the devices of this process: finding the driver, loading cubins, and limits of shared memory. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime.h"

/* ---- the driver ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t jitload_lock = PTHREAD_MUTEX_INITIALIZER;
const jitload_driver* jitload_loaded_driver;
int jitload_is_forked;

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
  char names[256] = ""; /* each with ", " at its end */
  if (module->has_cpu) strcpy(names, "cpu, ");
  for (int i = 0; i < module->image_count; ++i) {
    const jitload_image* image = &module->images[i];
    const char suffix[2] = {(char)image->suffix, 0};
    char name[32];
    snprintf(name, sizeof name, "%s_%d%s, ", image->is_ptx ? "compute" : "sm", (int)image->capability, suffix);
    const int is_own = image->group == kernel->group || kernel->variant_count != 0;
    if (is_own && strstr(names, name) == NULL) strncat(names, name, sizeof names - strlen(names) - 1);
  }
  jitload_fail("RuntimeError",
               "%s(): this library has %.*s; this GPU, cuda:%d, is sm_%d: build it with arch=\"sm_%d\"",
               kernel->name, (int)strlen(names) - 2, names, (int)device, capability, capability);
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

/* Load the image and the kernel. The caller holds the lock, and the device's context is current. */
static int jitload_resolve_locked(const jitload_driver* driver, const jitload_kernel* kernel, jitload_state* state,
                                  jitload_cu_device device, jitload_slot* slot) {
  const jitload_relaxed_capture relaxed(driver);
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
  int64_t cluster[3];
  if ((kernel->flags & JITLOAD_HAS_CLUSTER) ||
      jitload_declared_cluster(driver, handle, device, cluster) > JITLOAD_PORTABLE_CLUSTER) {
    driver->set_kernel_attribute(JITLOAD_FUNCTION_NON_PORTABLE_CLUSTER, 1, handle, device);
  }
  slot->dynamic_shared_limit = JITLOAD_DEFAULT_SHARED - static_shared;
  __atomic_store_n(&slot->kernel, handle, __ATOMIC_RELEASE);
  return 0;
}

/* Load a kernel on a device whose context is current. */
int jitload_resolve(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                    jitload_slot** slot) {
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
    if ((*slot)->kernel == NULL) failed = jitload_resolve_locked(driver, kernel, state, device, *slot);
  }
  pthread_mutex_unlock(&jitload_lock);
  return failed;
}

/* Raise the kernel's limit of dynamic shared memory to the device's maximum, so that it changes at most once. */
int jitload_increase_shared_limit(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                                  jitload_slot* slot, int64_t bytes) {
  int max_shared = 0, static_shared = 0;
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
  {
    const jitload_relaxed_capture relaxed(driver);
    code = driver->set_kernel_attribute(JITLOAD_FUNCTION_MAX_DYNAMIC_SHARED, (int)limit, slot->kernel, device);
  }
  if (code == JITLOAD_CUDA_SUCCESS) __atomic_store_n(&slot->dynamic_shared_limit, limit, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&jitload_lock);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  return jitload_raise_driver_error(driver, kernel->name, "cannot raise the shared memory limit", code);
}
