/* Choosing a variant by key, off the fast path: the tables of devices, and keys that were not tuned. */
#include "choice.h"

jitload_report_fn jitload_report;

int32_t jitload_find_default_device(const jitload_kernel* kernel) {
  if (kernel->cpu != NULL && (kernel->module->image_count == 0 || jitload_count_gpus() == 0)) return JITLOAD_DEVICES;
  const jitload_driver* driver = jitload_get_driver(kernel->name);
  jitload_cu_device current = 0;
  if (driver == NULL || driver->context_device(&current) != JITLOAD_CUDA_SUCCESS) current = 0;
  return current & (JITLOAD_DEVICES - 1);
}

void jitload_note_inputs(const jitload_kernel* kernel, const jitload_op* program, jitload_inputs* inputs) {
  for (const jitload_op* op = program; op->code != JITLOAD_OP_END; ++op) {
    int64_t argument = op->operand, other = op->operand;
    switch (op->code) {
      case JITLOAD_OP_SAME_SHAPE: other = op->value; break;
      case JITLOAD_OP_STRIDE: inputs->reads_strides = 1; break;
      case JITLOAD_OP_COMPUTED: /* in checks of accesses, also a parameter that the call passes */
        if ((argument = other = kernel->params[op->operand].argument) < 0) continue;
        break;
      case JITLOAD_OP_SKIP_IF_INSIDE:
      case JITLOAD_OP_OUTSIDE: /* the strides of contiguous tensors follow from their shapes */
        if (argument < 0) continue;
        inputs->reads_strides |= jitload_param_of(kernel, argument)->flags & JITLOAD_STRIDED;
        break;
      case JITLOAD_OP_NDIM:
      case JITLOAD_OP_NUMEL:
      case JITLOAD_OP_SIZE:
      case JITLOAD_OP_INT:
      case JITLOAD_OP_IS_NONE: break;
      default: continue;
    }
    inputs->reads_many |= argument >= 64 || other >= 64;
    inputs->arguments |= UINT64_C(1) << (argument & 63) | UINT64_C(1) << (other & 63);
  }
}

/* Return the table for a device, or NULL with an error. For a GPU without a table, it is the last one, which has the keys
 * of all GPUs, or an empty one; both have no name. */
static const jitload_table* jitload_find_table(const jitload_kernel* kernel, int32_t device) {
  static const jitload_table empty = {"", NULL, 0};
  const jitload_choice* choice = kernel->choice;
  char gpu[256] = "cpu";
  if (device != JITLOAD_DEVICES) {
    const jitload_driver* driver = jitload_get_driver(kernel->name);
    if (driver == NULL) return NULL;
    const jitload_cu_result code = driver->device_name(gpu, sizeof gpu, device);
    if (code != JITLOAD_CUDA_SUCCESS) {
      jitload_raise_driver_error(driver, kernel->name, "the model of the GPU cannot be read", code);
      return NULL;
    }
  }
  for (int32_t i = 0; i < choice->table_count; ++i) {
    if (strcmp(choice->tables[i].gpu, gpu) == 0 || *choice->tables[i].gpu == '\0') return &choice->tables[i];
  }
  return &empty;
}

/* Return the position of the variant for a key in a table, and set how it was chosen. The distance of logarithms is
 * compared as the product of ratios, which is the same on all machines. */
static int32_t jitload_search_table(const jitload_choice* choice, const jitload_table* table, const int64_t* key, int32_t* how) {
  const int32_t count = choice->key_count, stride = count + 1;
  int32_t best = 0;
  double shortest = __builtin_huge_val();
  *how = JITLOAD_FIRST;
  for (const jitload_number* row = table->rows; row < table->rows + table->row_count * stride; row += stride) {
    if (memcmp(row + 1, key, sizeof *key * (size_t)count) == 0) {
      *how = *table->gpu != '\0' ? JITLOAD_TUNED : JITLOAD_NEAREST;
      return (int32_t)row->value;
    }
    if (!choice->takes_nearest) continue;
    double distance = 1;
    for (int32_t k = 0; k < count; ++k) {
      const double a = (double)key[k], b = (double)row[k + 1].value;
      const double low = __builtin_fabs(a) < 1 ? 1 : __builtin_fabs(a), high = __builtin_fabs(b) < 1 ? 1 : __builtin_fabs(b);
      distance *= (a < 0) != (b < 0) ? __builtin_huge_val() : low < high ? high / low : low / high;
    }
    if (*how == JITLOAD_FIRST || distance < shortest) {
      shortest = distance, best = (int32_t)row->value;
      *how = JITLOAD_NEAREST;
    }
  }
  return best;
}

int32_t jitload_find_position(const jitload_kernel* kernel, const TVMFFIAny* args, int64_t* chosen) {
  const jitload_choice* choice = kernel->choice;
  int64_t key[JITLOAD_MAX_KEYS];
  jitload_plan plan;
  jitload_eval eval;
  plan.values = key;
  eval.args = args;
  if (jitload_evaluate(choice->program, &eval, &plan) != JITLOAD_EVAL_OK) {
    /* An argument of another type is left to the variant, which rejects it. */
    if (eval.error == JITLOAD_EVAL_NOT_A_TENSOR || eval.error == JITLOAD_EVAL_INTEGER) return 0;
    jitload_kernel named = *kernel;
    named.expressions = choice->expressions;
    return jitload_raise_expression_error(&named, &eval);
  }
  if (chosen != NULL) memcpy(chosen + 1, key, sizeof *key * (size_t)choice->key_count);
  jitload_choice_state* state = jitload_create_once((jitload_choice_state**)&choice->state, [&](jitload_choice_state* made) {
    jitload_note_inputs(kernel, choice->program, &made->inputs);
  });
  if (state == NULL) return jitload_fail("MemoryError", "%s(): out of memory", kernel->name);
  const int32_t device = jitload_find_call_device(kernel, args);
  const uint64_t position_mask = 0x3fff; /* there are at most 10,000 variants, _MAX_VARIANTS of request/tune.py */
  uint64_t hash = 0;
  const int32_t count = choice->table_count != 0 ? choice->key_count : 0; /* without tables, all keys are alike */
  for (int32_t i = 0; i < count; ++i) hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0x9E3779B97F4A7C15);
  hash ^= (uint64_t)(device + 1) << 14;
  uint64_t* place = &state->remembered[((hash >> 32) + (uint64_t)device) & (JITLOAD_REMEMBERED - 1)];
  const uint64_t remembered = __atomic_load_n(place, __ATOMIC_RELAXED);
  int32_t position = (int32_t)(remembered & position_mask) - 1;
  if (chosen != NULL || position < 0 || ((remembered ^ hash) & ~position_mask) != 0) {
    int32_t how;
    const jitload_table* table = jitload_find_table(kernel, device);
    if (table == NULL) return -1;
    position = jitload_search_table(choice, table, key, &how);
    __atomic_store_n(place, (hash & ~position_mask) | (uint64_t)(position + 1), __ATOMIC_RELAXED);
    if (chosen != NULL) {
      *chosen = how;
    } else if (how != JITLOAD_TUNED && jitload_report != NULL) {
      jitload_report(kernel->name, key, choice->key_count, table->gpu, how);
    }
  }
  const auto visit_inputs = [&](auto visit) { return jitload_visit_inputs(&state->inputs, args, visit); };
  const int64_t result = position;
  jitload_recent<23>* recent = &state->recent[device];
  if (jitload_counts_as_recent(recent)) jitload_keep(recent, visit_inputs, [&](auto visit) { visit(&result); });
  return position;
}
