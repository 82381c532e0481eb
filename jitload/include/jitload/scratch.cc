/* Scratch memory that a Triton kernel needs during a launch.
 *
 * It is freed as soon as the launch is queued, so the allocator must order its next use after the launch. A framework's
 * allocator does so on the framework's current stream; on any other stream, the driver's pool does. Both can be used
 * while a graph is captured.
 */
#include <stdio.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "triton_call.h"

/* An allocator's error message. */
typedef struct jitload_reason {
  char text[512];
} jitload_reason;

static void jitload_keep_reason(void* context, const char* kind, const char* message) {
  (void)kind;
  jitload_reason* reason = (jitload_reason*)context;
  strncpy(reason->text, message, sizeof reason->text - 1);
}

static int jitload_refuse_scratch(const jitload_request* request, jitload_cu_device device, int64_t bytes,
                                  const char* reason) {
  return jitload_fail("RuntimeError",
                      "%s(): cannot allocate the %lld bytes of scratch memory that the kernel needs on cuda:%d: %s",
                      request->kernel->name, (long long)bytes, (int)device, reason);
}

/* Allocate with the framework whose tensors are among the arguments. Its allocator is known to tvm-ffi for this call. */
static int jitload_allocate_from_caller(const jitload_request* request, jitload_cu_device device, DLTensor* prototype,
                                        int64_t bytes, jitload_scratch* out) {
  if (TVMFFIEnvTensorAlloc(prototype, &out->tensor) == 0) {
    out->address = jitload_address((const DLTensor*)((const char*)out->tensor + sizeof(TVMFFIObject)));
    return 0;
  }
  TVMFFIObjectHandle error = NULL;
  jitload_reason reason = {};
  TVMFFIErrorMoveFromRaised(&error);
  if (error != NULL) {
    const TVMFFIByteArray message = ((const TVMFFIErrorCell*)((const char*)error + sizeof(TVMFFIObject)))->message;
    const size_t size = message.size < sizeof reason.text ? message.size : sizeof reason.text - 1;
    memcpy(reason.text, message.data, size);
    TVMFFIObjectDecRef(error);
  }
  if (strncmp(reason.text, "TVMFFIEnvTensorAlloc", 20) == 0) { /* tvm-ffi's own message: there is no allocator */
    return jitload_refuse_scratch(request, device, bytes,
                                  "no framework offers an allocator in this call; import torch 2.10 or newer before "
                                  "loading, or pass tensors of a framework with DLPack's exchange API");
  }
  return jitload_refuse_scratch(request, device, bytes, reason.text);
}

static int jitload_allocate_from_framework(const jitload_request* request, jitload_cu_device device,
                                           DLTensor* prototype, int64_t bytes, jitload_scratch* out) {
  jitload_reason reason = {};
  if (jitload_allocator(prototype, &out->managed, &reason, jitload_keep_reason) != 0) {
    return jitload_refuse_scratch(request, device, bytes, reason.text);
  }
  out->address = jitload_address(&out->managed->dl_tensor);
  return 0;
}

static int jitload_allocate_from_driver(const jitload_driver* driver, const jitload_request* request,
                                        jitload_cu_device device, jitload_cu_stream stream, int64_t bytes,
                                        jitload_scratch* out) {
  const jitload_cu_result code = driver->allocate_async(&out->pool, (size_t)bytes, stream);
  out->address = out->pool;
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  char problem[96];
  snprintf(problem, sizeof problem, "cannot allocate %lld bytes of scratch memory on cuda:%d", (long long)bytes,
           (int)device);
  return jitload_driver_error(driver, request->kernel->name, problem, code);
}

/* Whether this is the framework's current stream, on which its allocator orders the next use of freed memory. */
static int jitload_is_current(jitload_cu_device device, jitload_cu_stream stream) {
  void* current = NULL;
  return jitload_stream_source != NULL && jitload_stream_source(kDLCUDA, device, &current) == 0 && current == stream;
}

extern "C" int jitload_allocate_scratch(const jitload_driver* driver, const jitload_request* request,
                                        jitload_cu_device device, jitload_cu_stream stream, int64_t bytes,
                                        jitload_scratch* out) {
  const int64_t alignment = request->kernel->triton->scratch_alignment;
  int64_t size = 0; /* allocators align to 256 bytes or more, but do not guarantee it */
  if (__builtin_add_overflow(bytes, alignment - 1, &size) || size == INT64_MAX) {
    return jitload_refuse_scratch(request, device, bytes, "the number does not fit into 64 bits");
  }
  DLTensor prototype = {};
  prototype.device = DLDevice{kDLCUDA, device};
  prototype.ndim = 1;
  prototype.dtype = DLDataType{kDLUInt, 8, 1};
  prototype.shape = &size;
  const int has_stream = request->config != NULL && request->config->has_stream;
  int failed;
  if (jitload_allocator != NULL) {
    failed = jitload_is_current(device, stream)
                 ? jitload_allocate_from_framework(request, device, &prototype, bytes, out)
                 : jitload_allocate_from_driver(driver, request, device, stream, size, out);
  } else if (has_stream && stream != TVMFFIEnvGetStream(kDLCUDA, device)) {
    failed = jitload_allocate_from_driver(driver, request, device, stream, size, out);
  } else {
    failed = jitload_allocate_from_caller(request, device, &prototype, bytes, out);
  }
  out->address = (out->address + (uint64_t)alignment - 1) & ~((uint64_t)alignment - 1);
  return failed;
}

extern "C" void jitload_free_scratch(const jitload_driver* driver, jitload_cu_stream stream,
                                     const jitload_scratch* scratch) {
  if (scratch->managed != NULL) {
    if (scratch->managed->deleter != NULL) scratch->managed->deleter(scratch->managed);
  } else if (scratch->tensor != NULL) {
    TVMFFIObjectDecRef(scratch->tensor);
  } else {
    driver->free_async(scratch->pool, stream);
  }
}
