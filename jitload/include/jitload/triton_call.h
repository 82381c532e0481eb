/* Declarations that the files for calls of Triton kernels share. Internal to the runtime. */
#ifndef JITLOAD_TRITON_CALL_H_
#define JITLOAD_TRITON_CALL_H_

#include "device.h"
#include "triton.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor descriptor during a call: what Triton's object says, and what the kernel's parameters point at. */
typedef struct jitload_host_descriptor {
  unsigned char map[128]; /* first, because the driver needs it aligned to 64 bytes */
  DLTensor tensor; /* of the object's base */
  int64_t shape[JITLOAD_MAX_RANK];
  int64_t strides[JITLOAD_MAX_RANK];
  int64_t block[JITLOAD_MAX_RANK];
  int32_t block_rank; /* 0 if a tensor was passed */
  uint64_t pads_nan;
  uint64_t rounds;
  jitload_stream_source_fn stream_source; /* of the framework of the object's base */
} __attribute__((aligned(64))) jitload_host_descriptor;

/* If the value is Triton's `TensorDescriptor`, read it and return 1. It must stay alive during the call. */
int jitload_read_descriptor_object(const TVMFFIAny* value, jitload_host_descriptor* out);

/* Whether the block shape is the one that the kernel was compiled for; true for a tensor, which has none. */
int jitload_block_fits(const jitload_descriptor* descriptor, const jitload_host_descriptor* host);

/* Make the descriptor for an argument. Return 0, or set the error and return -1. */
int jitload_make_descriptor(const jitload_driver* driver, const jitload_kernel* kernel, const jitload_descriptor* descriptor,
                            const TVMFFIAny* value, jitload_host_descriptor* host);

/* Scratch memory of one launch: from a framework (one of the first two fields), or from the driver (`pool`). */
typedef struct jitload_scratch {
  struct DLManagedTensorVersioned* managed;
  TVMFFIObjectHandle tensor;
  jitload_cu_address pool;
  jitload_cu_address address; /* aligned */
} jitload_scratch;

/* Return 0, or set the error and return -1. */
int jitload_allocate_scratch(const jitload_driver* driver, const jitload_request* request, jitload_cu_device device,
                         jitload_cu_stream stream, int64_t bytes, jitload_scratch* out);
void jitload_free_scratch(const jitload_driver* driver, jitload_cu_stream stream, const jitload_scratch* scratch);

#ifdef __cplusplus
}
#endif

#endif /* JITLOAD_TRITON_CALL_H_ */
