/* What the runtime's files share: the state of kernels on devices, the records of a launch, and error functions.
 *
 * A module's state is created at its first launch and never freed. Launches read it without a lock; changes take one.
 */
#pragma once

#include <jitload/driver.h>
#include <stdlib.h>

#include "arguments.h"

/* A kernel on one device. `kernel` is set last: it publishes the slot to other threads. */
typedef struct jitload_slot {
  jitload_cu_kernel kernel;
  int64_t dynamic_shared_limit; /* bytes of dynamic shared memory that a launch may use without raising the limit */
} jitload_slot;

/* A module's kernels and libraries on the devices, allocated together with the arrays. */
struct jitload_state {
  int32_t device_count;
  jitload_slot* slots;           /* [kernel][device] */
  jitload_cu_library* libraries; /* [image] */
};

/* The configuration of a call, `f[grid, block, shared_bytes, stream]`, which overrides the `Launch`. Without one, all is 0. */
typedef struct jitload_config {
  const jitload_kernel* kernel;
  int64_t grid[3];
  int64_t block[3];
  int64_t shared_bytes;
  jitload_cu_stream stream;
  int32_t has_grid, has_block, has_shared_bytes, has_stream;
} jitload_config;

/* Returns a framework's current stream: `current_work_stream` of DLPack's exchange table. */
typedef int (*jitload_stream_source_fn)(int32_t device_type, int32_t device_id, void** stream);

/* The arguments and the configuration of a launch. */
typedef struct jitload_request {
  const jitload_kernel* kernel;
  const jitload_config* config;
  jitload_plan plan;
  jitload_stream_source_fn stream_source;
  void** params;
  uint64_t* values; /* what the parameters that are no structures point to */
  const TVMFFIAny* args;
  int32_t device; /* the device of the tensors; -1 without tensors */
  struct __jitload_result* host_result; /* where a host function leaves its result */
  int64_t programs;   /* of a Triton kernel */
  uint64_t hidden[2]; /* its hidden pointers */
  int32_t may_ask_framework; /* whether to ask torch for its current stream if tvm-ffi has none */
} jitload_request;

/* A framework's allocator: `managed_tensor_allocator` of DLPack's exchange table. */
typedef int (*jitload_allocator_fn)(DLTensor* prototype, struct DLManagedTensorVersioned** out, void* context,
                                    void (*set_error)(void* context, const char* kind, const char* message));

/* torch's functions, registered by the loader: for calls without tensors and for scratch memory. */
extern jitload_stream_source_fn jitload_stream_source;
extern jitload_allocator_fn jitload_allocator;

extern const jitload_driver* jitload_loaded_driver; /* NULL before the first use; never changes afterwards */
extern int jitload_is_forked;

/* Each returns 0, or sets an error and returns -1 (jitload_load_driver: NULL). */
const jitload_driver* jitload_load_driver(const char* function);
int jitload_enter_device(const jitload_driver* driver, const char* function, jitload_cu_device device,
                         jitload_cu_context* before);
/* Return the index of the image that suits the device best, or set an error and return -1. */
int jitload_select_image(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device);
int jitload_resolve(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                    jitload_slot** slot);
/* Return whether an image suits the device. Never sets an error. */
int jitload_has_image(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device);
int jitload_increase_shared_limit(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                                  jitload_slot* slot, int64_t bytes);

jitload_cu_result jitload_launch_with_attributes(const jitload_driver* driver, const jitload_request* request,
                                                 jitload_cu_kernel function, jitload_cu_stream stream);

int jitload_raise_expression_error(const jitload_kernel* kernel, const jitload_eval* eval);
int jitload_raise_outside_error(const jitload_request* request, const jitload_eval* eval);
int jitload_raise_missing_grid(const jitload_kernel* kernel, int has_grid, int has_block);
int jitload_raise_extent_error(const jitload_kernel* kernel, const char* field, const int64_t* extent,
                               const char* rule);
int jitload_raise_driver_error(const jitload_driver* driver, const char* function, const char* action,
                               jitload_cu_result code);
int jitload_raise_launch_error(const jitload_request* request, const jitload_slot* slot, jitload_cu_device device,
                               jitload_cu_result code);

/* Make a call. Unless the config has a stream, `stream_source` selects one, or tvm-ffi if that is NULL. `result` becomes
 * what a host function returns. */
int jitload_run(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args, int32_t num_args,
                jitload_stream_source_fn stream_source, TVMFFIAny* result);

/* Call a Triton kernel. Only libraries of Triton kernels are linked with this function. */
__attribute__((weak, visibility("hidden"))) int jitload_run_triton(const jitload_kernel* kernel, const jitload_config* config,
                                                                   const TVMFFIAny* args,
                                                                   jitload_stream_source_fn stream_source);

/* Call a host function. */
int jitload_call_host(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args,
                      TVMFFIAny* result);

/* Launch on the CPU. Return 0, -1 with tvm-ffi's error set, or JITLOAD_INTERRUPTED. */
int jitload_launch_on_cpu(const jitload_request* request);

/* For a kernel with code for the CPU: choose the CPU for a call without tensors, unless there is a GPU and the library
 * has code for GPUs. Return 0 if the tensors are on a GPU, but the library has no code for GPUs. */
int jitload_choose_device(jitload_request* request);
int jitload_count_gpus(void);

/* Read the arguments of `_jitload_configure` that follow the module. */
int jitload_read_config(const jitload_module* module, const TVMFFIAny* args, jitload_config* config);

/* Begins the definition of `_jitload_<name>`, a function that jitload's loader calls. */
#define JITLOAD_LOADER_FUNCTION(name) extern "C" __attribute__((visibility("default"))) int __tvm_ffi__jitload_##name

static inline const jitload_driver* jitload_get_driver(const char* function) {
  const jitload_driver* driver = __atomic_load_n(&jitload_loaded_driver, __ATOMIC_ACQUIRE);
  return JITLOAD_LIKELY(driver != NULL && !jitload_is_forked) ? driver : jitload_load_driver(function);
}

/* Return what a place points to. The first thread makes it: zeros, to which `initialize` is applied. NULL means that there
 * is no memory. */
template <class T, class Initialize>
static inline T* jitload_create_once(T** place, Initialize initialize) {
  T* existing = __atomic_load_n(place, __ATOMIC_ACQUIRE);
  if (JITLOAD_LIKELY(existing != NULL)) return existing;
  T* created = (T*)calloc(1, sizeof *created);
  if (created == NULL) return NULL;
  initialize(created);
  if (__atomic_compare_exchange_n(place, &existing, created, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return created;
  free(created);
  return existing;
}

static inline int jitload_get_slot(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                                   jitload_slot** slot) {
  const jitload_state* state = __atomic_load_n(&kernel->module->state, __ATOMIC_ACQUIRE);
  if (JITLOAD_LIKELY(state != NULL && device < state->device_count)) {
    *slot = &state->slots[kernel->index * state->device_count + device];
    if (JITLOAD_LIKELY(__atomic_load_n(&(*slot)->kernel, __ATOMIC_ACQUIRE) != NULL)) return 0;
  }
  return jitload_resolve(driver, kernel, device, slot);
}
