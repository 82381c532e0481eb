/* Reading the rarer kinds of arguments, off the fast path. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

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
