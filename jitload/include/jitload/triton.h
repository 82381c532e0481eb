/* The tables in the wrapper of a Triton kernel, which say how its cubins are launched.
 *
 * The `params` of such a kernel are the arguments of a call, in order, including those that the machine code does not
 * take. A kernel with variants is a dispatcher: it launches the first of them that fits the arguments and the device.
 */
#ifndef JITLOAD_TRITON_H_
#define JITLOAD_TRITON_H_

#include "launch.h"

/* What the machine code was specialized for. */
enum { JITLOAD_MULTIPLE_OF, JITLOAD_EQUAL_TO, JITLOAD_NULL };

/* For JITLOAD_MULTIPLE_OF, `value` is a power of 2. */
typedef struct jitload_assumption {
  int32_t param;
  int32_t kind;
  int64_t value;
} jitload_assumption;

/* The part of an argument that a parameter takes: the value, or a component of a tensor descriptor. */
enum { JITLOAD_VALUE, JITLOAD_MAP, JITLOAD_SHAPE, JITLOAD_STRIDE, JITLOAD_PADDING, JITLOAD_ROUNDING };

/* One parameter of the machine code: the argument, and the part of it, that it takes. */
typedef struct jitload_binding {
  uint16_t param;
  uint8_t part;
  uint8_t axis;
  uint16_t descriptor;
} jitload_binding;

enum { JITLOAD_MAX_RANK = 5 };

/* A tensor descriptor that is made at a call. `type` and `swizzle` are numbers of the driver's API. If `type` is -1,
 * the machine code takes plain parameters instead of an encoded map. */
typedef struct jitload_descriptor {
  int32_t param;
  int32_t rank;
  int32_t type;
  int32_t swizzle;
  int32_t element_bytes;
  int32_t is_fp4;
  uint32_t block[JITLOAD_MAX_RANK]; /* elements of one access in the kernel */
  uint32_t box[JITLOAD_MAX_RANK];   /* elements that the hardware moves at a time */
} jitload_descriptor;

struct jitload_config;

typedef struct jitload_triton {
  /* Makes a call. It is in a part of the runtime that only libraries of Triton kernels are linked with. */
  int (*run)(const jitload_kernel*, const struct jitload_config*, const void* args,
             int (*stream_source)(int32_t, int32_t, void**));
  const jitload_assumption* assumptions;
  const jitload_binding* bindings;
  const jitload_descriptor* descriptors;
  const jitload_kernel* const* variants;
  int32_t assumption_count;
  int32_t binding_count;
  int32_t descriptor_count; /* dispatchers have descriptors, too */
  int32_t variant_count;
  int32_t multiply[3]; /* blocks in x, y and z for each program */
  int32_t hidden_pointers;
  int64_t scratch_bytes; /* for each program */
  int64_t scratch_alignment;
} jitload_triton;

#ifdef __cplusplus
extern "C" {
#endif

/* Check the arguments, whose number is right, and launch. Return 0, or set the error and return -1. */
int jitload_run_triton(const jitload_kernel* kernel, const struct jitload_config* config, const void* args,
                       int (*stream_source)(int32_t, int32_t, void**));

#ifdef __cplusplus
}
#endif

#endif /* JITLOAD_TRITON_H_ */
