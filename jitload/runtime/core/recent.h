/* Remembers what was computed from the inputs of a recent call, so that a call with the same inputs computes nothing:
 * the variant that a key chooses, and a launch's plan, all of whose checks have passed.
 */
#pragma once

#include "runtime.h"

enum { JITLOAD_KEEP_EVERY = 64 };

/* Which arguments programs of the evaluator read. */
typedef struct jitload_inputs {
  uint64_t arguments; /* as bits */
  int32_t reads_strides;
  int32_t reads_many; /* more arguments than there are bits, so that nothing is kept */
} jitload_inputs;

/* Add the arguments that a program reads. */
void jitload_note_inputs(const jitload_kernel* kernel, const jitload_op* program, jitload_inputs* inputs);

/* The inputs of a recent call, and then its results. The version is 0 at first, and odd while a thread writes them. */
template <int32_t kCount>
struct jitload_recent {
  uint32_t version;
  uint32_t misses; /* calls with other inputs. Few of them are kept, so that calls with several inputs are fast. */
  int64_t numbers[kCount];
};

/* Visit the inputs of a call: of each argument that is read, the type and the value, or the shape of a tensor and the
 * size of its elements, and its strides if any are read. The numbers before the end of this sequence say how many
 * follow. Stop if `visit` returns false, or at an object, which may change. Return whether all were visited. */
template <class Visit>
static JITLOAD_ALWAYS_INLINE bool jitload_visit_inputs(const jitload_inputs* inputs, const TVMFFIAny* args, Visit visit) {
  if (inputs->reads_many) return false;
  for (uint64_t rest = inputs->arguments; rest != 0; rest &= rest - 1) {
    const TVMFFIAny* value = &args[__builtin_ctzll(rest)];
    const DLTensor* tensor = jitload_get_tensor(value);
    if (tensor == NULL) {
      if (value->type_index > kTVMFFIOpaquePtr || !visit(value->type_index) || !visit(value->v_int64)) return false;
      continue;
    }
    const int has_strides = inputs->reads_strides && tensor->strides != NULL;
    const int64_t element = ((int64_t)tensor->dtype.bits * tensor->dtype.lanes) << 32;
    if (!visit(~(element | (int64_t)tensor->ndim << 1 | has_strides))) return false; /* negative, unlike a type */
    for (int32_t i = 0; i < tensor->ndim; ++i) {
      if (!visit(tensor->shape[i]) || (has_strides && !visit(tensor->strides[i]))) return false;
    }
  }
  return true;
}

/* Read the results if the inputs are those of the recent call. `visit_inputs` calls a function with each input until it
 * returns false, and `visit_results` one with a pointer to each result. */
template <int32_t kCount, class VisitInputs, class VisitResults>
static JITLOAD_ALWAYS_INLINE bool jitload_recall(const jitload_recent<kCount>* recent, VisitInputs visit_inputs,
                                                 VisitResults visit_results) {
  const uint32_t version = __atomic_load_n(&recent->version, __ATOMIC_ACQUIRE);
  if (version == 0 || version % 2 != 0) return false;
  const int64_t* number = recent->numbers;
  const auto next = [&number] { return __atomic_load_n(number++, __ATOMIC_RELAXED); };
  if (!visit_inputs([&](int64_t input) { return next() == input; })) return false;
  visit_results([&](int64_t* result) { *result = next(); });
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n(&recent->version, __ATOMIC_RELAXED) == version;
}

/* Count a call with other inputs than the recent one. Return whether to keep it. */
template <int32_t kCount>
static inline bool jitload_counts_as_recent(jitload_recent<kCount>* recent) {
  const uint32_t misses = __atomic_load_n(&recent->misses, __ATOMIC_RELAXED);
  __atomic_store_n(&recent->misses, misses + 1, __ATOMIC_RELAXED); /* threads may lose a count */
  return misses % JITLOAD_KEEP_EVERY == 0;
}

/* Keep the inputs of a call, of which there may be too many, and its results, unless another thread is doing so. */
template <int32_t kCount, class VisitInputs, class VisitResults>
static inline void jitload_keep(jitload_recent<kCount>* recent, VisitInputs visit_inputs, VisitResults visit_results) {
  int64_t numbers[kCount] = {};
  int32_t count = 0;
  const auto is_kept = [&](int64_t number) { return count != kCount && (numbers[count++] = number, true); };
  bool has_room = visit_inputs(is_kept);
  visit_results([&](const int64_t* result) { has_room = has_room && is_kept(*result); });
  uint32_t version = __atomic_load_n(&recent->version, __ATOMIC_RELAXED);
  if (!has_room || version % 2 != 0) return;
  if (!__atomic_compare_exchange_n(&recent->version, &version, version + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return;
  __atomic_thread_fence(__ATOMIC_RELEASE);
  for (int32_t i = 0; i < kCount; ++i) __atomic_store_n(&recent->numbers[i], numbers[i], __ATOMIC_RELAXED);
  __atomic_store_n(&recent->version, version + 2, __ATOMIC_RELEASE);
}
