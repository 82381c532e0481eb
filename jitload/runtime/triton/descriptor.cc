/* Tensor descriptors: reading Triton's `TensorDescriptor` objects, or any with the same attributes, and encoding the
 * driver's tensor maps for TMA.
 */
#include <stdio.h>

#include "../core/python_api.h"
#include "descriptor.h"

/* Read a sequence of integers from an attribute. Return its length, or -1. */
static int32_t jitload_read_integers(const jitload_python_api* python, void* object, const char* name, int64_t* out) {
  void* sequence = python->attribute(object, name);
  if (sequence == NULL) return -1;
  ptrdiff_t count = python->length(sequence);
  if (count < 1 || count > JITLOAD_MAX_RANK) count = -1;
  for (ptrdiff_t i = 0; i < count; ++i) {
    void* item = python->item(sequence, i);
    if (item == NULL) break;
    out[i] = python->integer(item);
    python->decref(item);
  }
  python->decref(sequence);
  return python->has_error() != NULL ? -1 : (int32_t)count;
}

/* The beginning of DLPack's exchange table. */
typedef struct jitload_exchange {
  uint32_t major, minor;
  void* previous;
  void* allocator;
  void* from_object;
  void* to_object;
  int (*view)(void* object, DLTensor* out);
  jitload_stream_source_fn stream_source;
} jitload_exchange;

static int jitload_read_exchange_table(const jitload_python_api* python, void* base, jitload_tensor_descriptor* out) {
  void* capsule = python->attribute(base, "__dlpack_c_exchange_api__");
  if (capsule == NULL) return 0;
  const jitload_exchange* exchange = (const jitload_exchange*)python->pointer(capsule, "dlpack_exchange_api");
  int is_read = 0;
  if (exchange != NULL && exchange->major == 1 && exchange->view != NULL) {
    is_read = exchange->view(base, &out->tensor) == 0;
    out->stream_source = exchange->stream_source;
  }
  python->decref(capsule);
  return is_read;
}

/* Read a tensor by `__dlpack__(stream=-1)`, which every framework has. The base tensor keeps the memory alive. */
static int jitload_read_capsule(const jitload_python_api* python, void* base, jitload_tensor_descriptor* out) {
  void* method = python->attribute(base, "__dlpack__");
  void* arguments = python->new_tuple(0);
  void* keywords = python->new_dict();
  void* no_sync = python->new_long(-1);
  void* capsule = NULL;
  if (method != NULL && keywords != NULL && python->set_key(keywords, "stream", no_sync) == 0) {
    capsule = python->call(method, arguments, keywords);
  }
  const DLManagedTensor* managed = capsule != NULL ? (const DLManagedTensor*)python->pointer(capsule,
                                                                                             "dltensor") : NULL;
  if (managed != NULL) out->tensor = managed->dl_tensor;
  python->decref(capsule);
  python->decref(no_sync);
  python->decref(keywords);
  python->decref(arguments);
  python->decref(method);
  return managed != NULL;
}

static void jitload_read_options(const jitload_python_api* python, void* object, jitload_tensor_descriptor* out) {
  void* padding = jitload_find_attribute(python, object, "padding");
  const char* utf8 = padding != NULL ? python->utf8(padding) : NULL;
  out->pads_nan = utf8 != NULL && strcmp(utf8, "nan") == 0;
  python->decref(padding);
  python->clear_error();
  void* rounds = jitload_find_attribute(python, object, "round_f32_to_tf32");
  out->rounds = rounds != NULL && python->is_true(rounds) == 1;
  python->decref(rounds);
  python->clear_error();
}

/* Whether an object has this method, and a call of the method without arguments returns a true value. */
static int jitload_is_answered(const jitload_python_api* python, void* object, const char* name) {
  void* method = python->attribute(object, name);
  void* arguments = python->new_tuple(0);
  void* answer = method != NULL && arguments != NULL ? python->call(method, arguments, NULL) : NULL;
  const int is_true = answer != NULL && python->is_true(answer) == 1;
  python->decref(answer);
  python->decref(arguments);
  python->decref(method);
  python->clear_error();
  return is_true;
}

static int jitload_read_attributes(const jitload_python_api* python, void* object, jitload_tensor_descriptor* out) {
  const int32_t rank = jitload_read_integers(python, object, "shape", out->shape);
  out->block_rank = jitload_read_integers(python, object, "block_shape", out->block);
  if (rank < 0 || out->block_rank != rank || jitload_read_integers(python, object, "strides", out->strides) != rank) {
    return 0;
  }
  void* base = python->attribute(object, "base");
  if (base == NULL) return 0;
  out->pending = jitload_is_answered(python, base, "is_conj") ? "conj"
                 : jitload_is_answered(python, base, "is_neg") ? "neg"
                                                               : NULL;
  int is_read = jitload_read_exchange_table(python, base, out);
  python->clear_error();
  if (!is_read) is_read = jitload_read_capsule(python, base, out);
  python->decref(base);
  out->tensor.ndim = rank;
  out->tensor.shape = out->shape;
  out->tensor.strides = out->strides;
  return is_read;
}

int jitload_read_tensor_descriptor(const TVMFFIAny* value, jitload_tensor_descriptor* out) {
  const jitload_python_api* python = jitload_find_python();
  if (python == NULL) return 0;
  void* object = *(void* const*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  const int state = python->ensure();
  const int is_read = jitload_read_attributes(python, object, out);
  python->clear_error();
  if (is_read) jitload_read_options(python, object, out);
  if (!is_read) memset(out, 0, sizeof *out);
  python->release(state);
  return is_read;
}

/* ---- tensor maps ----------------------------------------------------------------------------------------------- */

enum {
  JITLOAD_TMA_INTERLEAVE_NONE = 0,
  JITLOAD_TMA_PROMOTION_128 = 2,
  JITLOAD_TMA_FILL_ZERO = 0,
  JITLOAD_TMA_FILL_NAN = 1,
  JITLOAD_TMA_TF32 = 11,
  JITLOAD_TMA_ALIGNMENT = 16,
};

int jitload_block_matches(const jitload_descriptor_spec* spec, const jitload_tensor_descriptor* descriptor) {
  if (descriptor->block_rank == 0) return 1;
  if (descriptor->block_rank != spec->rank) return 0;
  for (int32_t i = 0; i < spec->rank; ++i) {
    if (descriptor->block[i] != (int64_t)spec->block[i]) return 0;
  }
  return 1;
}

/* Copy shape and strides, by default those of a contiguous tensor. The stride of a last axis with one element is
 * arbitrary, and becomes 1. */
static void jitload_copy_layout(const DLTensor* tensor, jitload_tensor_descriptor* descriptor) {
  uint64_t step = 1; /* may overflow for a tensor without elements, which is an error below */
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    descriptor->shape[i] = tensor->shape[i];
    descriptor->strides[i] = tensor->strides != NULL ? tensor->strides[i] : (int64_t)step;
    step *= (uint64_t)tensor->shape[i];
  }
  if (descriptor->shape[tensor->ndim - 1] == 1) descriptor->strides[tensor->ndim - 1] = 1;
}

static int jitload_check_tma_layout(const jitload_kernel* kernel, const jitload_descriptor_spec* spec,
                                    const jitload_tensor_descriptor* descriptor, uint64_t address) {
  const jitload_param* param = &kernel->params[spec->param];
  const int32_t last = spec->rank - 1;
  if (descriptor->strides[last] != 1) {
    return jitload_fail("ValueError",
                        "%s(): argument '%s' must be contiguous in its last axis for %s, but the stride is %lld",
                        kernel->name, param->name, param->type, (long long)descriptor->strides[last]);
  }
  for (int32_t i = 0; i < spec->rank; ++i) {
    const long long extent = (long long)descriptor->shape[i], stride = (long long)descriptor->strides[i];
    if (extent < 1 || extent > INT32_MAX) {
      return jitload_fail("ValueError",
                          "%s(): argument '%s' must have 1 to 2147483647 elements in axis %d for %s, got %lld",
                          kernel->name, param->name, (int)i, param->type, extent);
    }
    const uint64_t step = (uint64_t)stride * (uint64_t)spec->element_bytes;
    if (i < last && extent > 1 && (stride < 0 || step % JITLOAD_TMA_ALIGNMENT != 0)) {
      return jitload_fail("ValueError",
                          "%s(): argument '%s' must have strides of a multiple of 16 bytes for %s, but axis %d has %lld "
                          "elements of %d bytes",
                          kernel->name, param->name, param->type, (int)i, stride, (int)spec->element_bytes);
    }
  }
  const uint64_t alignment = spec->is_fp4 ? 2 * JITLOAD_TMA_ALIGNMENT : JITLOAD_TMA_ALIGNMENT;
  if (address % alignment == 0) return 0;
  return jitload_fail("ValueError", "%s(): argument '%s' must be aligned to %d bytes for %s, but its address is 0x%llx",
                      kernel->name, param->name, (int)alignment, param->type, (unsigned long long)address);
}

/* Encode a tensor map. The driver takes the axes in reverse order, and strides in bytes except the last axis's. */
static int jitload_encode_tensor_map(const jitload_driver* driver, const jitload_kernel* kernel,
                                     const jitload_descriptor_spec* spec, uint64_t address,
                                     jitload_tensor_descriptor* descriptor) {
  const uint32_t steps[JITLOAD_MAX_RANK] = {1, 1, 1, 1, 1};
  const int32_t rank = spec->rank;
  uint64_t extents[JITLOAD_MAX_RANK], strides[JITLOAD_MAX_RANK];
  uint32_t box[JITLOAD_MAX_RANK];
  for (int32_t i = 0; i < rank; ++i) {
    const int32_t axis = rank - 1 - i;
    box[i] = spec->box[axis];
    extents[i] = (uint64_t)descriptor->shape[axis] << (i == 0 && spec->is_fp4);
    if (i == 0) continue;
    const uint64_t bytes = (uint64_t)descriptor->strides[axis] * (uint64_t)spec->element_bytes;
    strides[i - 1] = (bytes + JITLOAD_TMA_ALIGNMENT - 1) & ~(uint64_t)(JITLOAD_TMA_ALIGNMENT - 1);
  }
  const jitload_cu_result code = driver->encode_tiled(
      descriptor->map, descriptor->rounds ? JITLOAD_TMA_TF32 : spec->type, (uint32_t)rank, (void*)address, extents,
      strides, box, steps, JITLOAD_TMA_INTERLEAVE_NONE, spec->swizzle, JITLOAD_TMA_PROMOTION_128,
      descriptor->pads_nan ? JITLOAD_TMA_FILL_NAN : JITLOAD_TMA_FILL_ZERO);
  if (code == JITLOAD_CUDA_SUCCESS) return 0;
  const jitload_param* param = &kernel->params[spec->param];
  char action[256];
  snprintf(action, sizeof action, "the driver cannot make the descriptor of argument '%s' (%s)", param->name,
           param->type);
  return jitload_raise_driver_error(driver, kernel->name, action, code);
}

int jitload_make_descriptor(const jitload_driver* driver, const jitload_kernel* kernel,
                                   const jitload_descriptor_spec* spec, const TVMFFIAny* value,
                                   jitload_tensor_descriptor* descriptor) {
  const jitload_param* param = &kernel->params[spec->param];
  const DLTensor* tensor = jitload_get_tensor(value);
  if (tensor == NULL) {
    return jitload_fail("TypeError",
                        "%s(): argument '%s' must be a tensor, because %s is made from its shape and strides",
                        kernel->name, param->name, param->type);
  }
  if (tensor->ndim != spec->rank) {
    return jitload_fail("ValueError", "%s(): argument '%s' must have %d dimension%s for %s, got %d", kernel->name,
                        param->name, (int)spec->rank, spec->rank == 1 ? "" : "s", param->type,
                        (int)tensor->ndim);
  }
  jitload_copy_layout(tensor, descriptor);
  const uint64_t address = jitload_tensor_address(tensor);
  if (jitload_check_tma_layout(kernel, spec, descriptor, address) != 0) return -1;
  return driver == NULL ? 0 : jitload_encode_tensor_map(driver, kernel, spec, address, descriptor);
}
