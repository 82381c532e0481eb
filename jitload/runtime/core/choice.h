/* Chooses a kernel of a function with several: by the dtypes of the tensors, or by a key, which launch expressions compute
 * and whose variants are in a table for each model of GPU. choice.cc has what is rarely needed for that.
 */
#ifndef JITLOAD_CHOICE_H_
#define JITLOAD_CHOICE_H_

#include "runtime.h"

/* How a variant was chosen: it is the first, because the key was not tuned; for the key; for the nearest key. */
enum { JITLOAD_FIRST, JITLOAD_TUNED, JITLOAD_NEAREST };

enum { JITLOAD_DEVICES = 64, JITLOAD_REMEMBERED = 256, JITLOAD_MAX_INPUTS = 22, JITLOAD_KEEP_EVERY = 16 };

/* The position of the variant for a recent key, and the arguments from which the key was computed, or the shapes and
 * strides of tensors. The version is 0 at first, and odd while a thread writes the inputs and the position. */
typedef struct jitload_recent_key {
  uint32_t version;
  uint32_t misses; /* calls with other inputs. Few of them are kept, so that calls with several keys in turn are fast. */
  int64_t position;
  int64_t inputs[JITLOAD_MAX_INPUTS];
} jitload_recent_key;

/* The state of a choice, with a place for each device, that of the CPU at the end. */
typedef struct jitload_choice_state {
  const jitload_table* tables[JITLOAD_DEVICES + 1];
  jitload_recent_key recent[JITLOAD_DEVICES + 1];
  uint64_t remembered[JITLOAD_REMEMBERED]; /* of keys in no table: the high bits of a hash, and a position plus 1 */
  uint64_t arguments;                      /* those that the key's expressions read, as bits */
  int32_t reads_strides;
  int32_t reads_many; /* more arguments than there are bits, so that no key is kept */
} jitload_choice_state;

/* What a call has chosen by its key: how, and the key. */
typedef struct jitload_chosen {
  int32_t how;
  int32_t key_count;
  int64_t key[JITLOAD_MAX_KEYS];
} jitload_chosen;

/* Find the position of the variant for a call's key, or return -1 with an error. `chosen` may be NULL. */
int32_t jitload_find_position(const jitload_kernel* kernel, const TVMFFIAny* args, jitload_chosen* chosen);
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

/* Visit the inputs of a call's key: of each argument that the key reads, the type and the value, or the shape of a tensor,
 * and its strides if the key reads any. Stop if `visit` returns false. Return whether all were visited. */
template <class Visit>
static inline bool jitload_visit_inputs(const jitload_choice_state* state, const TVMFFIAny* args, Visit visit) {
  for (uint64_t rest = state->arguments; rest != 0; rest &= rest - 1) {
    const TVMFFIAny* value = &args[__builtin_ctzll(rest)];
    const DLTensor* tensor = jitload_get_tensor(value);
    if (tensor == NULL) {
      if (!visit(value->type_index) || !visit(value->v_int64)) return false;
      continue;
    }
    const int has_strides = state->reads_strides && tensor->strides != NULL;
    if (!visit(~(int64_t)(2 * tensor->ndim + has_strides))) return false; /* negative, unlike the index of a type */
    for (int32_t i = 0; i < tensor->ndim; ++i) {
      if (!visit(tensor->shape[i]) || (has_strides && !visit(tensor->strides[i]))) return false;
    }
  }
  return true;
}

/* Return the position for the recent key if the call has the same inputs, otherwise -1. */
static inline int32_t jitload_recall_position(const jitload_choice_state* state, int32_t device, const TVMFFIAny* args) {
  const jitload_recent_key* recent = &state->recent[device];
  const uint32_t version = __atomic_load_n(&recent->version, __ATOMIC_ACQUIRE);
  if (version == 0 || version % 2 != 0) return -1;
  const int64_t* input = recent->inputs;
  const auto is_same = [&input](int64_t value) { return __atomic_load_n(input++, __ATOMIC_RELAXED) == value; };
  if (!jitload_visit_inputs(state, args, is_same)) return -1;
  const int64_t position = __atomic_load_n(&recent->position, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n(&recent->version, __ATOMIC_RELAXED) == version ? (int32_t)position : -1;
}

/* Return the position of the variant for a call's key, or -1 with an error. */
static inline int32_t jitload_choose_by_key(const jitload_kernel* kernel, const TVMFFIAny* args) {
  const jitload_choice* choice = kernel->choice;
  if (choice->table_count == 0) return 0;
  const jitload_choice_state* state = __atomic_load_n(&choice->state, __ATOMIC_ACQUIRE);
  int32_t position = -1;
  if (JITLOAD_LIKELY(state != NULL)) position = jitload_recall_position(state, jitload_find_call_device(kernel, args), args);
  return JITLOAD_LIKELY(position >= 0) ? position : jitload_find_position(kernel, args, NULL);
}

/* Choose a kernel of a function with several. Return NULL with an error. */
static inline const jitload_kernel* jitload_choose(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                   jitload_chosen* chosen) {
  if (kernel->choice != NULL) {
    const int32_t position =
        chosen == NULL ? jitload_choose_by_key(kernel, args) : jitload_find_position(kernel, args, chosen);
    return position < 0 ? NULL : &kernel->module->kernels[kernel->first_variant + position];
  }
  const jitload_kernel* variant = jitload_choose_variant(kernel, args);
  if (variant == NULL) jitload_raise_variant_error(kernel, args);
  return variant;
}

#endif /* JITLOAD_CHOICE_H_ */
