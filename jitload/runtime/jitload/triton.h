/* The parts of a record that describe how the cubins of Triton kernels are launched.
 *
 * The `params` of such a kernel are the caller's arguments in order, including those that the cubin does not take. A
 * kernel with variants is a dispatcher: it launches the first variant that matches the arguments and the device.
 */
#pragma once

#include "record.h"

/* Assumptions that the cubin was specialised for. */
enum { JITLOAD_MULTIPLE_OF, JITLOAD_EQUAL_TO, JITLOAD_NULL };

/* For JITLOAD_MULTIPLE_OF, `value` is a power of 2. */
typedef struct jitload_assumption {
  int32_t param;
  int32_t kind;
  int64_t value;
} jitload_assumption;

/* A part of an argument: its value, or a component of a tensor descriptor. */
enum { JITLOAD_VALUE, JITLOAD_MAP, JITLOAD_SHAPE, JITLOAD_STRIDE, JITLOAD_PADDING, JITLOAD_ROUNDING };

/* What a parameter of the cubin is bound to: a part of one of `params`. */
typedef struct jitload_binding {
  uint16_t param;
  uint8_t part;
  uint8_t axis;
  uint16_t descriptor;
} jitload_binding;

/* A tensor descriptor that the host creates. */
typedef struct jitload_descriptor_spec {
  int32_t param;
  uint32_t block[JITLOAD_MAX_RANK]; /* the block of one access */
  const jitload_tensor_map* map;
} jitload_descriptor_spec;

typedef struct jitload_triton {
  const jitload_assumption* assumptions;
  const jitload_binding* bindings;
  const jitload_descriptor_spec* descriptors;
  int32_t assumption_count;
  int32_t binding_count;
  int32_t descriptor_count; /* also set for a dispatcher */
  int32_t has_several_archs; /* whether a dispatcher has to look for a variant with code for the device */
  int32_t grid_multiplier[3]; /* blocks per program in each dimension */
  int32_t hidden_pointers;
  int64_t scratch_bytes; /* per program */
  int64_t scratch_alignment;
} jitload_triton;
