/* The arithmetic of launch expressions: Python's integer semantics, checked to fit in 64 bits.
 *
 * Written in the common subset of C11 and C++17 and implemented in expression.cc. Every function is defined for all
 * inputs. The first failure is recorded in the jitload_eval and evaluation continues with 0; the caller checks `error`
 * at the end. If both operands of an operation fail, either failure may be the one recorded.
 */
#ifndef JITLOAD_EXPRESSION_H_
#define JITLOAD_EXPRESSION_H_

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  JITLOAD_EVAL_OK,
  JITLOAD_EVAL_DIVISION_BY_ZERO, /* left: the dividend */
  JITLOAD_EVAL_OVERFLOW,         /* left, right: the operands; a negation is 0 - right */
  JITLOAD_EVAL_NOT_A_TENSOR,     /* left: the argument */
  JITLOAD_EVAL_AXIS,             /* left: the axis, right: the number of dimensions */
  JITLOAD_EVAL_INTEGER,          /* left: the argument, which is not a 64-bit integer */
};

typedef struct jitload_eval {
  const void* args; /* of the call, as TVMFFIAny */
  int32_t expression; /* index of the current expression, set by the generated code */
  int32_t error;    /* the first failure, with its expression and operands */
  int32_t error_expression;
  int64_t left, right;
} jitload_eval;

int64_t jitload_add(jitload_eval* e, int64_t a, int64_t b);
int64_t jitload_sub(jitload_eval* e, int64_t a, int64_t b);
int64_t jitload_mul(jitload_eval* e, int64_t a, int64_t b);
int64_t jitload_neg(jitload_eval* e, int64_t a);
int64_t jitload_floordiv(jitload_eval* e, int64_t a, int64_t b);
int64_t jitload_ceil_div(jitload_eval* e, int64_t a, int64_t b);
int64_t jitload_mod(jitload_eval* e, int64_t a, int64_t b); /* has the sign of the divisor */
int64_t jitload_min(int64_t a, int64_t b);
int64_t jitload_max(int64_t a, int64_t b);
/* The smallest power of 2 that is at least n; 0 for n <= 0, as in Triton. */
int64_t jitload_next_power_of_2(jitload_eval* e, int64_t n);

/* Properties of an argument; `arg` is its index. */
int64_t jitload_int(jitload_eval* e, int32_t arg);
int64_t jitload_ndim(jitload_eval* e, int32_t arg);
int64_t jitload_numel(jitload_eval* e, int32_t arg);
int64_t jitload_size(jitload_eval* e, int32_t arg, int64_t axis);
int64_t jitload_stride(jitload_eval* e, int32_t arg, int64_t axis); /* in elements */

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* JITLOAD_EXPRESSION_H_ */
