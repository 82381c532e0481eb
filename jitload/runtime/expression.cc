/* The arithmetic of launch expressions; see expression.h. */
#include <jitload/expression.h>

#include "arguments.h"

static __attribute__((cold, noinline)) int64_t jitload_eval_fail(jitload_eval* e, int32_t error, int64_t left,
                                                                 int64_t right) {
  if (e->error == JITLOAD_EVAL_OK) {
    e->error = error;
    e->error_expression = e->expression;
    e->left = left;
    e->right = right;
  }
  return 0;
}

extern "C" int64_t jitload_add(jitload_eval* e, int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? jitload_eval_fail(e, JITLOAD_EVAL_OVERFLOW, a, b) : sum;
}

extern "C" int64_t jitload_sub(jitload_eval* e, int64_t a, int64_t b) {
  int64_t difference;
  return __builtin_sub_overflow(a, b, &difference) ? jitload_eval_fail(e, JITLOAD_EVAL_OVERFLOW, a, b) : difference;
}

extern "C" int64_t jitload_mul(jitload_eval* e, int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? jitload_eval_fail(e, JITLOAD_EVAL_OVERFLOW, a, b) : product;
}

extern "C" int64_t jitload_neg(jitload_eval* e, int64_t a) { return jitload_sub(e, 0, a); }

extern "C" int64_t jitload_floordiv(jitload_eval* e, int64_t a, int64_t b) {
  if (b == 0) return jitload_eval_fail(e, JITLOAD_EVAL_DIVISION_BY_ZERO, a, b);
  if (b == -1 && a == INT64_MIN) return jitload_eval_fail(e, JITLOAD_EVAL_OVERFLOW, a, b);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

extern "C" int64_t jitload_ceil_div(jitload_eval* e, int64_t a, int64_t b) {
  if (b == 0) return jitload_eval_fail(e, JITLOAD_EVAL_DIVISION_BY_ZERO, a, b);
  if (b == -1 && a == INT64_MIN) return jitload_eval_fail(e, JITLOAD_EVAL_OVERFLOW, a, b);
  return a / b + (a % b != 0 && (a < 0) == (b < 0));
}

extern "C" int64_t jitload_mod(jitload_eval* e, int64_t a, int64_t b) {
  if (b == 0) return jitload_eval_fail(e, JITLOAD_EVAL_DIVISION_BY_ZERO, a, b);
  if (b == -1) return 0; /* INT64_MIN % -1 traps */
  const int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

extern "C" int64_t jitload_min(int64_t a, int64_t b) { return b < a ? b : a; }

extern "C" int64_t jitload_max(int64_t a, int64_t b) { return b > a ? b : a; }

extern "C" int64_t jitload_next_power_of_2(jitload_eval* e, int64_t n) {
  if (n <= 1) return n == 1;
  if (n > INT64_C(1) << 62) return jitload_eval_fail(e, JITLOAD_EVAL_OVERFLOW, n, 0);
  return INT64_C(1) << (64 - __builtin_clzll((unsigned long long)n - 1));
}

static inline const TVMFFIAny* jitload_eval_argument(const jitload_eval* e, int32_t arg) {
  return (const TVMFFIAny*)e->args + arg;
}

extern "C" int64_t jitload_int(jitload_eval* e, int32_t arg) {
  const TVMFFIAny* value = jitload_eval_argument(e, arg);
  if (value->type_index == kTVMFFIInt || value->type_index == kTVMFFIBool) return value->v_int64;
  return jitload_eval_fail(e, JITLOAD_EVAL_INTEGER, arg, 0);
}

static inline const DLTensor* jitload_eval_tensor(jitload_eval* e, int32_t arg) {
  const DLTensor* tensor = jitload_get_tensor(jitload_eval_argument(e, arg));
  if (!tensor) jitload_eval_fail(e, JITLOAD_EVAL_NOT_A_TENSOR, arg, 0);
  return tensor;
}

/* Return the index of an axis, which may be negative, or -1 if the tensor has no such axis. */
static inline int32_t jitload_eval_axis(jitload_eval* e, const DLTensor* tensor, int64_t axis) {
  if (axis >= -(int64_t)tensor->ndim && axis < tensor->ndim) return (int32_t)(axis < 0 ? axis + tensor->ndim : axis);
  jitload_eval_fail(e, JITLOAD_EVAL_AXIS, axis, tensor->ndim);
  return -1;
}

extern "C" int64_t jitload_ndim(jitload_eval* e, int32_t arg) {
  const DLTensor* tensor = jitload_eval_tensor(e, arg);
  return tensor ? tensor->ndim : 0;
}

extern "C" int64_t jitload_numel(jitload_eval* e, int32_t arg) {
  const DLTensor* tensor = jitload_eval_tensor(e, arg);
  int64_t count = 1;
  if (!tensor) return 0;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] == 0) return 0; /* return early: the product of the other extents may overflow */
  }
  for (int32_t i = 0; i < tensor->ndim; ++i) count = jitload_mul(e, count, tensor->shape[i]);
  return count;
}

extern "C" int64_t jitload_size(jitload_eval* e, int32_t arg, int64_t axis) {
  const DLTensor* tensor = jitload_eval_tensor(e, arg);
  const int32_t i = tensor ? jitload_eval_axis(e, tensor, axis) : -1;
  return i < 0 ? 0 : tensor->shape[i];
}

/* A tensor without strides is row-major. Extents of 0 count as 1, as in torch. */
extern "C" int64_t jitload_stride(jitload_eval* e, int32_t arg, int64_t axis) {
  const DLTensor* tensor = jitload_eval_tensor(e, arg);
  const int32_t i = tensor ? jitload_eval_axis(e, tensor, axis) : -1;
  int64_t stride = 1;
  if (i < 0) return 0;
  if (tensor->strides) return tensor->strides[i];
  for (int32_t j = tensor->ndim - 1; j > i; --j) stride = jitload_mul(e, stride, jitload_max(tensor->shape[j], 1));
  return stride;
}
