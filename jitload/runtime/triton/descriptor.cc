/* Tensor descriptors: reading Triton's `TensorDescriptor` objects, or any with the same attributes. */
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
  const int32_t rank = jitload_read_integers(python, object, "shape", out->layout.shape);
  out->block_rank = jitload_read_integers(python, object, "block_shape", out->block);
  if (rank < 0 || out->block_rank != rank || jitload_read_integers(python, object, "strides", out->layout.strides) != rank) {
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
  out->tensor.shape = out->layout.shape;
  out->tensor.strides = out->layout.strides;
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

enum { JITLOAD_TMA_FILL_NAN = 1, JITLOAD_TMA_TF32 = 11 };

int jitload_block_matches(const jitload_descriptor_spec* spec, const jitload_tensor_descriptor* descriptor) {
  if (descriptor->block_rank == 0) return 1;
  if (descriptor->block_rank != spec->map->rank) return 0;
  for (int32_t i = 0; i < spec->map->rank; ++i) {
    if (descriptor->block[i] != (int64_t)spec->block[i]) return 0;
  }
  return 1;
}

int jitload_make_descriptor(const jitload_kernel* kernel, const jitload_descriptor_spec* spec, const TVMFFIAny* value,
                            jitload_tensor_descriptor* descriptor) {
  if (jitload_read_layout(kernel, spec->map, value, &descriptor->layout) != 0) return -1;
  jitload_tensor_map map = *spec->map;
  if (descriptor->rounds && map.type >= 0) map.type = JITLOAD_TMA_TF32;
  if (descriptor->pads_nan) map.fill = JITLOAD_TMA_FILL_NAN;
  return jitload_encode_tensor_map(kernel, &map, &descriptor->layout, descriptor->map);
}
