/* Chooses a kernel of a function with several: by the dtypes of the tensors, or by a key, which launch expressions compute
 * and whose variants are in a table for each model of GPU. choice.cc has what is rarely needed for that.
 */
#ifndef JITLOAD_CHOICE_H_
#define JITLOAD_CHOICE_H_

#include "runtime.h"

/* How a variant was chosen: it is the first, because the key was not tuned; for the key; for the nearest key. */
enum { JITLOAD_FIRST, JITLOAD_TUNED, JITLOAD_NEAREST };

enum { JITLOAD_DEVICES = 64, JITLOAD_REMEMBERED = 256 };

/* A choice's tables by device, with that of the CPU at the end, and the variants of keys that are in no table. */
typedef struct jitload_choice_state {
  const jitload_table* tables[JITLOAD_DEVICES + 1];
  uint64_t remembered[JITLOAD_REMEMBERED]; /* the high bits of a hash, and the position of a variant plus 1 */
} jitload_choice_state;

/* Find the table for a device, which is empty if there is none. Return NULL with an error. */
const jitload_table* jitload_find_table(const jitload_kernel* kernel, int32_t device);
/* Return the position of the variant for a key that is in no table. */
int32_t jitload_choose_untuned(const jitload_kernel* kernel, const jitload_table* table, const int64_t* key,
                               uint64_t hash, int32_t device);
/* Return the index of the table of the device that a call without tensors runs on. */
int32_t jitload_find_default_device(const jitload_kernel* kernel);
int jitload_raise_key_error(const jitload_kernel* kernel, const jitload_eval* eval);

/* Return the index of the table of a call's device. */
static inline int32_t jitload_find_call_device(const jitload_kernel* kernel, const TVMFFIAny* args) {
  for (int32_t i = 0; i < kernel->argument_count; ++i) {
    const DLTensor* tensor = jitload_get_tensor(&args[i]);
    if (tensor == NULL) continue;
    return jitload_is_cuda(tensor->device) ? tensor->device.device_id & (JITLOAD_DEVICES - 1) : JITLOAD_DEVICES;
  }
  return jitload_find_default_device(kernel);
}

static inline const jitload_table* jitload_table_of(const jitload_kernel* kernel, int32_t device) {
  const jitload_choice_state* state = __atomic_load_n(&kernel->choice->state, __ATOMIC_ACQUIRE);
  const jitload_table* table = state != NULL ? __atomic_load_n(&state->tables[device], __ATOMIC_ACQUIRE) : NULL;
  return JITLOAD_LIKELY(table != NULL) ? table : jitload_find_table(kernel, device);
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

/* What a call has chosen by its key: how, and the key. */
typedef struct jitload_chosen {
  int32_t how;
  int32_t key_count;
  int64_t key[JITLOAD_MAX_KEYS];
} jitload_chosen;

static inline uint64_t jitload_hash_key(const int64_t* key, int32_t count) {
  uint64_t hash = 0;
  for (int32_t i = 0; i < count; ++i) hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0x9E3779B97F4A7C15);
  return hash;
}

/* Return the position of the variant for a key plus 1, or 0. */
static inline int32_t jitload_find_key(const jitload_table* table, const int64_t* key, int32_t count, uint64_t hash) {
  const uint32_t mask = (1u << table->slot_bits) - 1;
  for (uint32_t slot = (uint32_t)(hash >> (64 - table->slot_bits));; slot = (slot + 1) & mask) {
    const jitload_number* found = &table->slots[(size_t)slot * (size_t)(count + 1)];
    if (found->value == 0) return 0;
    int32_t i = 0;
    while (i < count && found[i + 1].value == key[i]) ++i;
    if (i == count) return (int32_t)found->value;
  }
}

/* Return the position of the variant for a call's key, or -1 with an error. `chosen` may be NULL. */
static inline int32_t jitload_choose_by_key(const jitload_kernel* kernel, const TVMFFIAny* args,
                                            jitload_chosen* chosen) {
  const jitload_choice* choice = kernel->choice;
  if (choice->table_count == 0 && chosen == NULL) return 0;
  int64_t key[JITLOAD_MAX_KEYS];
  jitload_plan plan;
  jitload_eval eval;
  plan.values = key;
  eval.args = args;
  if (__builtin_expect(jitload_evaluate(choice->program, &eval, &plan) != JITLOAD_EVAL_OK, 0)) {
    /* An argument of another type is left to the variant, which rejects it. */
    if (eval.error == JITLOAD_EVAL_NOT_A_TENSOR || eval.error == JITLOAD_EVAL_INTEGER) return 0;
    return jitload_raise_key_error(kernel, &eval);
  }
  if (chosen != NULL) {
    chosen->key_count = choice->key_count;
    memcpy(chosen->key, key, sizeof key);
    if (choice->table_count == 0) return 0;
  }
  const int32_t device = jitload_find_call_device(kernel, args);
  const jitload_table* table = jitload_table_of(kernel, device);
  if (__builtin_expect(table == NULL, 0)) return -1;
  const uint64_t hash = jitload_hash_key(key, choice->key_count);
  const int32_t position = jitload_find_key(table, key, choice->key_count, hash);
  if (chosen != NULL) {
    const int has_nearest = choice->nearest != JITLOAD_NEAREST_NONE;
    chosen->how = position != 0 ? JITLOAD_TUNED : has_nearest ? JITLOAD_NEAREST : JITLOAD_FIRST;
  }
  return JITLOAD_LIKELY(position != 0) ? position - 1 : jitload_choose_untuned(kernel, table, key, hash, device);
}

/* Choose a kernel of a function with several. Return NULL with an error. */
static inline const jitload_kernel* jitload_choose(const jitload_kernel* kernel, const TVMFFIAny* args,
                                                   jitload_chosen* chosen) {
  if (kernel->choice != NULL) {
    const int32_t position = jitload_choose_by_key(kernel, args, chosen);
    return position < 0 ? NULL : &kernel->module->kernels[kernel->first_variant + position];
  }
  const jitload_kernel* variant = jitload_choose_variant(kernel, args);
  if (variant == NULL) jitload_raise_variant_error(kernel, args);
  return variant;
}

#endif /* JITLOAD_CHOICE_H_ */
