/* Tensor descriptors, the arguments from which a Triton kernel's TMA transfers are made. */
#pragma once

#include <jitload/triton.h>

#include "../core/tensor_map.h"

/* A tensor descriptor of a call. The kernel's parameters point into it. */
typedef struct jitload_tensor_descriptor {
  unsigned char map[128]; /* CUtensorMap, first because it must be aligned to 64 bytes */
  DLTensor tensor; /* the base tensor of Triton's object */
  jitload_layout layout;
  int64_t block[JITLOAD_MAX_RANK];
  int32_t block_rank; /* 0 if the argument is a plain tensor */
  uint64_t pads_nan;
  uint64_t rounds;
} __attribute__((aligned(64))) jitload_tensor_descriptor;

/* Read a Triton `TensorDescriptor` as loader/direct_calls.py passes it: its base, whether it pads with NaN and rounds to
 * tf32, its shape, strides and block shape. Return 0 for other arguments. */
int jitload_read_tensor_descriptor(const TVMFFIAny* value, jitload_tensor_descriptor* out);
/* Return whether the block shape matches the kernel's. True for a plain tensor. */
int jitload_block_matches(const jitload_descriptor_spec* spec, const jitload_tensor_descriptor* descriptor);
/* Fill in the descriptor of an argument. Return 0, or set an error and return -1. */
int jitload_make_descriptor(const jitload_kernel* kernel, const jitload_descriptor_spec* spec, const TVMFFIAny* value,
                            jitload_tensor_descriptor* descriptor);
