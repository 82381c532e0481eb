/* What the parts of a Triton kernel's call share. Internal to the runtime. */
#ifndef JITLOAD_TRITON_CALL_H_
#define JITLOAD_TRITON_CALL_H_

#include <jitload/triton.h>

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor descriptor on its way: what Triton's own object says, and what the kernel's parameters point at. */
typedef struct jitload_described {
  unsigned char map[128]; /* first: the driver wants it aligned to 64 bytes */
  DLTensor tensor; /* of the object's base */
  int64_t shape[JITLOAD_MAX_RANK];
  int64_t strides[JITLOAD_MAX_RANK];
  int64_t block[JITLOAD_MAX_RANK];
  int32_t block_rank; /* 0 where a tensor was given */
  uint64_t pads_nan;
  uint64_t rounds;
  jitload_stream_source_fn stream_source; /* of the framework of the object's base */
} __attribute__((aligned(64))) jitload_described;

/* If the value is a Triton `TensorDescriptor`, read it and return 1. It must stay alive during the call. */
int jitload_read_described(const TVMFFIAny* value, jitload_described* out);

/* Whether the block shape of Triton's object, if it is one, is the one that the kernel was compiled for. */
int jitload_block_fits(const jitload_descriptor* descriptor, const jitload_described* described);

/* Make the descriptor of an argument; 0, or the error is set and -1. */
int jitload_make_descriptor(const jitload_driver* driver, const jitload_kernel* kernel, const jitload_descriptor* descriptor,
                            const TVMFFIAny* value, jitload_described* described);

/* Memory for the time of a launch: from a framework (one of the first two), or from the driver. */
typedef struct jitload_scratch {
  struct DLManagedTensorVersioned* managed;
  TVMFFIObjectHandle tensor;
  jitload_cu_address pool;
  jitload_cu_address address; /* aligned */
} jitload_scratch;

/* 0, or the error is set and -1. */
int jitload_take_scratch(const jitload_driver* driver, const jitload_request* request, jitload_cu_device device,
                         jitload_cu_stream stream, int64_t bytes, jitload_scratch* out);
void jitload_drop_scratch(const jitload_driver* driver, jitload_cu_stream stream, const jitload_scratch* scratch);

#ifdef __cplusplus
}
#endif

#endif /* JITLOAD_TRITON_CALL_H_ */
