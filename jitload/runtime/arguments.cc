/* Arguments off the fast path: reading the rarer kinds, and error messages for invalid arguments. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "python_api.h"

extern "C" int jitload_fail(const char* kind, const char* format, ...) {
  char text[4096];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

extern "C" int jitload_read_big_int(const TVMFFIAny* value, uint64_t* out) {
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
extern "C" uint32_t jitload_round_to_small_float(double value, int exponent_bits, int mantissa_bits, int finite_only) {
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
  /* The value in units of its last place; adding 2^52 rounds it to an integer, ties to even. */
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
extern "C" uint32_t jitload_round_to_e8m0(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  const int exponent = (int)(bits >> 52 & 2047) - 1023;
  const int rounded = exponent + (int)(bits >> 51 & 1);
  return rounded > 127 ? 255u : rounded < -127 ? 0u : (uint32_t)(rounded + 127);
}

/* Several threads may look the functions up at the same time; all get the same result. */
extern "C" const jitload_python_api* jitload_find_python(void) {
  static jitload_python_api cached;
  static int is_complete;
  if (__atomic_load_n(&is_complete, __ATOMIC_ACQUIRE)) return &cached;
  jitload_python_api api;
  int has_all = 1;
#define JITLOAD_FIND_(field, symbol, result, parameters) \
  *(void**)&api.field = dlsym(RTLD_DEFAULT, symbol);     \
  has_all &= api.field != NULL;
  JITLOAD_PYTHON_API(JITLOAD_FIND_)
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

/* Copy the bytes of a Python object. Return 1 if it has exactly `size` bytes, otherwise 0; `*length` becomes its
 * length, or -1 without a buffer. */
static int jitload_read_buffer(void* object, void* out, size_t size, ptrdiff_t* length) {
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

/* Format the qualified class name of a Python object, such as "decimal.Decimal"; builtins have no prefix. */
static int jitload_format_class(void* object, char* text, size_t size) {
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
extern "C" int jitload_read_numpy_bool(const TVMFFIAny* value, uint64_t* out) {
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

/* ---- structures by value --------------------------------------------------------------------------------------- */

/* Numbers in a structure: a part of Parameter.layout (model.py), `f4*2@8`. The kinds are `f` (float), `r` (bfloat16),
 * `i` and `u` (integers, bool, pointers) and `b` (bytes of any meaning). */
typedef struct jitload_numbers {
  char kind;
  int size, count, offset;
} jitload_numbers;

/* Read the first part of a layout. Return the rest of it, or NULL if there is none. */
static const char* jitload_read_numbers(const char* layout, jitload_numbers* out) {
  int length = 0;
  if (layout != NULL && *layout == '=') ++layout;
  if (layout == NULL || sscanf(layout, "%c%d*%d@%d%n", &out->kind, &out->size, &out->count, &out->offset, &length) < 4) {
    return NULL;
  }
  return layout + length + (layout[length] == ';');
}

/* Whether the kernel's text tells what these bytes mean, and ctypes has a type for it. */
static int jitload_is_comparable(const jitload_numbers* numbers) {
  return numbers->kind != 'b' && numbers->kind != 'r' && !(numbers->kind == 'f' && numbers->size < 4);
}

static const char* jitload_kind_name(char kind) {
  return kind == 'f' ? "a float" : kind == 'b' ? "a number" : "an integer";
}

/* A ctypes type that is compared with a parameter's layout: the bytes that its members cover, and the first
 * disagreement. */
typedef struct jitload_comparison {
  const jitload_param* param;
  const jitload_python_api* python;
  unsigned char* is_covered;
  char* problem;
  size_t problem_size;
} jitload_comparison;

static int jitload_compare_number(jitload_comparison* c, char kind, ptrdiff_t offset, ptrdiff_t size) {
  jitload_numbers numbers;
  if (offset < 0 || size < 0 || offset + size > (ptrdiff_t)c->param->size) return 0;
  memset(c->is_covered + offset, 1, (size_t)size);
  for (const char* rest = c->param->layout; (rest = jitload_read_numbers(rest, &numbers)) != NULL;) {
    const ptrdiff_t begin = numbers.offset, end = begin + (ptrdiff_t)numbers.size * numbers.count;
    if (offset + size <= begin || offset >= end || !jitload_is_comparable(&numbers)) continue;
    const int is_same_kind = (kind == 'f') == (numbers.kind == 'f');
    if (is_same_kind && size == numbers.size && (offset - begin) % size == 0) continue;
    snprintf(c->problem, c->problem_size, "has %s of %td byte%s at byte %td, where %s has %s of %d",
             jitload_kind_name(kind), size, size == 1 ? "" : "s", offset, c->param->type,
             jitload_kind_name(numbers.kind), numbers.size);
    return 0;
  }
  return 1;
}

static ptrdiff_t jitload_read_long(const jitload_python_api* python, void* object, const char* name) {
  void* attribute = python->attribute(object, name);
  const ptrdiff_t number = attribute != NULL ? (ptrdiff_t)python->long_value(attribute) : -1;
  python->decref(attribute);
  python->clear_error();
  return number;
}

static int jitload_compare_type(jitload_comparison* c, void* type, ptrdiff_t offset, ptrdiff_t size);

static int jitload_compare_fields(jitload_comparison* c, void* type, void* fields, ptrdiff_t offset) {
  const jitload_python_api* python = c->python;
  int is_same = 1;
  void* base = python->attribute(type, "__base__");
  void* base_fields = base != NULL ? python->attribute(base, "_fields_") : NULL;
  if (base_fields != NULL) is_same = jitload_compare_fields(c, base, base_fields, offset);
  python->decref(base_fields);
  python->decref(base);
  python->clear_error();
  const ptrdiff_t count = python->length(fields);
  for (ptrdiff_t i = 0; is_same && i < count; ++i) {
    void* field = python->item(fields, i);
    void* name = field != NULL ? python->item(field, 0) : NULL;
    void* field_type = field != NULL ? python->item(field, 1) : NULL;
    const char* text = name != NULL ? python->utf8(name) : NULL;
    void* member = text != NULL ? python->attribute(type, text) : NULL;
    if (member != NULL && python->length(field) == 2) { /* a bit field has three items, and no place of its own */
      is_same = jitload_compare_type(c, field_type, offset + jitload_read_long(python, member, "offset"),
                                     jitload_read_long(python, member, "size"));
    }
    python->decref(member);
    python->decref(field_type);
    python->decref(name);
    python->decref(field);
  }
  python->clear_error();
  return is_same;
}

/* Return the kind of a simple ctypes type, or 0 for other types. */
static char jitload_simple_kind(const jitload_python_api* python, void* type) {
  void* code = python->attribute(type, "_type_");
  const char* text = code != NULL ? python->utf8(code) : NULL;
  const char kind = text == NULL || strlen(text) != 1 ? 0 : *text == 'f' || *text == 'd' ? 'f' : *text == 'g' ? 'b' : 'i';
  python->decref(code);
  python->clear_error();
  return kind;
}

static int jitload_compare_type(jitload_comparison* c, void* type, ptrdiff_t offset, ptrdiff_t size) {
  const jitload_python_api* python = c->python;
  void* swapped = python->attribute(type, "_swappedbytes_");
  python->decref(swapped);
  python->clear_error();
  if (swapped != NULL) {
    snprintf(c->problem, c->problem_size, "has bytes in the other order");
    return 0;
  }
  void* fields = python->attribute(type, "_fields_");
  python->clear_error();
  if (fields != NULL) {
    const int is_same = jitload_compare_fields(c, type, fields, offset);
    python->decref(fields);
    return is_same;
  }
  const ptrdiff_t count = jitload_read_long(python, type, "_length_");
  if (count < 0) { /* a number, or a pointer, whose _type_ is a type */
    const char kind = jitload_simple_kind(python, type);
    return jitload_compare_number(c, kind != 0 ? kind : 'i', offset, size);
  }
  void* element = python->attribute(type, "_type_");
  const ptrdiff_t step = count > 0 ? size / count : 0;
  const char kind = element != NULL ? jitload_simple_kind(python, element) : 0;
  int is_same = 1;
  for (ptrdiff_t i = 0; is_same && i < count; ++i) {
    is_same = kind != 0 ? jitload_compare_number(c, kind, offset + i * step, step)
                        : jitload_compare_type(c, element, offset + i * step, step);
  }
  python->decref(element);
  return is_same;
}

/* Whether an object is of a ctypes type whose members could be compared; others, such as bytes and arrays of bytes,
 * are taken as they are. */
static int jitload_has_members(const jitload_python_api* python, void* type) {
  void* fields = python->attribute(type, "_fields_");
  void* element = python->attribute(type, "_type_");
  const ptrdiff_t count = jitload_read_long(python, type, "_length_");
  python->clear_error();
  int has_members = fields != NULL || (element != NULL && jitload_simple_kind(python, type) != 0);
  if (count >= 0 && element != NULL) {
    void* code = python->attribute(element, "_type_");
    const char* text = code != NULL ? python->utf8(code) : NULL;
    has_members = text == NULL || strchr("bBc", *text) == NULL;
    python->decref(code);
    python->clear_error();
  }
  python->decref(element);
  python->decref(fields);
  return has_members;
}

/* Types that agree with a parameter; entries are never removed. */
typedef struct jitload_checked_type {
  const jitload_param* param;
  void* type;
} jitload_checked_type;

/* Compare the members of a ctypes object with a parameter's layout. Return 0 and describe the first difference. */
static int jitload_compare_layout(const jitload_param* param, void* object, char* problem, size_t problem_size) {
  static const jitload_checked_type* checked[64];
  const jitload_python_api* python = jitload_find_python();
  if (param->layout == NULL || python == NULL) return 1;
  const int state = python->ensure();
  void* type = python->type(object);
  const jitload_checked_type** slot = &checked[(((uintptr_t)type >> 4) ^ ((uintptr_t)param >> 3)) % 64];
  const jitload_checked_type* known = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  int is_same = known != NULL && known->type == type && known->param == param;
  if (!is_same && !jitload_has_members(python, type)) {
    is_same = 1;
  } else if (!is_same) {
    unsigned char* is_covered = (unsigned char*)calloc(param->size, 1);
    jitload_comparison comparison = {param, python, is_covered, problem, problem_size};
    is_same = is_covered != NULL && jitload_compare_type(&comparison, type, 0, param->size);
    jitload_numbers numbers;
    for (const char* rest = param->layout; is_same && (rest = jitload_read_numbers(rest, &numbers)) != NULL;) {
      const size_t bytes = (size_t)numbers.size * (size_t)numbers.count;
      if (!jitload_is_comparable(&numbers) || memchr(is_covered + numbers.offset, 0, bytes) == NULL) continue;
      snprintf(problem, problem_size, "has no member for %s of %d byte%s at byte %d", jitload_kind_name(numbers.kind),
               numbers.size, numbers.size == 1 ? "" : "s", numbers.offset);
      is_same = 0;
    }
    free(is_covered);
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

/* tvm-ffi's arrays and lists begin like this, behind the object's header. */
typedef struct jitload_sequence {
  const TVMFFIAny* items;
  int64_t size;
} jitload_sequence;

static const jitload_sequence* jitload_get_sequence(const TVMFFIAny* value) {
  const int32_t list = 75; /* since tvm-ffi 0.1.9 */
  if (value->type_index != kTVMFFIArray && value->type_index != list) return NULL;
  return (const jitload_sequence*)((const char*)value->v_obj + sizeof(TVMFFIObject));
}

/* Describe the parts of a CUDA vector: its elements as a parameter, and their number. Return 0 for other structures. */
static int jitload_is_vector(const jitload_param* param, jitload_param* element, int* count) {
  jitload_numbers numbers;
  if (param->layout == NULL || *param->layout != '=' || jitload_read_numbers(param->layout, &numbers) == NULL) return 0;
  if (numbers.kind == 'b') return 0;
  *element = jitload_param{};
  element->name = param->name;
  element->type = param->type;
  element->size = (uint32_t)numbers.size;
  element->kind = numbers.kind == 'i' ? JITLOAD_INT : numbers.kind == 'u' ? JITLOAD_UINT : JITLOAD_FLOAT;
  element->dtype_code = numbers.kind == 'r' ? kDLBfloat : kDLFloat;
  *count = numbers.count;
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
extern "C" int jitload_read_struct(const jitload_param* param, const TVMFFIAny* value, void* out, ptrdiff_t* length) {
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

/* Read an address: None or an int if the `Launch` allows them, or a ctypes pointer. */
extern "C" int jitload_read_address(const jitload_param* param, const TVMFFIAny* value, uint64_t* out) {
  if (value->type_index == kTVMFFIOpaquePtr) {
    *out = (uint64_t)(uintptr_t)value->v_ptr;
  } else if (value->type_index == kTVMFFINone && (param->flags & JITLOAD_NULLABLE)) {
    *out = 0;
  } else if (value->type_index == kTVMFFIInt && (param->flags & JITLOAD_RAW)) {
    *out = (uint64_t)value->v_int64;
    if (value->v_int64 < 0) return 0;
  } else if (value->type_index != JITLOAD_BIG_INT || !(param->flags & JITLOAD_RAW) || !jitload_read_big_int(value,
                                                                                                            out)) {
    return 0;
  }
  return (*out & (uint64_t)(param->alignment - 1)) == 0;
}

/* ---- error messages -------------------------------------------------------------------------------------------- */

static void jitload_format_dtype(DLDataType dtype, char* text, size_t size) {
  static const char* const small[] = {"float8_e3m4",   "float8_e4m3",     "float8_e4m3b11fnuz", "float8_e4m3fn",
                                      "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                      "float6_e2m3fn", "float6_e3m2fn",   "float4_e2m1fn"};
  static const char* const base[] = {"int", "uint", "float", "handle", "bfloat", "complex"};
  int length = 0;
  if (dtype.code == kDLBool) {
    length = snprintf(text, size, "bool");
  } else if (dtype.code >= kDLFloat8_e3m4 && dtype.code <= kDLFloat4_e2m1fn) {
    length = snprintf(text, size, "%s", small[dtype.code - kDLFloat8_e3m4]);
  } else if (dtype.code <= kDLComplex) {
    length = snprintf(text, size, "%s%d", base[dtype.code], dtype.bits);
  } else {
    length = snprintf(text, size, "dtype(code=%d, bits=%d)", dtype.code, dtype.bits);
  }
  if (dtype.lanes > 1 && length > 0 && (size_t)length < size) {
    snprintf(text + length, size - (size_t)length, "x%d", dtype.lanes);
  }
}

static const char* jitload_format_device(DLDevice device, char* text, size_t size) {
  const char* name = device.device_type == kDLCPU        ? "cpu"
                     : device.device_type == kDLCUDA     ? "cuda"
                     : device.device_type == kDLCUDAHost ? "cuda_host (pinned memory)"
                     : device.device_type == kDLCUDAManaged ? "cuda_managed"
                     : device.device_type == kDLROCM     ? "rocm"
                     : device.device_type == kDLMetal    ? "metal"
                                                         : NULL;
  if (name == NULL) {
    snprintf(text, size, "a device of DLPack type %d", (int)device.device_type);
  } else if (device.device_type == kDLCUDA || device.device_type == kDLROCM) {
    snprintf(text, size, "%s:%d", name, (int)device.device_id);
  } else {
    snprintf(text, size, "%s", name);
  }
  return text;
}

/* "an int64", but "a uint8". */
static const char* jitload_article(const char* name) { return *name != 0 && strchr("aeio",
                                                                                   *name) != NULL ? "an" : "a"; }

static const char* jitload_format_value(const TVMFFIAny* value, char* text, size_t size) {
  const char* name = NULL;
  switch (value->type_index) {
    case kTVMFFINone: name = "None"; break;
    case kTVMFFIInt:
    case JITLOAD_BIG_INT: name = "int"; break;
    case kTVMFFIBool: name = "bool"; break;
    case kTVMFFIFloat: name = "float"; break;
    case kTVMFFIOpaquePtr: name = "a pointer"; break;
    case kTVMFFIDataType: name = "a dtype"; break;
    case kTVMFFIDevice: name = "a device"; break;
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr: name = "str"; break;
    case kTVMFFIByteArrayPtr:
    case kTVMFFISmallBytes:
    case kTVMFFIBytes: name = "bytes"; break;
    case kTVMFFIFunction: name = "a function"; break;
    case kTVMFFIShape:
    case kTVMFFIArray: name = "a list or tuple"; break;
    case kTVMFFIMap: name = "a dict"; break;
    case kTVMFFIModule: name = "a module"; break;
    default: break;
  }
  const DLTensor* tensor = jitload_get_tensor(value);
  if (name != NULL) {
    snprintf(text, size, "%s", name);
  } else if (tensor != NULL) {
    char dtype[48], device[48];
    jitload_format_dtype(tensor->dtype, dtype, sizeof dtype);
    snprintf(text, size, "%s %s tensor on %s", jitload_article(dtype), dtype,
             jitload_format_device(tensor->device, device, sizeof device));
  } else if (value->type_index != kTVMFFIOpaquePyObject ||
             !jitload_format_class(*(void**)((char*)value->v_obj + sizeof(TVMFFIObject)), text, size)) {
    snprintf(text, size, "an object of type index %d", (int)value->type_index);
  }
  return text;
}

static const char* jitload_supported_devices(const jitload_kernel* kernel) {
  return kernel->cpu == NULL ? "CUDA" : kernel->module->image_count == 0 ? "CPU" : "CUDA or CPU";
}

static int jitload_is_supported_device(const jitload_kernel* kernel, DLDevice device) {
  if (jitload_is_cuda(device)) return kernel->cpu == NULL || kernel->module->image_count != 0;
  return kernel->cpu != NULL && jitload_is_host(device);
}

static void jitload_format_expected(const jitload_kernel* kernel, const jitload_param* param, char* text, size_t size) {
  const char* or_none = (param->flags & JITLOAD_NULLABLE) ? " or None" : "";
  const char* or_address = (param->flags & JITLOAD_RAW) ? " or an int address" : "";
  const char* or_object = (param->flags & JITLOAD_DESCRIBED) ? " or a TensorDescriptor" : "";
  if (param->kind == JITLOAD_POINTER) {
    char dtype[48] = "";
    DLDataType expected = {param->dtype_code, param->dtype_bits, 1};
    if (param->dtype_bits != 0) jitload_format_dtype(expected, dtype, sizeof dtype);
    const char* of_addresses = "";
    if (param->flags & JITLOAD_ADDRESSES) of_addresses = " of addresses (torch.tensor([x.data_ptr() for x in …]))";
    snprintf(text, size, "%s %s%s%s tensor%s%s%s%s", jitload_article(dtype), dtype, dtype[0] ? " " : "",
             jitload_supported_devices(kernel), of_addresses, or_object, or_none, or_address);
  } else if (param->kind == JITLOAD_STRUCT) {
    jitload_param element;
    int count = 0;
    char tuple[48] = "";
    if (jitload_is_vector(param, &element, &count)) {
      snprintf(tuple, sizeof tuple, "a tuple of %d number%s, ", count, count == 1 ? "" : "s");
    }
    snprintf(text, size, "%sbytes or a ctypes structure of %u byte%s", tuple, (unsigned)param->size,
             param->size == 1 ? "" : "s");
  } else {
    snprintf(text, size, "%s",
             param->kind == JITLOAD_FLOAT ? "a float" : param->kind == JITLOAD_BOOL ? "a bool" : "an int");
  }
}

static int jitload_raise_param_type_error(const jitload_kernel* kernel, const jitload_param* param, const char* got) {
  char expected[160];
  jitload_format_expected(kernel, param, expected, sizeof expected);
  return jitload_fail("TypeError", "%s(): argument '%s' must be %s, got %s", kernel->name, param->name, expected, got);
}

extern "C" int jitload_raise_type_error(const jitload_kernel* kernel, int32_t argument, const char* got) {
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    if (kernel->params[i].argument == argument) return jitload_raise_param_type_error(kernel, &kernel->params[i], got);
  }
  return jitload_fail("TypeError", "%s(): argument %d must not be %s", kernel->name, (int)argument + 1, got);
}

/* Write what to do about a tensor that only a copy of it can replace, which `method` makes. The kernel's results must
 * be copied back from that of an output. */
static void jitload_format_copy(const jitload_kernel* kernel, const jitload_param* param, const char* method, char* text,
                                size_t size) {
  if (strncmp(param->type, "const ", 6) == 0 || param->kind != JITLOAD_POINTER) {
    snprintf(text, size, "pass %s.%s()", param->name, method);
  } else {
    snprintf(text, size, "pass a copy and copy the result back (tmp = %s.%s(); %s(…, tmp, …); %s.copy_(tmp))",
             param->name, method, kernel->name, param->name);
  }
}

extern "C" int jitload_raise_lazy_error(const jitload_kernel* kernel, int32_t argument, const char* pending) {
  char got[512], copy[384], method[16];
  int32_t number = 0; /* every argument has a parameter */
  while (kernel->params[number].argument != argument) ++number;
  snprintf(method, sizeof method, "resolve_%s", pending);
  jitload_format_copy(kernel, &kernel->params[number], method, copy, sizeof copy);
  snprintf(got, sizeof got, "a tensor with a pending %s; %s", *pending == 'c' ? "conjugation" : "negation", copy);
  return jitload_raise_type_error(kernel, argument, got);
}

static int jitload_raise_count_error(const jitload_kernel* kernel, int32_t num_args) {
  char names[1024] = "";
  size_t used = 0;
  for (int32_t i = 0; i < kernel->param_count && used < sizeof names; ++i) {
    if (kernel->params[i].argument < 0) continue;
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : " (", kernel->params[i].name);
  }
  const int is_cut = used + 1 >= sizeof names;
  return jitload_fail("TypeError", "%s() takes %d argument%s%s%s, got %d", kernel->name, (int)kernel->argument_count,
                      kernel->argument_count == 1 ? "" : "s", names, is_cut ? "…)" : used != 0 ? ")" : "", (int)num_args);
}

/* For a ctypes structure whose members differ from the parameter's. */
static int jitload_raise_layout_error(const jitload_kernel* kernel, const jitload_param* param, const TVMFFIAny* value) {
  char problem[256] = "", name[160] = "object";
  void* object = *(void* const*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  jitload_compare_layout(param, object, problem, sizeof problem);
  jitload_format_class(object, name, sizeof name);
  return jitload_fail("TypeError", "%s(): argument '%s' (%s): %s %s; declare its members as in the C++ source, or pass "
                      "bytes, which are not checked", kernel->name, param->name, param->type, name, problem);
}

/* For a tuple or list that is not the elements of the parameter's vector. */
static int jitload_raise_vector_error(const jitload_kernel* kernel, const jitload_param* param, const TVMFFIAny* value) {
  const jitload_sequence* sequence = jitload_get_sequence(value);
  jitload_param element;
  int count = 0;
  if (!jitload_is_vector(param, &element, &count)) return jitload_raise_param_type_error(kernel, param, "a list or tuple");
  const int has_size = sequence->size == count || (strcmp(param->type, "dim3") == 0 && sequence->size < count);
  for (int i = 0; has_size && i < sequence->size; ++i) {
    const TVMFFIAny* item = &sequence->items[i];
    const int is_int = item->type_index == kTVMFFIInt || item->type_index == kTVMFFIBool;
    uint64_t ignored;
    if (jitload_read_number(&element, item, &ignored)) continue;
    if (is_int || item->type_index == JITLOAD_BIG_INT) return jitload_raise_range_error(kernel, &element, item);
    char got[160];
    return jitload_fail("TypeError", "%s(): argument '%s' (%s) must have %s numbers, got %s", kernel->name, param->name,
                        param->type, element.kind == JITLOAD_FLOAT ? "real" : "whole",
                        jitload_format_value(item, got, sizeof got));
  }
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) must have %d number%s, got %lld", kernel->name, param->name,
                      param->type, count, count == 1 ? "" : "s", (long long)sequence->size);
}

/* Check that the parameter accepts this kind of value. */
static int jitload_check_kind(const jitload_kernel* kernel, const jitload_param* param,
                              const TVMFFIAny* value) {
  char got[160];
  const int32_t type = value->type_index;
  const int is_int = type == kTVMFFIInt || type == kTVMFFIBool || type == JITLOAD_BIG_INT;
  ptrdiff_t size;
  uint64_t ignored;
  int fits = 0;
  switch (param->kind) {
    case JITLOAD_POINTER:
      fits = jitload_get_tensor(value) != NULL || type == kTVMFFIOpaquePtr ||
             (type == kTVMFFINone && (param->flags & JITLOAD_NULLABLE)) ||
             ((type == kTVMFFIInt || type == JITLOAD_BIG_INT) && (param->flags & JITLOAD_RAW));
      break;
    case JITLOAD_STRUCT:
      fits = jitload_read_struct(param, value, NULL, &size);
      if (!fits && jitload_get_sequence(value) != NULL) return jitload_raise_vector_error(kernel, param, value);
      if (!fits && size == (ptrdiff_t)param->size) return jitload_raise_layout_error(kernel, param, value);
      if (!fits && size >= 0) {
        return jitload_fail("ValueError", "%s(): argument '%s' (%s) must have %u byte%s, got %td", kernel->name,
                            param->name, param->type, (unsigned)param->size, param->size == 1 ? "" : "s", size);
      }
      break;
    case JITLOAD_FLOAT: fits = (is_int && type != JITLOAD_BIG_INT) || type == kTVMFFIFloat; break;
    case JITLOAD_BOOL: fits = jitload_read_number(param, value, &ignored); break;
    default: fits = is_int; break;
  }
  if (fits) return 0;
  if (type == JITLOAD_BIG_INT && (param->kind == JITLOAD_FLOAT || param->kind == JITLOAD_BOOL)) {
    return jitload_raise_param_type_error(kernel, param, "an int that does not fit in 64 bits");
  }
  return jitload_raise_param_type_error(kernel, param, jitload_format_value(value, got, sizeof got));
}

static int jitload_check_dtype(const jitload_kernel* kernel, const jitload_param* param,
                               const TVMFFIAny* value) {
  const DLTensor* tensor = param->kind == JITLOAD_POINTER ? jitload_get_tensor(value) : NULL;
  if (tensor == NULL || jitload_dtype_fits(param, tensor->dtype)) return 0;
  char got[48];
  jitload_format_dtype(tensor->dtype, got, sizeof got);
  return jitload_raise_param_type_error(kernel, param, got);
}

/* Write `x=float32, y=float32`: the dtypes that a kernel takes, or with `args` those of the call. */
static void jitload_format_dtypes(const jitload_kernel* kernel, const TVMFFIAny* args, char* text, size_t size) {
  size_t used = 0;
  *text = 0;
  for (int32_t i = 0; i < kernel->param_count && used < size; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->kind != JITLOAD_POINTER || param->argument < 0) continue;
    const DLTensor* tensor = args != NULL ? jitload_get_tensor(&args[param->argument]) : NULL;
    if (args != NULL ? tensor == NULL : param->dtype_bits == 0) continue;
    char dtype[48];
    const DLDataType expected = {param->dtype_code, param->dtype_bits, 1};
    jitload_format_dtype(tensor != NULL ? tensor->dtype : expected, dtype, sizeof dtype);
    used += (size_t)snprintf(text + used, size - used, "%s%s=%s", used != 0 ? ", " : "", param->name, dtype);
  }
}

extern "C" int jitload_raise_variant_error(const jitload_kernel* kernel, const TVMFFIAny* args) {
  char got[512], supported[2048] = "";
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->argument >= 0 && jitload_check_kind(kernel, param, &args[param->argument]) != 0) return -1;
  }
  jitload_format_dtypes(kernel, args, got, sizeof got);
  size_t used = 0;
  for (int32_t i = 0; i < kernel->variant_count && used < sizeof supported; ++i) {
    char dtypes[512];
    jitload_format_dtypes(&kernel->module->kernels[kernel->first_variant + i], NULL, dtypes, sizeof dtypes);
    used += (size_t)snprintf(supported + used, sizeof supported - used, "%s(%s)", i != 0 ? ", " : "", dtypes);
  }
  return jitload_fail("TypeError", "%s(): no kernel takes (%s); there are kernels for %s", kernel->name, got, supported);
}

static int jitload_check_device(const jitload_kernel* kernel, const TVMFFIAny* args) {
  const jitload_param* first = NULL;
  char device[64], other_device[64];
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->argument < 0 || param->kind != JITLOAD_POINTER) continue;
    const DLTensor* tensor = jitload_get_tensor(&args[param->argument]);
    if (tensor == NULL) continue;
    jitload_format_device(tensor->device, device, sizeof device);
    if (!jitload_is_supported_device(kernel, tensor->device)) {
      const char* hint = "; to support both, build it with arch=(\"native\", \"cpu\")";
      if (!jitload_is_cuda(tensor->device)) hint = "";
      return jitload_fail("ValueError", "%s(): argument '%s' must be a %s tensor, but it is on %s%s", kernel->name,
                          param->name, jitload_supported_devices(kernel), device, hint);
    }
    if (first == NULL) {
      first = param;
      continue;
    }
    const DLTensor* other = jitload_get_tensor(&args[first->argument]);
    const int is_cuda = jitload_is_cuda(tensor->device);
    const int is_same_type = is_cuda == jitload_is_cuda(other->device);
    if (is_same_type && (!is_cuda || other->device.device_id == tensor->device.device_id)) continue;
    return jitload_fail("ValueError",
                        "%s(): argument '%s' is on %s, but '%s' is on %s; all tensors must be on one device",
                        kernel->name, param->name, device, first->name,
                        jitload_format_device(other->device, other_device, sizeof other_device));
  }
  return 0;
}

static void jitload_format_extents(const int64_t* extents, int32_t count, char* text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < count && used < size; ++i) {
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)extents[i]);
  }
  if (used < size) snprintf(text + used, size - used, "]");
}

static int jitload_check_layout(const jitload_kernel* kernel, const jitload_param* param,
                                const TVMFFIAny* value) {
  if (param->kind != JITLOAD_POINTER) return 0;
  const DLTensor* tensor = jitload_get_tensor(value);
  if (tensor != NULL && !(param->flags & JITLOAD_STRIDED) && !jitload_is_contiguous(tensor)) {
    char shape[256], strides[256], copy[384];
    jitload_format_copy(kernel, param, "contiguous", copy, sizeof copy);
    jitload_format_extents(tensor->shape, tensor->ndim, shape, sizeof shape);
    jitload_format_extents(tensor->strides, tensor->ndim, strides, sizeof strides);
    return jitload_fail("ValueError",
                        "%s(): argument '%s' must be contiguous, got shape %s with strides %s; %s, or name it in "
                        "Launch(strided=…)",
                        kernel->name, param->name, shape, strides, copy);
  }
  uint64_t address = 0;
  if (tensor != NULL) {
    address = jitload_tensor_address(tensor);
    if (address == 0 && !jitload_is_empty(tensor)) {
      return jitload_fail("ValueError", "%s(): argument '%s' has no memory: it is a fake tensor, or its storage "
                          "was freed", kernel->name, param->name);
    }
  } else if (jitload_read_address(param, value, &address)) {
    return 0;
  }
  const int is_number = tensor == NULL && value->type_index != kTVMFFIOpaquePtr;
  uint64_t ignored;
  if (is_number && value->type_index == kTVMFFIInt && value->v_int64 < 0) return 0; /* jitload_check_range reports it */
  if (is_number && value->type_index == JITLOAD_BIG_INT && !jitload_read_big_int(value, &ignored)) return 0;
  if ((address & (uint64_t)(param->alignment - 1)) == 0) return 0;
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) must be aligned to %u bytes, but its address is 0x%llx",
                      kernel->name, param->name, param->type, (unsigned)param->alignment, (unsigned long long)address);
}

/* For an integer, passed or computed, that does not fit its parameter; addresses are unsigned integers. */
extern "C" int jitload_raise_range_error(const jitload_kernel* kernel, const jitload_param* param,
                                         const TVMFFIAny* value) {
  char got[32] = "an integer beyond 64 bits";
  uint64_t large;
  if (value->type_index != JITLOAD_BIG_INT) {
    snprintf(got, sizeof got, "%lld", (long long)value->v_int64);
  } else if (jitload_read_big_int(value, &large)) {
    snprintf(got, sizeof got, "%llu", (unsigned long long)large);
  }
  const int bits = 8 * (int)param->size;
  char low[32] = "0", high[32];
  if (param->kind != JITLOAD_INT) {
    snprintf(high, sizeof high, "%llu", (unsigned long long)(~0ull >> (64 - bits)));
  } else {
    snprintf(low, sizeof low, "%lld", -(long long)(~0ull >> (65 - bits)) - 1);
    snprintf(high, sizeof high, "%llu", (unsigned long long)(~0ull >> (65 - bits)));
  }
  return jitload_fail("ValueError", "%s(): %s '%s' (%s) must be from %s to %s, got %s", kernel->name,
                      param->argument < 0 ? "computed parameter" : "argument", param->name, param->type, low, high, got);
}

static int jitload_check_range(const jitload_kernel* kernel, const jitload_param* param,
                               const TVMFFIAny* value) {
  uint64_t ignored;
  if (param->kind == JITLOAD_POINTER) {
    const int is_number = value->type_index == kTVMFFIInt || value->type_index == JITLOAD_BIG_INT;
    return !is_number || jitload_read_address(param, value, &ignored) ? 0 : jitload_raise_range_error(kernel, param,
                                                                                                      value);
  }
  if (param->kind != JITLOAD_INT && param->kind != JITLOAD_UINT) return 0;
  if (jitload_read_number(param, value, &ignored)) return 0;
  return jitload_raise_range_error(kernel, param, value);
}

__thread TVMFFIObjectHandle jitload_pending_error;

extern "C" int jitload_raise_argument_error(const jitload_kernel* kernel, const TVMFFIAny* args, int32_t num_args) {
  typedef int (*check)(const jitload_kernel*, const jitload_param*, const TVMFFIAny*);
  static const check checks[] = {jitload_check_kind, jitload_check_dtype, NULL, jitload_check_layout,
                                 jitload_check_range};
  if (num_args != kernel->argument_count && jitload_pending_error != NULL) {
    TVMFFIErrorSetRaised(jitload_pending_error);
    TVMFFIObjectDecRef(jitload_pending_error);
    jitload_pending_error = NULL;
    return -1;
  }
  if (num_args != kernel->argument_count) return jitload_raise_count_error(kernel, num_args);
  for (size_t step = 0; step < sizeof checks / sizeof *checks; ++step) {
    if (checks[step] == NULL) {
      if (jitload_check_device(kernel, args) != 0) return -1;
      continue;
    }
    for (int32_t i = 0; i < kernel->param_count; ++i) {
      const jitload_param* param = &kernel->params[i];
      if (param->argument < 0) continue;
      if (checks[step](kernel, param, &args[param->argument]) != 0) return -1;
    }
  }
  return jitload_fail("RuntimeError", "%s(): an argument was rejected for an unknown reason; please report this",
                      kernel->name);
}
