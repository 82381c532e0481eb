/* Makes host-side tensor descriptors for a kernel, from tensors or from Triton's objects. */
#include <stdio.h>

#include "triton_call.h"

enum {
  JITLOAD_TMA_INTERLEAVE_NONE = 0,
  JITLOAD_TMA_PROMOTION_128 = 2,
  JITLOAD_TMA_FILL_ZERO = 0,
  JITLOAD_TMA_FILL_NAN = 1,
  JITLOAD_TMA_TF32 = 11,
  JITLOAD_TMA_ALIGNMENT = 16,
};

extern "C" int jitload_block_fits(const jitload_descriptor* descriptor, const jitload_host_descriptor* host) {
  if (host->block_rank == 0) return 1;
  if (host->block_rank != descriptor->rank) return 0;
  for (int32_t i = 0; i < descriptor->rank; ++i) {
    if (host->block[i] != (int64_t)descriptor->block[i]) return 0;
  }
  return 1;
}

/* Copy shape and strides; a tensor without strides is contiguous. The stride of an axis with one element does not
 * matter: in the last axis it becomes 1. */
static void jitload_copy_layout(const DLTensor* tensor, jitload_host_descriptor* host) {
  uint64_t step = 1; /* may overflow for a tensor without elements, which is refused later */
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    host->shape[i] = tensor->shape[i];
    host->strides[i] = tensor->strides != NULL ? tensor->strides[i] : (int64_t)step;
    step *= (uint64_t)tensor->shape[i];
  }
  if (host->shape[tensor->ndim - 1] == 1) host->strides[tensor->ndim - 1] = 1;
}

static int jitload_check_layout(const jitload_kernel* kernel, const jitload_descriptor* descriptor,
                                const jitload_host_descriptor* host, uint64_t address) {
  const jitload_param* param = &kernel->params[descriptor->param];
  const int32_t last = descriptor->rank - 1;
  if (host->strides[last] != 1) {
    return jitload_fail("ValueError", "%s(): argument '%s' must be contiguous in its last axis for %s, but the stride is %lld",
                        kernel->name, param->name, param->type, (long long)host->strides[last]);
  }
  for (int32_t i = 0; i < descriptor->rank; ++i) {
    const long long extent = (long long)host->shape[i], stride = (long long)host->strides[i];
    if (extent < 1 || extent > INT32_MAX) {
      return jitload_fail("ValueError", "%s(): argument '%s' must have 1 to 2147483647 elements in axis %d for %s, got %lld",
                          kernel->name, param->name, (int)i, param->type, extent);
    }
    const uint64_t step = (uint64_t)stride * (uint64_t)descriptor->element_bytes;
    if (i < last && extent > 1 && (stride < 0 || step % JITLOAD_TMA_ALIGNMENT != 0)) {
      return jitload_fail("ValueError",
                          "%s(): argument '%s' must have strides of a multiple of 16 bytes for %s, but axis %d has %lld "
                          "elements of %d bytes",
                          kernel->name, param->name, param->type, (int)i, stride, (int)descriptor->element_bytes);
    }
  }
  const uint64_t alignment = descriptor->is_fp4 ? 2 * JITLOAD_TMA_ALIGNMENT : JITLOAD_TMA_ALIGNMENT;
  if (address % alignment == 0) return 0;
  return jitload_fail("ValueError", "%s(): argument '%s' must be aligned to %d bytes for %s, but its address is 0x%llx",
                      kernel->name, param->name, (int)alignment, param->type, (unsigned long long)address);
}

/* The driver has the axes in reverse order, and strides in bytes without that of the last axis. */
static int jitload_encode_map(const jitload_driver* driver, const jitload_kernel* kernel,
                              const jitload_descriptor* descriptor, uint64_t address, jitload_host_descriptor* host) {
  const uint32_t steps[JITLOAD_MAX_RANK] = {1, 1, 1, 1, 1};
  const int32_t rank = descriptor->rank;
  uint64_t extents[JITLOAD_MAX_RANK], strides[JITLOAD_MAX_RANK];
  uint32_t box[JITLOAD_MAX_RANK];
  for (int32_t i = 0; i < rank; ++i) {
    const int32_t axis = rank - 1 - i;
    box[i] = descriptor->box[axis];
    extents[i] = (uint64_t)host->shape[axis] << (i == 0 && descriptor->is_fp4);
    if (i == 0) continue;
    const uint64_t bytes = (uint64_t)host->strides[axis] * (uint64_t)descriptor->element_bytes;
    strides[i - 1] = (bytes + JITLOAD_TMA_ALIGNMENT - 1) & ~(uint64_t)(JITLOAD_TMA_ALIGNMENT - 1);
  }
  const jitload_cu_result code = driver->encode_tiled(
      host->map, host->rounds ? JITLOAD_TMA_TF32 : descriptor->type, (uint32_t)rank, (void*)address, extents,
      strides, box, steps, JITLOAD_TMA_INTERLEAVE_NONE, descriptor->swizzle, JITLOAD_TMA_PROMOTION_128,
      host->pads_nan ? JITLOAD_TMA_FILL_NAN : JITLOAD_TMA_FILL_ZERO);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  const jitload_param* param = &kernel->params[descriptor->param];
  char problem[256];
  snprintf(problem, sizeof problem, "the driver cannot make the descriptor of argument '%s' (%s)", param->name,
           param->type);
  return jitload_driver_error(driver, kernel->name, problem, code);
}

extern "C" int jitload_make_descriptor(const jitload_driver* driver, const jitload_kernel* kernel,
                                       const jitload_descriptor* descriptor, const TVMFFIAny* value,
                                       jitload_host_descriptor* host) {
  const jitload_param* param = &kernel->params[descriptor->param];
  const DLTensor* tensor = jitload_tensor_of(value);
  if (tensor == NULL) {
    return jitload_fail("TypeError", "%s(): argument '%s' must be a tensor, because %s is made from its shape and strides",
                        kernel->name, param->name, param->type);
  }
  if (tensor->ndim != descriptor->rank) {
    return jitload_fail("ValueError", "%s(): argument '%s' must have %d dimension%s for %s, got %d", kernel->name,
                        param->name, (int)descriptor->rank, descriptor->rank == 1 ? "" : "s", param->type,
                        (int)tensor->ndim);
  }
  jitload_copy_layout(tensor, host);
  const uint64_t address = jitload_address(tensor);
  if (jitload_check_layout(kernel, descriptor, host, address) != 0) return -1;
  return driver == NULL ? 0 : jitload_encode_map(driver, kernel, descriptor, address, host);
}
