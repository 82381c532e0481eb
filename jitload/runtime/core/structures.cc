/* Reads structures that are passed by value: from bytes, from ctypes structures, whose members Python code compares
 * with the kernel's (loader/structures.py), and for CUDA's vectors, from tuples of numbers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"
#include "python_api.h"

/* A ctypes type that matches a parameter. Such records are never freed, because other threads may read them. */
typedef struct jitload_checked_type {
  const jitload_param* param;
  void* type;
} jitload_checked_type;

int jitload_compare_layout(const jitload_param* param, void* object, char* problem, size_t problem_size) {
  static const jitload_checked_type* checked[64];
  const jitload_python_api* python = jitload_find_python();
  if (python == NULL) return 1;
  const int state = python->ensure();
  void* type = python->type(object);
  const jitload_checked_type** slot = &checked[(((uintptr_t)type >> 4) ^ ((uintptr_t)param >> 3)) % 64];
  const jitload_checked_type* last = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  int is_same = last != NULL && last->type == type && last->param == param;
  if (!is_same) {
    void* module = python->import_module("jitload.loader.structures"); /* without jitload, nothing is compared */
    void* difference = module == NULL ? NULL
                                      : python->call_method(module, "find_difference", "OIsz", type,
                                                            (unsigned)param->size, param->type, param->layout);
    is_same = difference == NULL || difference == python->none;
    if (!is_same) snprintf(problem, problem_size, "%s", python->utf8(difference));
    python->clear_error();
    python->decref(difference);
    python->decref(module);
    jitload_checked_type* entry = is_same ? (jitload_checked_type*)malloc(sizeof *entry) : NULL;
    if (entry != NULL) {
      *entry = jitload_checked_type{param, type};
      python->incref(type);
      __atomic_store_n(slot, entry, __ATOMIC_RELEASE);
    }
  }
  python->decref(type);
  python->release(state);
  return is_same;
}

const jitload_sequence* jitload_get_sequence(const TVMFFIAny* value) {
  const int32_t list = 75; /* the type index of a list; tvm-ffi has lists since 0.1.9 */
  if (value->type_index != kTVMFFIArray && value->type_index != list) return NULL;
  return (const jitload_sequence*)((const char*)value->v_obj + sizeof(TVMFFIObject));
}

int jitload_is_vector(const jitload_param* param, jitload_param* element, int* count) {
  char kind;
  int size;
  /* Vectors have a layout (model.py) of one part, such as `=f4*2@0`. */
  if (param->layout == NULL || sscanf(param->layout, "=%c%d*%d@", &kind, &size, count) < 3 || kind == 'b') return 0;
  *element = jitload_param{};
  element->name = param->name;
  element->type = param->type;
  element->size = (uint32_t)size;
  element->kind = kind == 'i' ? JITLOAD_INT : kind == 'u' ? JITLOAD_UINT : JITLOAD_FLOAT;
  element->dtype_code = kind == 'r' ? kDLBfloat : kDLFloat;
  return 1;
}

/* Read one of CUDA's vectors from a tuple or list of its elements. As in CUDA, dim3 may have fewer than three. */
static int jitload_read_vector(const jitload_param* param, const TVMFFIAny* value, void* out) {
  const jitload_sequence* sequence = jitload_get_sequence(value);
  jitload_param element;
  int count = 0;
  if (sequence == NULL || !jitload_is_vector(param, &element, &count)) return 0;
  const int may_be_short = strcmp(param->type, "dim3") == 0 && sequence->size > 0 && sequence->size < count;
  if (sequence->size != count && !may_be_short) return 0;
  for (int i = 0; i < count; ++i) {
    uint64_t bits = 1;
    if (i < sequence->size && !jitload_read_number(&element, &sequence->items[i], &bits)) return 0;
    if (out != NULL) memcpy((char*)out + (size_t)i * element.size, &bits, element.size);
  }
  return 1;
}

/* Copy a by-value structure from a tuple of a vector's elements, from bytes, or from a buffer of its size. */
int jitload_read_struct(const jitload_param* param, const TVMFFIAny* value, void* out, ptrdiff_t* length) {
  const size_t size = param->size;
  const char* data = NULL;
  if (value->type_index == kTVMFFISmallBytes) {
    data = value->v_bytes;
    *length = (ptrdiff_t)value->small_str_len;
  } else if (value->type_index == kTVMFFIBytes) {
    const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)((const char*)value->v_obj + sizeof(TVMFFIObject));
    data = bytes->data;
    *length = (ptrdiff_t)bytes->size;
  } else if (value->type_index == kTVMFFIByteArrayPtr) {
    const TVMFFIByteArray* bytes = (const TVMFFIByteArray*)value->v_ptr;
    data = bytes->data;
    *length = (ptrdiff_t)bytes->size;
  } else if (value->type_index == kTVMFFIOpaquePyObject) {
    void* const* handle = (void* const*)((const char*)value->v_obj + sizeof(TVMFFIObject));
    char ignored[160];
    return jitload_read_buffer(*handle, out, size, length) &&
           jitload_compare_layout(param, *handle, ignored, sizeof ignored);
  } else {
    *length = -1;
    return jitload_read_vector(param, value, out);
  }
  if (*length != (ptrdiff_t)size) return 0;
  if (out != NULL) memcpy(out, data, size);
  return 1;
}
