/* Reading the rarer kinds of arguments, off the fast path. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"
#include "python_api.h"

int jitload_fail(const char* kind, const char* format, ...) {
  char text[4096];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  // TVMFFIErrorSetRaisedFromCStr would add a C++ backtrace. In a process with torch, the first one takes a second.
  const TVMFFIByteArray kind_bytes = {kind, strlen(kind)}, message = {text, strlen(text)}, backtrace = {"", 0};
  TVMFFIObjectHandle error;
  if (TVMFFIErrorCreate(&kind_bytes, &message, &backtrace, &error) == 0) {
    TVMFFIErrorSetRaised(error);
    TVMFFIObjectDecRef(error);
  }
  return -1;
}

int jitload_read_big_int(const TVMFFIAny* value, uint64_t* out) {
  typedef TVMFFIByteArray (*content_fn)(const TVMFFIAny*);
  content_fn content = (content_fn)dlsym(RTLD_DEFAULT, "TVMFFIBigIntGetContentByteArray");
  if (content == NULL) return 0;
  const TVMFFIByteArray words = content(value);
  if (words.size != 16) return 0;
  uint64_t pair[2];
  memcpy(pair, words.data, sizeof pair);
  *out = pair[0];
  return pair[1] == 0;
}

/* Round a double to a small IEEE-like float, to nearest even. `finite_only` means e4m3fn, which has no infinity and one
 * NaN: larger numbers become the largest finite one, as in CUDA and torch. */
uint32_t jitload_round_to_small_float(double value, int exponent_bits, int mantissa_bits, int finite_only) {
  const uint32_t sign = (uint32_t)__builtin_signbit(value) << (exponent_bits + mantissa_bits);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  const uint32_t nan = finite_only ? infinity | ((1u << mantissa_bits) - 1) : infinity | (1u << (mantissa_bits - 1));
  double magnitude = __builtin_fabs(value);
  if (magnitude != magnitude) return sign | nan;
  if (magnitude == 0) return sign;
  uint64_t bits;
  memcpy(&bits, &magnitude, sizeof bits);
  int exponent = (int)(bits >> 52) - 1023;
  if (exponent < 1 - bias) exponent = 1 - bias; /* subnormals share the smallest exponent */
  /* Scale the value to units of its last place. Adding 2^52 rounds it to an integer, ties to even. */
  const uint64_t unit_bits = (uint64_t)(1023 + mantissa_bits - exponent) << 52;
  double unit;
  memcpy(&unit, &unit_bits, sizeof unit);
  if (exponent > bias + 1) return sign | (finite_only ? nan - 1 : infinity);
  const volatile double scaled = magnitude * unit + 4503599627370496.0;
  const uint32_t rounded = (uint32_t)(scaled - 4503599627370496.0);
  /* A rounded mantissa of 2^(mantissa_bits+1) carries into the exponent by itself. */
  const uint32_t encoded = rounded + ((uint32_t)(exponent + bias - 1) << mantissa_bits);
  if (finite_only) return sign | (encoded >= nan ? nan - 1 : encoded);
  return sign | (encoded >= infinity ? infinity : encoded);
}

/* Round a double to e8m0, the nearest power of two without a sign; ties round up, as in torch. Numbers that are too
 * large or not finite become 255. */
uint32_t jitload_round_to_e8m0(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  const int exponent = (int)(bits >> 52 & 2047) - 1023;
  const int rounded = exponent + (int)(bits >> 51 & 1);
  return rounded > 127 ? 255u : rounded < -127 ? 0u : (uint32_t)(rounded + 127);
}

/* Several threads may look the functions up at the same time; all get the same result. */
const jitload_python_api* jitload_find_python(void) {
  static jitload_python_api cached;
  static int is_complete;
  if (__atomic_load_n(&is_complete, __ATOMIC_ACQUIRE)) return &cached;
  jitload_python_api api;
  int has_all = 1;
#define JITLOAD_FIND_(field, symbol, ...)            \
  *(void**)&api.field = dlsym(RTLD_DEFAULT, symbol); \
  has_all &= api.field != NULL;
  JITLOAD_PYTHON_FUNCTIONS(JITLOAD_FIND_)
  JITLOAD_PYTHON_OBJECTS(JITLOAD_FIND_)
#undef JITLOAD_FIND_
  if (!has_all) return NULL;
  cached = api;
  __atomic_store_n(&is_complete, 1, __ATOMIC_RELEASE);
  return &cached;
}

/* Python's buffer protocol, for ctypes structures: they arrive as opaque Python objects. */
typedef struct jitload_py_buffer {
  void* data;
  void* owner;
  ptrdiff_t size;
  char padding[256]; /* Py_buffer has 80 bytes in all */
} jitload_py_buffer;

int jitload_read_buffer(void* object, void* out, size_t size, ptrdiff_t* length) {
  const jitload_python_api* python = jitload_find_python();
  *length = -1;
  if (python == NULL) return 0;
  const int state = python->ensure();
  jitload_py_buffer buffer;
  if (python->get_buffer(object, &buffer, 0) == 0) {
    *length = buffer.size;
    if (out != NULL && buffer.size == (ptrdiff_t)size) memcpy(out, buffer.data, size);
    python->release_buffer(&buffer);
  } else {
    python->clear_error();
  }
  python->release(state);
  return *length == (ptrdiff_t)size;
}

int jitload_format_class(void* object, char* text, size_t size) {
  const jitload_python_api* python = jitload_find_python();
  if (python == NULL) return 0;
  const int state = python->ensure();
  void* type = python->type(object);
  void* name = type != NULL ? python->attribute(type, "__qualname__") : NULL;
  void* module = type != NULL ? python->attribute(type, "__module__") : NULL;
  const char* utf8 = name != NULL ? python->utf8(name) : NULL;
  const char* prefix = module != NULL ? python->utf8(module) : NULL;
  const int is_bare = prefix == NULL || strcmp(prefix, "builtins") == 0;
  if (utf8 != NULL) snprintf(text, size, "%s%s%s", is_bare ? "" : prefix, is_bare ? "" : ".", utf8);
  const int has_name = utf8 != NULL;
  python->decref(module);
  python->decref(name);
  python->decref(type);
  python->clear_error();
  python->release(state);
  return has_name;
}

/* Read a NumPy bool, which tvm-ffi passes as an opaque object. Return 0 for other objects. */
int jitload_read_numpy_bool(const TVMFFIAny* value, uint64_t* out) {
  char name[32];
  if (value->type_index != kTVMFFIOpaquePyObject) return 0;
  void* object = *(void**)((char*)value->v_obj + sizeof(TVMFFIObject));
  if (!jitload_format_class(object, name, sizeof name)) return 0;
  if (strcmp(name, "numpy.bool") != 0 && strcmp(name, "numpy.bool_") != 0) return 0;
  unsigned char byte;
  ptrdiff_t size;
  const int is_read = jitload_read_buffer(object, &byte, 1, &size);
  *out = byte != 0;
  return is_read;
}

/* Read an address: None or an int if the `Launch` allows them, or a ctypes pointer. */
int jitload_read_address(const jitload_param* param, const TVMFFIAny* value, uint64_t* out) {
  const int32_t type = value->type_index;
  *out = type == kTVMFFINone ? 0 : (uint64_t)value->v_int64; /* which is also a ctypes pointer */
  if (type == kTVMFFIOpaquePtr) return 1;
  if (type == kTVMFFINone) return (param->flags & JITLOAD_NULLABLE) != 0;
  if (!(param->flags & JITLOAD_RAW)) return 0;
  return type == kTVMFFIInt ? value->v_int64 >= 0 : type == JITLOAD_BIG_INT && jitload_read_big_int(value, out);
}

/* ---- structures that are passed by value -------------------------------------------------------------------------
 *
 * They are read from bytes, from ctypes structures, whose members Python code compares with the kernel's
 * (loader/structures.py), and for CUDA's vectors, from tuples of numbers.
 */

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
  } else if (value->type_index == kTVMFFIBytes || value->type_index == kTVMFFIByteArrayPtr) {
    const int is_object = value->type_index == kTVMFFIBytes;
    const char* address = is_object ? (const char*)value->v_obj + sizeof(TVMFFIObject) : (const char*)value->v_ptr;
    data = ((const TVMFFIByteArray*)address)->data;
    *length = (ptrdiff_t)((const TVMFFIByteArray*)address)->size;
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
