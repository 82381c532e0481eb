/* What the wrapper of a Triton kernel includes: the tables by which its cubins are launched.
 *
 * A kernel's `params` are then what a caller gives, in order, also where the machine code takes no such parameter. A
 * kernel with variants is a dispatcher: it launches the first of them that the arguments, and the device, suit.
 */
#ifndef JITLOAD_TRITON_H_
#define JITLOAD_TRITON_H_

#include "launch.h"

/* What the machine code was specialised for. */
enum { JITLOAD_MULTIPLE_OF, JITLOAD_EQUAL_TO, JITLOAD_NULL };

/* `value` of a multiple is a power of 2. */
typedef struct jitload_assumption {
  int32_t param;
  int32_t kind;
  int64_t value;
} jitload_assumption;

/* A part of an argument: itself, or what a descriptor consists of. */
enum { JITLOAD_VALUE, JITLOAD_MAP, JITLOAD_SHAPE, JITLOAD_STRIDE, JITLOAD_PADDING, JITLOAD_ROUNDING };

/* One parameter of the machine code: what it takes of which of `params`. */
typedef struct jitload_place {
  uint16_t param;
  uint8_t part;
  uint8_t axis;
  uint16_t descriptor;
} jitload_place;

enum { JITLOAD_MAX_RANK = 5 };

/* A descriptor that the host makes. `type` and `swizzle` are numbers of the driver's; -1: it is plain parameters. */
typedef struct jitload_descriptor {
  int32_t param;
  int32_t rank;
  int32_t type;
  int32_t swizzle;
  int32_t element_bytes;
  int32_t is_fp4;
  uint32_t block[JITLOAD_MAX_RANK]; /* what one access of the kernel covers */
  uint32_t box[JITLOAD_MAX_RANK];   /* what the hardware moves at a time */
} jitload_descriptor;

struct jitload_config;

typedef struct jitload_triton {
  /* What makes a call, in a part of the runtime that only libraries of Triton kernels are linked with. */
  int (*run)(const jitload_kernel*, const struct jitload_config*, const void* args,
             int (*stream_source)(int32_t, int32_t, void**));
  const jitload_assumption* assumptions;
  const jitload_place* places;
  const jitload_descriptor* descriptors;
  const jitload_kernel* const* variants;
  int32_t assumption_count;
  int32_t place_count;
  int32_t descriptor_count; /* of a dispatcher, too */
  int32_t variant_count;
  int32_t multiply[3]; /* blocks of the grid for one of the programs that a caller counts */
  int32_t hidden_pointers;
  int64_t scratch_bytes; /* for one program */
  int64_t scratch_alignment;
} jitload_triton;

#ifdef __cplusplus
extern "C" {
#endif

/* Check the arguments, whose count is right, and launch; 0, or the error is set and -1. */
int jitload_run_triton(const jitload_kernel* kernel, const struct jitload_config* config, const void* args,
                       int (*stream_source)(int32_t, int32_t, void**));

#ifdef __cplusplus
}
#endif

#endif /* JITLOAD_TRITON_H_ */
