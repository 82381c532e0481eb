/* What triton.cc and descriptor.cc share. */
#ifndef JITLOAD_TRITON_CALL_H_
#define JITLOAD_TRITON_CALL_H_

#include <jitload/triton.h>

#include "device.h"

/* A tensor descriptor of a call. The kernel's parameters point into it. */
typedef struct jitload_tensor_descriptor {
  unsigned char map[128]; /* CUtensorMap, first because it must be aligned to 64 bytes */
  DLTensor tensor; /* the base of Triton's object */
  int64_t shape[JITLOAD_MAX_RANK];
  int64_t strides[JITLOAD_MAX_RANK];
  int64_t block[JITLOAD_MAX_RANK];
  int32_t block_rank; /* 0 if the argument is a plain tensor */
  uint64_t pads_nan;
  uint64_t rounds;
  const char* pending; /* "conj" or "neg" for a base with a pending conjugation or negation */
  jitload_stream_source_fn stream_source; /* of the base's framework */
} __attribute__((aligned(64))) jitload_tensor_descriptor;

/* Read a Triton `TensorDescriptor`, which must stay alive during the call. Return 0 for other objects. */
int jitload_read_tensor_descriptor(const TVMFFIAny* value, jitload_tensor_descriptor* out);

/* Whether the block shape matches the kernel's. True for a plain tensor. */
int jitload_block_matches(const jitload_descriptor_spec* spec, const jitload_tensor_descriptor* descriptor);

/* Fill in the descriptor of an argument. Return 0, or set an error and return -1. */
int jitload_make_descriptor(const jitload_driver* driver, const jitload_kernel* kernel,
                            const jitload_descriptor_spec* spec,
                            const TVMFFIAny* value, jitload_tensor_descriptor* descriptor);

/* Memory for one launch, owned by a framework (`managed` or `tensor`) or by the driver's pool. */
typedef struct jitload_scratch {
  struct DLManagedTensorVersioned* managed;
  TVMFFIObjectHandle tensor;
  jitload_cu_address pool;
  jitload_cu_address address; /* aligned */
} jitload_scratch;

/* Return 0, or set an error and return -1. */
int jitload_allocate_scratch(const jitload_driver* driver, const jitload_request* request, jitload_cu_device device,
                             jitload_cu_stream stream, int64_t bytes, jitload_scratch* out);
void jitload_free_scratch(const jitload_driver* driver, jitload_cu_stream stream, const jitload_scratch* scratch);

#endif /* JITLOAD_TRITON_CALL_H_ */
