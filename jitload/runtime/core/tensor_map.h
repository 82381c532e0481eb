/* The driver's tensor maps, which describe tensors to the tensor memory accelerator (TMA). */
#pragma once

#include "runtime.h"

enum { JITLOAD_MAP_BYTES = 128, JITLOAD_MAP_ALIGNMENT = 64 };

/* What a tensor map depends on in a call. Axes that a tensor does not have are 0. */
typedef struct jitload_layout {
  uint64_t address;
  int64_t shape[JITLOAD_MAX_RANK];
  int64_t strides[JITLOAD_MAX_RANK];
} jitload_layout;

/* Each returns 0, or sets an error and returns -1. */

/* Read the layout of an argument, which must be a tensor of the map's rank. */
int jitload_read_layout(const jitload_kernel* kernel, const jitload_tensor_map* map, const TVMFFIAny* value,
                        jitload_layout* layout);
/* Check a layout, and write its tensor map to `out`, unless the map has no type. */
int jitload_encode_tensor_map(const jitload_kernel* kernel, const jitload_tensor_map* map, const jitload_layout* layout,
                              void* out);
/* Pass the tensor maps of a kernel, which are written to `out`. An unchanged layout is not encoded again. */
int jitload_pass_tensor_maps(jitload_request* request, unsigned char* out);
