/* Evaluates launch expressions; see expression.h. */
#include <jitload/expression.h>

#include "arguments.h"

static __attribute__((cold, noinline)) int jitload_eval_fail(const jitload_op* program, const jitload_op* op,
                                                             jitload_eval* e, int error, int64_t left, int64_t right) {
  e->error = error;
  e->step = op;
  e->error_expression = 0;
  for (; program < op; ++program) {
    const int code = program->code;
    e->error_expression += code == JITLOAD_OP_STORE || code == JITLOAD_OP_SET || code == JITLOAD_OP_REQUIRE;
  }
  e->left = left;
  e->right = right;
  return error;
}

/* Return the index of an axis, which may be negative, or -1 if the tensor has no such axis. */
static inline int32_t jitload_find_axis(const DLTensor* tensor, int64_t axis) {
  if (axis < -(int64_t)tensor->ndim || axis >= tensor->ndim) return -1;
  return (int32_t)(axis < 0 ? axis + tensor->ndim : axis);
}

static inline int jitload_have_same_shape(const DLTensor* a, const DLTensor* b) {
  int32_t axis = 0;
  while (axis < a->ndim && axis < b->ndim && a->shape[axis] == b->shape[axis]) ++axis;
  return axis == a->ndim && axis == b->ndim;
}

/* Return the number of bytes from a tensor's address on to the end of its last element. None has 0 bytes. The memory
 * behind an address, or around a tensor with a negative stride, is not limited. */
static inline int64_t jitload_count_bytes(const TVMFFIAny* value) {
  if (value->type_index == kTVMFFINone) return 0;
  const DLTensor* tensor = jitload_get_tensor(value);
  if (tensor == NULL) return INT64_MAX;
  int64_t begin, end;
  jitload_find_memory(tensor, &begin, &end);
  return begin < 0 ? INT64_MAX : end;
}

static inline int jitload_compares(int64_t comparison, int64_t a, int64_t b) {
  switch (comparison) {
    case JITLOAD_OP_LT: return a < b;
    case JITLOAD_OP_LE: return a <= b;
    case JITLOAD_OP_GT: return a > b;
    case JITLOAD_OP_GE: return a >= b;
    case JITLOAD_OP_EQ: return a == b;
    default: return a != b;
  }
}

int jitload_evaluate(const jitload_op* program, jitload_eval* e, jitload_plan* plan) {
  int64_t stack[JITLOAD_EVAL_STACK];
  int64_t* top = stack; /* behind the last value */
  int64_t compared_left = 0, compared_right = 0;
  int compared = JITLOAD_EVAL_REQUIREMENT; /* what was compared last, as the error of a requirement */
#define FAIL(error, left, right) return jitload_eval_fail(program, op, e, JITLOAD_EVAL_##error, left, right)
#define CHECKED(operation, a, b, result) \
  if (__builtin_##operation##_overflow(a, b, result)) FAIL(OVERFLOW, a, b)
#define TENSOR(tensor)                                                                          \
  const DLTensor* tensor = jitload_get_tensor((const TVMFFIAny*)e->args + op->operand);         \
  if (tensor == NULL) FAIL(NOT_A_TENSOR, op->operand, 0)
#define AXIS(tensor, i)                                     \
  TENSOR(tensor);                                           \
  const int32_t i = jitload_find_axis(tensor, top[-1]);     \
  if (i < 0) FAIL(AXIS, top[-1], tensor->ndim)
/* The right operand is the top of the stack, or a constant. */
#define OPERANDS(a, b)                                          \
  const int64_t b = op->operand ? op->value : *--top;           \
  const int64_t a = top[-1]
#define ARITHMETIC(operation) {            \
    OPERANDS(a, b);                        \
    CHECKED(operation, a, b, &top[-1]);    \
    break;                                 \
  }
  for (const jitload_op* op = program;; ++op) {
    switch (op->code) {
      case JITLOAD_OP_END: return JITLOAD_EVAL_OK;
      case JITLOAD_OP_STORE: {
        const int32_t slot = op->operand;
        *(slot < JITLOAD_FIRST_VALUE ? &plan->grid[slot] : &plan->values[slot - JITLOAD_FIRST_VALUE]) = *--top;
        break;
      }
      case JITLOAD_OP_SET: plan->grid[op->operand] = op->value; break;
      case JITLOAD_OP_SKIP_GRID: op += plan->needs_grid ? 0 : op->operand; break;
      case JITLOAD_OP_SKIP_BLOCK: op += plan->needs_block ? 0 : op->operand; break;
      case JITLOAD_OP_SKIP_SHARED: op += plan->needs_shared_bytes ? 0 : op->operand; break;
      case JITLOAD_OP_CONSTANT: *top++ = op->value; break;
      case JITLOAD_OP_COMPUTED: *top++ = plan->values[op->operand]; break;
      case JITLOAD_OP_INT: {
        const TVMFFIAny* value = (const TVMFFIAny*)e->args + op->operand;
        if (value->type_index != kTVMFFIInt && value->type_index != kTVMFFIBool) FAIL(INTEGER, op->operand, 0);
        *top++ = value->v_int64;
        break;
      }
      case JITLOAD_OP_IS_NONE: *top++ = ((const TVMFFIAny*)e->args + op->operand)->type_index == kTVMFFINone; break;
      case JITLOAD_OP_NDIM: {
        TENSOR(tensor);
        *top++ = tensor->ndim;
        break;
      }
      case JITLOAD_OP_NUMEL: {
        TENSOR(tensor);
        int64_t count = !jitload_is_empty(tensor);
        /* With an extent of 0, the product of the others may overflow. */
        for (int32_t i = 0; count != 0 && i < tensor->ndim; ++i) {
          const int64_t before = count;
          CHECKED(mul, before, tensor->shape[i], &count);
        }
        *top++ = count;
        break;
      }
      case JITLOAD_OP_SIZE: {
        AXIS(tensor, i);
        top[-1] = tensor->shape[i];
        break;
      }
      case JITLOAD_OP_STRIDE: { /* in elements */
        AXIS(tensor, i);
        int64_t stride = tensor->strides != NULL ? tensor->strides[i] : 1;
        /* A tensor without strides is row-major. Extents of 0 count as 1, as in torch. */
        for (int32_t j = tensor->strides != NULL ? i : tensor->ndim - 1; j > i; --j) {
          const int64_t before = stride, extent = tensor->shape[j] > 1 ? tensor->shape[j] : 1;
          CHECKED(mul, before, extent, &stride);
        }
        top[-1] = stride;
        break;
      }
      case JITLOAD_OP_ADD: ARITHMETIC(add)
      case JITLOAD_OP_SUB: ARITHMETIC(sub)
      case JITLOAD_OP_MUL: ARITHMETIC(mul)
      case JITLOAD_OP_FLOORDIV:
      case JITLOAD_OP_CEIL_DIV: {
        OPERANDS(a, b);
        if (b == 0) FAIL(DIVISION_BY_ZERO, a, b);
        if (b == -1 && a == INT64_MIN) FAIL(OVERFLOW, a, b);
        const int is_inexact = a % b != 0, is_negative = (a < 0) != (b < 0);
        top[-1] = a / b + (op->code == JITLOAD_OP_CEIL_DIV ? is_inexact && !is_negative : -(is_inexact && is_negative));
        break;
      }
      case JITLOAD_OP_MOD: {
        OPERANDS(a, b);
        if (b == 0) FAIL(DIVISION_BY_ZERO, a, b);
        const int64_t remainder = b == -1 ? 0 : a % b; /* INT64_MIN % -1 traps */
        top[-1] = remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
        break;
      }
      case JITLOAD_OP_MIN: {
        OPERANDS(a, b);
        top[-1] = b < a ? b : a;
        break;
      }
      case JITLOAD_OP_MAX: {
        OPERANDS(a, b);
        top[-1] = b > a ? b : a;
        break;
      }
      case JITLOAD_OP_NEG: {
        const int64_t value = top[-1];
        CHECKED(sub, 0, value, &top[-1]);
        break;
      }
      case JITLOAD_OP_NEXT_POWER_OF_2: {
        const int64_t n = top[-1];
        if (n > INT64_C(1) << 62) FAIL(OVERFLOW, n, 0);
        top[-1] = n <= 1 ? n == 1 : INT64_C(1) << (64 - __builtin_clzll((unsigned long long)n - 1));
        break;
      }
      case JITLOAD_OP_NOT: top[-1] = top[-1] == 0; break;
      case JITLOAD_OP_CHAIN: {
        const int64_t a = top[-2], b = *--top;
        compared = JITLOAD_EVAL_COMPARED, compared_left = a, compared_right = b;
        const int holds = jitload_compares(JITLOAD_OP_LT + op->value, a, b);
        top[-1] = holds ? b : 0;
        op += holds ? 0 : op->operand;
        break;
      }
      case JITLOAD_OP_AND:
      case JITLOAD_OP_OR:
        if ((top[-1] != 0) == (op->code == JITLOAD_OP_OR)) {
          op += op->operand;
        } else {
          --top;
        }
        break;
      case JITLOAD_OP_SKIP_IF_NOT: op += *--top != 0 ? 0 : op->operand; break;
      case JITLOAD_OP_SKIP: op += op->operand; break;
      case JITLOAD_OP_SAME_SHAPE: {
        TENSOR(tensor);
        const DLTensor* other = jitload_get_tensor((const TVMFFIAny*)e->args + op->value);
        if (other == NULL) FAIL(NOT_A_TENSOR, op->value, 0);
        compared = JITLOAD_EVAL_COMPARED_SHAPES, compared_left = op->operand, compared_right = op->value;
        *top++ = jitload_have_same_shape(tensor, other);
        break;
      }
      case JITLOAD_OP_REQUIRE:
        if (__builtin_expect(*--top == 0, 0)) {
          return jitload_eval_fail(program, op, e, compared, compared_left, compared_right);
        }
        compared = JITLOAD_EVAL_REQUIREMENT;
        break;
      case JITLOAD_OP_PLANNED: *top++ = plan->grid[op->operand]; break;
      case JITLOAD_OP_SKIP_IF_INSIDE: {
        const int64_t end = *--top;
        op += end <= jitload_count_bytes((const TVMFFIAny*)e->args + op->operand) ? op->value : 0;
        break;
      }
      case JITLOAD_OP_OUTSIDE: {
        const int64_t end = *--top, first = *--top;
        const int64_t size = op->operand >= 0 ? jitload_count_bytes((const TVMFFIAny*)e->args + op->operand)
                                              : op->value != 0 ? op->value : plan->shared_bytes;
        if (first < 0 ? size != INT64_MAX : end > size) FAIL(OUTSIDE, first, end);
        break;
      }
      default: { /* a comparison */
        OPERANDS(a, b);
        compared = JITLOAD_EVAL_COMPARED, compared_left = a, compared_right = b;
        top[-1] = jitload_compares(op->code, a, b);
      }
    }
  }
}
