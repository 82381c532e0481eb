/* Chooses a kernel of a function with several: by the dtypes of the tensors, or by a key, which launch expressions compute
 * and whose variants are in a table for each model of GPU. choice.cc has what is rarely needed for that.
 */
#pragma once

#include "recent.h"

/* How a variant was chosen: it is the first, because the key was not tuned; for the key; for the nearest key. */
enum { JITLOAD_FIRST, JITLOAD_TUNED, JITLOAD_NEAREST };

enum { JITLOAD_DEVICES = 64, JITLOAD_REMEMBERED = 1024 };

/* Called for keys that were not tuned. `gpu` is "" if there is no table for it. The loader sets it. */
typedef void (*jitload_report_fn)(const char* function, const int64_t* key, int32_t count, const char* gpu, int32_t how);
extern jitload_report_fn jitload_report;

/* What a choice remembers, for each device the last call, that of the CPU at the end. */
typedef struct jitload_choice_state {
  jitload_recent<23> recent[JITLOAD_DEVICES + 1]; /* positions of variants */
  uint64_t remembered[JITLOAD_REMEMBERED]; /* of keys: the high bits of a hash, and a position plus 1 */
  jitload_inputs inputs;                   /* of the key's expressions */
} jitload_choice_state;

/* Find the position of the variant for a call's key, or return -1 with an error. `chosen` gets how it was chosen and the
 * key, unless it is NULL. */
int32_t jitload_find_position(const jitload_kernel* kernel, const TVMFFIAny* args, int64_t* chosen);
/* Return the index of the table of the device that a call without tensors runs on. */
int32_t jitload_find_default_device(const jitload_kernel* kernel);

/* Return the index of the table of a call's device. */
static inline int32_t jitload_find_call_device(const jitload_kernel* kernel, const TVMFFIAny* args) {
  for (int32_t i = 0; i < kernel->argument_count; ++i) {
    const DLTensor* tensor = jitload_get_tensor(&args[i]);
    if (tensor == NULL) continue;
    return jitload_is_cuda(tensor->device) ? tensor->device.device_id & (JITLOAD_DEVICES - 1) : JITLOAD_DEVICES;
  }
  return jitload_find_default_device(kernel);
}

static inline int jitload_fits_dtypes(const jitload_kernel* kernel, const TVMFFIAny* args) {
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->kind != JITLOAD_POINTER || param->argument < 0) continue;
    const DLTensor* tensor = jitload_get_tensor(&args[param->argument]);
    if (tensor != NULL && !jitload_dtype_fits(param, tensor->dtype)) return 0;
  }
  return 1;
}

/* Choose the kernel whose pointers fit the dtypes of the tensors. Return NULL if there is none. */
static inline const jitload_kernel* jitload_choose_variant(const jitload_kernel* kernel, const TVMFFIAny* args) {
  const jitload_kernel* variants = &kernel->module->kernels[kernel->first_variant];
  for (int32_t i = 0; i < kernel->variant_count; ++i) {
    if (jitload_fits_dtypes(&variants[i], args)) return &variants[i];
  }
  return NULL;
}

/* Return the position of the variant for a call's key, or -1 with an error. */
static inline int32_t jitload_choose_by_key(const jitload_kernel* kernel, const TVMFFIAny* args) {
  const jitload_choice* choice = kernel->choice;
  const jitload_choice_state* state = __atomic_load_n(&choice->state, __ATOMIC_ACQUIRE);
  if (JITLOAD_LIKELY(state != NULL)) {
    int64_t position;
    const auto visit_inputs = [&](auto visit) { return jitload_visit_inputs(&state->inputs, args, visit); };
    const auto* recent = &state->recent[jitload_find_call_device(kernel, args)];
    if (JITLOAD_LIKELY(jitload_recall(recent, visit_inputs, [&](auto visit) { visit(&position); }))) return (int32_t)position;
  }
  return jitload_find_position(kernel, args, NULL);
}

/* Choose a kernel of a function with several. Return NULL with an error. */
static inline const jitload_kernel* jitload_choose(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                   int64_t* chosen) {
  if (kernel->choice != NULL) {
    const int32_t position =
        chosen == NULL ? jitload_choose_by_key(kernel, args) : jitload_find_position(kernel, args, chosen);
    return position < 0 ? NULL : &kernel->module->kernels[kernel->first_variant + position];
  }
  const jitload_kernel* variant = jitload_choose_variant(kernel, args);
  if (variant == NULL) jitload_raise_variant_error(kernel, args);
  return variant;
}
