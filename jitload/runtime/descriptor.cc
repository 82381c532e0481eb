/* Tensor descriptors: reading Triton's `TensorDescriptor` through Python's C API, and encoding the driver's TMA maps. */
#include <stdio.h>

#include "python_api.h"
#include "triton_call.h"

/* The integers of an attribute, or -1. */
static int32_t jitload_read_integers(const jitload_python_api* python, void* object, const char* name, int64_t* out) {
  void* sequence = python->attribute(object, name);
  if (sequence == NULL) return -1;
  ptrdiff_t count = python->length(sequence);
  if (count < 1 || count > JITLOAD_MAX_RANK) count = -1;
  for (ptrdiff_t i = 0; i < count; ++i) {
    void* item = python->item(sequence, i);
    if (item == NULL) break;
    out[i] = python->long_value(item);
    python->drop(item);
  }
  python->drop(sequence);
  return python->has_error() != NULL ? -1 : (int32_t)count;
}

/* DLPack's exchange table, up to what is used of it. */
typedef struct jitload_exchange {
  uint32_t major, minor;
  void* previous;
  void* allocator;
  void* from_object;
  void* to_object;
  int (*view)(void* object, DLTensor* out);
  jitload_stream_source_fn stream_source;
} jitload_exchange;

static int jitload_read_exchanged(const jitload_python_api* python, void* base, jitload_described* out) {
  void* capsule = python->attribute(base, "__dlpack_c_exchange_api__");
  if (capsule == NULL) return 0;
  const jitload_exchange* exchange = (const jitload_exchange*)python->pointer(capsule, "dlpack_exchange_api");
  int is_read = 0;
  if (exchange != NULL && exchange->major == 1 && exchange->view != NULL) {
    is_read = exchange->view(base, &out->tensor) == 0;
    out->stream_source = exchange->stream_source;
  }
  python->drop(capsule);
  return is_read;
}

/* By `__dlpack__(stream=-1)`, which every framework has. The object itself keeps the memory. */
static int jitload_read_capsule(const jitload_python_api* python, void* base, jitload_described* out) {
  void* method = python->attribute(base, "__dlpack__");
  void* arguments = python->new_tuple(0);
  void* keywords = python->new_dict();
  void* no_sync = python->new_long(-1);
  void* capsule = NULL;
  if (method != NULL && keywords != NULL && python->set_item(keywords, "stream", no_sync) == 0) {
    capsule = python->call(method, arguments, keywords);
  }
  const DLManagedTensor* managed = capsule != NULL ? (const DLManagedTensor*)python->pointer(capsule, "dltensor") : NULL;
  if (managed != NULL) out->tensor = managed->dl_tensor;
  python->drop(capsule);
  python->drop(no_sync);
  python->drop(keywords);
  python->drop(arguments);
  python->drop(method);
  return managed != NULL;
}

static void jitload_read_options(const jitload_python_api* python, void* object, jitload_described* out) {
  void* padding = python->attribute(object, "padding");
  const char* letters = padding != NULL ? python->letters(padding) : NULL;
  out->pads_nan = letters != NULL && strcmp(letters, "nan") == 0;
  python->drop(padding);
  python->clear_error();
  void* rounds = python->attribute(object, "round_f32_to_tf32");
  out->rounds = rounds != NULL && python->is_true(rounds) == 1;
  python->drop(rounds);
  python->clear_error();
}

static int jitload_read_object_parts(const jitload_python_api* python, void* object, jitload_described* out) {
  const int32_t rank = jitload_read_integers(python, object, "shape", out->shape);
  out->block_rank = jitload_read_integers(python, object, "block_shape", out->block);
  if (rank < 0 || out->block_rank != rank || jitload_read_integers(python, object, "strides", out->strides) != rank) return 0;
  void* base = python->attribute(object, "base");
  if (base == NULL) return 0;
  int is_read = jitload_read_exchanged(python, base, out);
  python->clear_error();
  if (!is_read) is_read = jitload_read_capsule(python, base, out);
  python->drop(base);
  out->tensor.ndim = rank;
  out->tensor.shape = out->shape;
  out->tensor.strides = out->strides;
  return is_read;
}

extern "C" int jitload_read_described(const TVMFFIAny* value, jitload_described* out) {
  const jitload_python_api* python = jitload_find_python();
  if (python == NULL) return 0;
  void* object = *(void* const*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  const int state = python->ensure();
  const int is_read = jitload_read_object_parts(python, object, out);
  python->clear_error();
  if (is_read) jitload_read_options(python, object, out);
  if (!is_read) memset(out, 0, sizeof *out);
  python->release(state);
  return is_read;
}

/* ---- TMA maps -------------------------------------------------------------------------------------------------- */

enum {
  JITLOAD_TMA_INTERLEAVE_NONE = 0,
  JITLOAD_TMA_PROMOTION_128 = 2,
  JITLOAD_TMA_FILL_ZERO = 0,
  JITLOAD_TMA_FILL_NAN = 1,
  JITLOAD_TMA_TF32 = 11,
  JITLOAD_TMA_ALIGNMENT = 16,
};

extern "C" int jitload_block_fits(const jitload_descriptor* descriptor, const jitload_described* described) {
  if (described->block_rank == 0) return 1;
  if (described->block_rank != descriptor->rank) return 0;
  for (int32_t i = 0; i < descriptor->rank; ++i) {
    if (described->block[i] != (int64_t)descriptor->block[i]) return 0;
  }
  return 1;
}

/* Copy shape and strides; where there are none, those of a contiguous tensor. An axis of one element has no stride
 * that matters: the last one is 1 then. */
static void jitload_copy_layout(const DLTensor* tensor, jitload_described* described) {
  uint64_t step = 1; /* of a tensor without elements, which is refused, it may overflow */
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    described->shape[i] = tensor->shape[i];
    described->strides[i] = tensor->strides != NULL ? tensor->strides[i] : (int64_t)step;
    step *= (uint64_t)tensor->shape[i];
  }
  if (described->shape[tensor->ndim - 1] == 1) described->strides[tensor->ndim - 1] = 1;
}

static int jitload_check_layout(const jitload_kernel* kernel, const jitload_descriptor* descriptor,
                                const jitload_described* described, uint64_t address) {
  const jitload_param* param = &kernel->params[descriptor->param];
  const int32_t last = descriptor->rank - 1;
  if (described->strides[last] != 1) {
    return jitload_fail("ValueError", "%s(): argument '%s' must be contiguous in its last axis for %s, but the stride is %lld",
                        kernel->name, param->name, param->type, (long long)described->strides[last]);
  }
  for (int32_t i = 0; i < descriptor->rank; ++i) {
    const long long extent = (long long)described->shape[i], stride = (long long)described->strides[i];
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

/* The driver counts axes from the last one, and strides in bytes without the last one's. */
static int jitload_encode_map(const jitload_driver* driver, const jitload_kernel* kernel,
                              const jitload_descriptor* descriptor, uint64_t address, jitload_described* described) {
  const uint32_t steps[JITLOAD_MAX_RANK] = {1, 1, 1, 1, 1};
  const int32_t rank = descriptor->rank;
  uint64_t extents[JITLOAD_MAX_RANK], strides[JITLOAD_MAX_RANK];
  uint32_t box[JITLOAD_MAX_RANK];
  for (int32_t i = 0; i < rank; ++i) {
    const int32_t axis = rank - 1 - i;
    box[i] = descriptor->box[axis];
    extents[i] = (uint64_t)described->shape[axis] << (i == 0 && descriptor->is_fp4);
    if (i == 0) continue;
    const uint64_t bytes = (uint64_t)described->strides[axis] * (uint64_t)descriptor->element_bytes;
    strides[i - 1] = (bytes + JITLOAD_TMA_ALIGNMENT - 1) & ~(uint64_t)(JITLOAD_TMA_ALIGNMENT - 1);
  }
  const jitload_cu_result code = driver->encode_tiled(
      described->map, described->rounds ? JITLOAD_TMA_TF32 : descriptor->type, (uint32_t)rank, (void*)address, extents,
      strides, box, steps, JITLOAD_TMA_INTERLEAVE_NONE, descriptor->swizzle, JITLOAD_TMA_PROMOTION_128,
      described->pads_nan ? JITLOAD_TMA_FILL_NAN : JITLOAD_TMA_FILL_ZERO);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  const jitload_param* param = &kernel->params[descriptor->param];
  char what[256];
  snprintf(what, sizeof what, "the driver makes no descriptor of argument '%s' (%s)", param->name, param->type);
  return jitload_driver_error(driver, kernel->name, what, code);
}

extern "C" int jitload_make_descriptor(const jitload_driver* driver, const jitload_kernel* kernel,
                                       const jitload_descriptor* descriptor, const TVMFFIAny* value,
                                       jitload_described* described) {
  const jitload_param* param = &kernel->params[descriptor->param];
  const DLTensor* tensor = jitload_tensor_of(value);
  if (tensor == NULL) {
    return jitload_fail("TypeError", "%s(): argument '%s' must be a tensor: %s is made of its shape and strides, too",
                        kernel->name, param->name, param->type);
  }
  if (tensor->ndim != descriptor->rank) {
    return jitload_fail("ValueError", "%s(): argument '%s' must have %d dimension%s for %s, got %d", kernel->name,
                        param->name, (int)descriptor->rank, descriptor->rank == 1 ? "" : "s", param->type,
                        (int)tensor->ndim);
  }
  jitload_copy_layout(tensor, described);
  const uint64_t address = jitload_address(tensor);
  if (jitload_check_layout(kernel, descriptor, described, address) != 0) return -1;
  return driver == NULL ? 0 : jitload_encode_map(driver, kernel, descriptor, address, described);
}
