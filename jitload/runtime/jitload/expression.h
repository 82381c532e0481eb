/* Launch expressions: Python's integer semantics, checked to fit in 64 bits.
 *
 * Implemented in core/expression.cc. A program is a sequence of steps for a machine with a stack of integers;
 * expressions/compiler.py writes it. A failure ends the program.
 */
#pragma once

#include "record.h"

/* The steps. `operand` is an argument's number, the number of steps to skip, or a place in the plan. For the operations
 * with two operands, it is 1 if the right one is `value`; otherwise that is the top of the stack. */
enum {
  JITLOAD_OP_END,
  JITLOAD_OP_STORE,       /* pop into the plan: 0 to 2 are the grid, 3 to 5 the block, 6 to 8 the cluster, 9 the shared
                             memory; JITLOAD_FIRST_VALUE is the first parameter */
  JITLOAD_OP_SET,         /* store `value` in the plan */
  JITLOAD_OP_SKIP_GRID,   /* skip steps unless the plan needs its grid */
  JITLOAD_OP_SKIP_BLOCK,
  JITLOAD_OP_SKIP_SHARED,
  JITLOAD_OP_CONSTANT,    /* push `value` */
  JITLOAD_OP_COMPUTED,    /* push a computed parameter */
  JITLOAD_OP_INT,         /* push an integer argument */
  JITLOAD_OP_NDIM,
  JITLOAD_OP_NUMEL,
  JITLOAD_OP_SIZE,        /* replace an axis by the tensor's extent there */
  JITLOAD_OP_STRIDE,
  JITLOAD_OP_ADD,
  JITLOAD_OP_SUB,
  JITLOAD_OP_MUL,
  JITLOAD_OP_FLOORDIV,
  JITLOAD_OP_MOD, /* has the sign of the divisor */
  JITLOAD_OP_CEIL_DIV,
  JITLOAD_OP_MIN,
  JITLOAD_OP_MAX,
  JITLOAD_OP_NEG,
  JITLOAD_OP_NEXT_POWER_OF_2, /* 0 for n <= 0, as in Triton */
  JITLOAD_OP_NOT,
  JITLOAD_OP_LT,
  JITLOAD_OP_LE,
  JITLOAD_OP_GT,
  JITLOAD_OP_GE,
  JITLOAD_OP_EQ,
  JITLOAD_OP_NE,
  JITLOAD_OP_CHAIN,       /* `a < b < …`: the comparison is LT + `value`; unless it holds, leave 0 and skip; else leave b */
  JITLOAD_OP_AND,         /* skip if the top is 0, else pop it */
  JITLOAD_OP_OR,          /* skip if the top is not 0, else pop it */
  JITLOAD_OP_SKIP_IF_NOT, /* pop, and skip if it is 0 */
  JITLOAD_OP_SKIP,
  JITLOAD_OP_IS_NONE, /* push whether an argument is None */
  JITLOAD_OP_SAME_SHAPE, /* push whether an argument and the argument `value` have the same shape */
  JITLOAD_OP_REQUIRE,    /* pop, and fail if it is 0 */
  /* Only in checks of bounds: */
  JITLOAD_OP_PLANNED,        /* push an extent of the grid or the block, or the dynamic shared memory */
  JITLOAD_OP_SKIP_IF_INSIDE, /* pop, and skip `value` steps if a tensor argument has at least that many bytes */
  JITLOAD_OP_OUTSIDE,        /* pop the first byte and the end of an access, and fail if they are outside a tensor; if
                                `operand` is -1, outside `value` bytes of shared memory, or the dynamic one if it is 0 */
};

enum {
  JITLOAD_EVAL_OK,
  JITLOAD_EVAL_DIVISION_BY_ZERO, /* left: the dividend */
  JITLOAD_EVAL_OVERFLOW,         /* left, right: the operands; a negation is 0 - right */
  JITLOAD_EVAL_NOT_A_TENSOR,     /* left: the argument */
  JITLOAD_EVAL_AXIS,             /* left: the axis, right: the number of dimensions */
  JITLOAD_EVAL_INTEGER,          /* left: the argument, which is not a 64-bit integer */
  JITLOAD_EVAL_REQUIREMENT,      /* a term of `requires` is false */
  JITLOAD_EVAL_COMPARED,         /* likewise; left, right: the operands of its last comparison */
  JITLOAD_EVAL_COMPARED_SHAPES,  /* likewise; left, right: the arguments */
  JITLOAD_EVAL_OUTSIDE,          /* left, right: the first byte of an access, and the end of the last one */
};

enum { JITLOAD_EVAL_STACK = 512 }; /* more than an expression of 1,000 characters needs */

/* A failure: its expression, counted by the values that were stored or
 * skipped before and the terms that were required, and its operands. */
typedef struct jitload_eval {
  const void* args; /* of the call, as TVMFFIAny */
  int32_t error;
  int32_t error_expression;
  int64_t left;
  int64_t right;
  const jitload_op* step; /* that failed */
} jitload_eval;

/* Run a program; return 0, or JITLOAD_EVAL_… with the eval's other members set. */
int jitload_evaluate(const jitload_op* program, jitload_eval* e, jitload_plan* plan);
