/* The arithmetic of launch expressions: Python's integers, kept to 64 bits and checked.
 *
 * The common subset of C11 and C++17; the work is in expression.cc. Each function is defined for all inputs: a failure
 * is noted once in the jitload_eval, the value goes on as 0, and whoever evaluates looks at `error` at the end.
 * Where two operands of one operation both fail, either may be the one that is noted.
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
  JITLOAD_EVAL_AXIS,             /* left: the axis, right: how many dimensions there are */
  JITLOAD_EVAL_INTEGER,          /* left: the argument, which is no integer of 64 bits */
};

typedef struct jitload_eval {
  const void* args; /* of the call: TVMFFIAny */
  int32_t where;    /* the expression at work, set by the generated code */
  int32_t error;    /* the first failure, with its place and its operands */
  int32_t error_where;
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
/* The smallest power of 2 that is n or more; 0 for n <= 0, as Triton's function has it. */
int64_t jitload_next_power_of_2(jitload_eval* e, int64_t n);

/* Of an argument, by its number. */
int64_t jitload_int(jitload_eval* e, int32_t arg);
int64_t jitload_ndim(jitload_eval* e, int32_t arg);
int64_t jitload_numel(jitload_eval* e, int32_t arg);
int64_t jitload_size(jitload_eval* e, int32_t arg, int64_t axis);
int64_t jitload_stride(jitload_eval* e, int32_t arg, int64_t axis); /* in elements */

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* JITLOAD_EXPRESSION_H_ */
