/* Reads Triton's `TensorDescriptor` through Python's C API: a base tensor with a shape, strides and a block of its own.
 *
 * Any object with these attributes is accepted.
 */
#include "python_api.h"
#include "triton_call.h"

/* Read the integers of an attribute. Return their number, or -1. */
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

/* The beginning of DLPack's exchange table, as far as it is used. */
typedef struct jitload_exchange {
  uint32_t major, minor;
  void* previous;
  void* allocator;
  void* from_object;
  void* to_object;
  int (*view)(void* object, DLTensor* out);
  jitload_stream_source_fn stream_source;
} jitload_exchange;

static int jitload_read_exchanged(const jitload_python_api* python, void* base, jitload_host_descriptor* out) {
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

/* Read the tensor with `__dlpack__(stream=-1)`, which every framework has. The object keeps the memory alive. */
static int jitload_read_capsule(const jitload_python_api* python, void* base, jitload_host_descriptor* out) {
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

static void jitload_read_options(const jitload_python_api* python, void* object, jitload_host_descriptor* out) {
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

static int jitload_read_object_parts(const jitload_python_api* python, void* object, jitload_host_descriptor* out) {
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

extern "C" int jitload_read_descriptor_object(const TVMFFIAny* value, jitload_host_descriptor* out) {
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
