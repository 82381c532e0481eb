/* From a device number to a kernel that can be launched there: libcuda, contexts, images, shared-memory limits.
 *
 * Internal to the runtime. A module's state is made at its first launch and kept for good: a launch reads it without
 * a lock, and whatever changes it holds one.
 */
#ifndef JITLOAD_DEVICE_H_
#define JITLOAD_DEVICE_H_

#include <jitload/driver.h>

#include "arguments.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One kernel on one device; `kernel` is set last. */
typedef struct jitload_slot {
  jitload_cu_kernel kernel;
  int64_t dynamic_allowed; /* dynamic shared memory that may be asked for right now, in bytes */
} jitload_slot;

/* In one piece with what it points to. */
struct jitload_state {
  int32_t device_count;
  jitload_slot* slots;           /* by kernel, then device */
  jitload_cu_library* libraries; /* by image */
};

/* What a call gives in place of what the `Launch` declares: `f[grid, block, shared_bytes, stream]`. */
typedef struct jitload_config {
  const jitload_kernel* kernel;
  int64_t grid[3];
  int64_t block[3];
  int64_t shared_bytes;
  jitload_cu_stream stream;
  int32_t has_grid, has_block, has_shared_bytes, has_stream;
} jitload_config;

/* A framework's current stream: DLPack's exchange table has it as `current_work_stream`. */
typedef int (*jitload_stream_source_fn)(int32_t device_type, int32_t device_id, void** stream);

/* A launch on its way to the driver. */
typedef struct jitload_request {
  const jitload_kernel* kernel;
  const jitload_config* config; /* NULL for a call as declared */
  jitload_plan plan;
  jitload_stream_source_fn stream_source;
  void** params;
  const TVMFFIAny* args;
  int32_t device; /* of the tensors; -1 where there are none */
} jitload_request;

/* A framework's allocator: DLPack's exchange table has it as `managed_tensor_allocator`. */
typedef int (*jitload_allocator_fn)(DLTensor* prototype, struct DLManagedTensorVersioned** out, void* context,
                                    void (*set_error)(void* context, const char* kind, const char* message));

/* What the loader registers: of torch, for kernels without a tensor and for scratch memory. */
extern jitload_stream_source_fn jitload_stream_source;
extern jitload_allocator_fn jitload_allocator;

extern const jitload_driver* jitload_driver_found; /* once set, never changed */
extern int jitload_is_forked;

/* Each returns 0, or sets the error and returns -1 (NULL for the driver); `jitload_suits` only tells. */
const jitload_driver* jitload_load_driver(const char* who);
int jitload_enter_device(const jitload_driver* driver, const char* who, jitload_cu_device device,
                         jitload_cu_context* before);
/* The image of the module that suits the device, or -1 with an error. */
int jitload_pick_image(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device);
int jitload_resolve(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                    jitload_slot** slot);
int jitload_suits(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device);
int jitload_allow_shared(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                         jitload_slot* slot, int64_t wanted);

jitload_cu_result jitload_launch_with_attributes(const jitload_driver* driver, const jitload_request* request,
                                                 jitload_cu_kernel function, jitload_cu_stream stream);

/* Set the error for a refused launch and return -1. */
int jitload_refuse_expression(const jitload_kernel* kernel, const jitload_eval* eval);
int jitload_refuse_missing(const jitload_kernel* kernel);
int jitload_refuse_extent(const jitload_kernel* kernel, const char* what, const int64_t* extent, const char* rule);
int jitload_driver_error(const jitload_driver* driver, const char* who, const char* what, jitload_cu_result code);
int jitload_launch_error(const jitload_request* request, const jitload_slot* slot, jitload_cu_device device,
                         jitload_cu_result code);

/* `stream_source` names the stream where no config does; NULL asks tvm-ffi. */
int jitload_run(const jitload_kernel* kernel, const jitload_config* config, const TVMFFIAny* args, int32_t num_args,
                jitload_stream_source_fn stream_source);

/* A launch on the CPU: 0, -1 with an error, or -2 where Python's own is set. */
int jitload_launch_on_cpu(const jitload_request* request);

/* For a kernel with code for the CPU: a call without a tensor is for the GPU where there is one and code for it. False
 * where the tensors are on a GPU and there is no code for any. */
int jitload_choose_place(jitload_request* request);
int jitload_count_gpus(void);

/* Read what `_jitload_configure` takes into a config; 0, or the error is set and -1. */
int jitload_read_config(const TVMFFIAny* args, jitload_config* config);

#ifdef __cplusplus
}
#endif

/* Begin a function of every library that jitload's loader calls, `_jitload_<name>`. */
#define JITLOAD_FOR_LOADER(name) extern "C" __attribute__((visibility("default"))) int __tvm_ffi__jitload_##name

static inline const jitload_driver* jitload_get_driver(const char* who) {
  const jitload_driver* driver = __atomic_load_n(&jitload_driver_found, __ATOMIC_ACQUIRE);
  return JITLOAD_LIKELY(driver != NULL && !jitload_is_forked) ? driver : jitload_load_driver(who);
}

static inline int jitload_find_slot(const jitload_driver* driver, const jitload_kernel* kernel, jitload_cu_device device,
                                    jitload_slot** slot) {
  const jitload_state* state = __atomic_load_n(kernel->module->state, __ATOMIC_ACQUIRE);
  if (JITLOAD_LIKELY(state != NULL && device < state->device_count)) {
    *slot = &state->slots[kernel->index * state->device_count + device];
    if (JITLOAD_LIKELY(__atomic_load_n(&(*slot)->kernel, __ATOMIC_ACQUIRE) != NULL)) return 0;
  }
  return jitload_resolve(driver, kernel, device, slot);
}

#endif /* JITLOAD_DEVICE_H_ */
