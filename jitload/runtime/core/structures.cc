/* Reads structures that are passed by value: from bytes, from ctypes structures, whose members are compared with the
 * kernel's, and for CUDA's vectors, from tuples of numbers.
 */
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"
#include "python_api.h"

/* Consecutive numbers in a structure, one part of Parameter.layout (model.py): `f4*2@8`, or `f4*6@8/12` with the sizes
 * of the rows of an array. The kinds are `f` (float), `r` (bfloat16), `i` and `u` (integers, bool, pointers), `b`
 * (bytes of any meaning) and `?` (bytes whose meaning is not known). */
typedef struct jitload_numbers {
  char kind;
  int size, count, offset;
  const char* rows;
} jitload_numbers;

/* Read the first part of a layout. Return the remaining layout, or NULL if there was no part. */
static const char* jitload_read_numbers(const char* layout, jitload_numbers* out) {
  int length = 0;
  if (layout != NULL && *layout == '=') ++layout;
  if (layout == NULL || sscanf(layout, "%c%d*%d@%d%n", &out->kind, &out->size, &out->count, &out->offset, &length) < 4) {
    return NULL;
  }
  out->rows = layout + length;
  layout = out->rows + strspn(out->rows, "/0123456789");
  return layout + (*layout == ';');
}

/* Whether an array of several dimensions has rows of this size. Numbers without row sizes fit rows of any size. */
static int jitload_has_rows(const jitload_numbers* numbers, ptrdiff_t size) {
  if (*numbers->rows != '/') return 1;
  for (const char* row = numbers->rows; *row == '/'; row += 1 + strspn(row + 1, "0123456789")) {
    if (strtol(row + 1, NULL, 10) == size) return 1;
  }
  return 0;
}

/* Whether the meaning of these bytes is known, and ctypes has a type for them. */
static int jitload_is_comparable(const jitload_numbers* numbers) {
  return strchr("b?r", numbers->kind) == NULL && !(numbers->kind == 'f' && numbers->size < 4);
}

static const char* jitload_kind_name(char kind) {
  return kind == 'f' ? "a float" : kind == 'b' ? "a number" : "an integer";
}

/* The comparison of a ctypes type with a parameter's layout: the bytes that its members cover, and the first
 * difference. */
typedef struct jitload_comparison {
  const jitload_param* param;
  const char* layout;
  const jitload_python_api* python;
  unsigned char* is_covered;
  char* problem;
  size_t problem_size;
} jitload_comparison;

#define JITLOAD_AS_IN_SOURCE "; declare its members as in the C++ source, or pass bytes, which are not checked"

static int jitload_compare_number(jitload_comparison* c, char kind, ptrdiff_t offset, ptrdiff_t size) {
  jitload_numbers numbers;
  if (offset < 0 || size < 0 || offset + size > (ptrdiff_t)c->param->size) return 0;
  memset(c->is_covered + offset, 1, (size_t)size);
  for (const char* rest = c->layout; (rest = jitload_read_numbers(rest, &numbers)) != NULL;) {
    const ptrdiff_t begin = numbers.offset, end = begin + (ptrdiff_t)numbers.size * numbers.count;
    if (offset + size <= begin || offset >= end) continue;
    if (numbers.kind == '?' && !(kind == 'i' && size == 1)) {
      snprintf(c->problem, c->problem_size, "has %s of %td byte%s at byte %td, where jitload does not know the members of "
               "%s; pass bytes, bytes(structure), which are not checked, or declare bytes there: c_ubyte * %d",
               jitload_kind_name(kind), size, size == 1 ? "" : "s", offset, c->param->type, (int)(end - begin));
      return 0;
    }
    if (!jitload_is_comparable(&numbers)) continue;
    const int is_same_kind = (kind == 'f') == (numbers.kind == 'f');
    if (is_same_kind && size == numbers.size && (offset - begin) % size == 0) continue;
    snprintf(c->problem, c->problem_size, "has %s of %td byte%s at byte %td, where %s has %s of %d" JITLOAD_AS_IN_SOURCE,
             jitload_kind_name(kind), size, size == 1 ? "" : "s", offset, c->param->type,
             jitload_kind_name(numbers.kind), numbers.size);
    return 0;
  }
  return 1;
}

static ptrdiff_t jitload_read_long(const jitload_python_api* python, void* object, const char* name) {
  void* attribute = jitload_find_attribute(python, object, name);
  const ptrdiff_t number = attribute != NULL ? (ptrdiff_t)python->integer(attribute) : -1;
  python->decref(attribute);
  python->clear_error();
  return number;
}

static int jitload_compare_type(jitload_comparison* c, void* type, ptrdiff_t offset, ptrdiff_t size);

static int jitload_compare_fields(jitload_comparison* c, void* type, void* fields, ptrdiff_t offset) {
  const jitload_python_api* python = c->python;
  int is_same = 1;
  void* base = jitload_find_attribute(python, type, "__base__");
  void* base_fields = base != NULL ? jitload_find_attribute(python, base, "_fields_") : NULL;
  if (base_fields != NULL) is_same = jitload_compare_fields(c, base, base_fields, offset);
  python->decref(base_fields);
  python->decref(base);
  const ptrdiff_t count = python->length(fields);
  for (ptrdiff_t i = 0; is_same && i < count; ++i) {
    void* field = python->item(fields, i);
    void* name = field != NULL ? python->item(field, 0) : NULL;
    void* field_type = field != NULL ? python->item(field, 1) : NULL;
    const char* text = name != NULL ? python->utf8(name) : NULL;
    void* member = text != NULL ? python->attribute(type, text) : NULL;
    /* A bit field, which has three items, is not compared, because it has no byte offset. */
    if (member != NULL && python->length(field) == 2) {
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

/* Return the letter of a simple ctypes type, or 0 for other types. */
static char jitload_simple_type(const jitload_python_api* python, void* type) {
  void* code = jitload_find_attribute(python, type, "_type_");
  const char* text = code != NULL ? python->utf8(code) : NULL;
  const char letter = text != NULL ? *text : 0;
  python->decref(code);
  python->clear_error();
  return letter;
}

/* Return the kind of a simple ctypes type, or 0 for other types. */
static char jitload_simple_kind(const jitload_python_api* python, void* type) {
  const char letter = jitload_simple_type(python, type);
  return letter == 0 || letter == 'f' ? letter : letter == 'd' ? 'f' : letter == 'g' ? 'b' : 'i';
}

/* Compare a row of a ctypes array of several dimensions with the rows of the parameter's array at the same offset. */
static int jitload_compare_row(jitload_comparison* c, ptrdiff_t offset, ptrdiff_t size) {
  jitload_numbers numbers;
  for (const char* rest = c->layout; (rest = jitload_read_numbers(rest, &numbers)) != NULL;) {
    const ptrdiff_t begin = numbers.offset, end = begin + (ptrdiff_t)numbers.size * numbers.count;
    if (offset + size <= begin || offset >= end || jitload_has_rows(&numbers, size)) continue;
    snprintf(c->problem, c->problem_size, "has rows of %td bytes in the array at byte %d, where %s has other rows"
             JITLOAD_AS_IN_SOURCE, size, numbers.offset, c->param->type);
    return 0;
  }
  return 1;
}

static int jitload_compare_type(jitload_comparison* c, void* type, ptrdiff_t offset, ptrdiff_t size) {
  const jitload_python_api* python = c->python;
  void* swapped = jitload_find_attribute(python, type, "_swappedbytes_");
  python->decref(swapped);
  if (swapped != NULL) {
    snprintf(c->problem, c->problem_size, "has bytes in the other order" JITLOAD_AS_IN_SOURCE);
    return 0;
  }
  void* fields = jitload_find_attribute(python, type, "_fields_");
  if (fields != NULL) {
    const int is_same = jitload_compare_fields(c, type, fields, offset);
    python->decref(fields);
    return is_same;
  }
  const ptrdiff_t count = jitload_read_long(python, type, "_length_");
  if (count < 0) { /* not an array: a number, or a pointer, which has no kind because its _type_ is not a letter */
    const char kind = jitload_simple_kind(python, type);
    return jitload_compare_number(c, kind != 0 ? kind : 'i', offset, size);
  }
  void* element = jitload_find_attribute(python, type, "_type_");
  const ptrdiff_t step = count > 0 ? size / count : 0;
  const char kind = element != NULL ? jitload_simple_kind(python, element) : 0;
  int is_same = 1;
  const int has_rows = kind == 0 && element != NULL && jitload_read_long(python, element, "_length_") >= 0;
  for (ptrdiff_t i = 0; is_same && i < count; ++i) {
    if (has_rows && !jitload_compare_row(c, offset + i * step, step)) is_same = 0;
    else is_same = kind != 0 ? jitload_compare_number(c, kind, offset + i * step, step)
                        : jitload_compare_type(c, element, offset + i * step, step);
  }
  python->decref(element);
  return is_same;
}

/* Whether the members of a type can be compared. Other types, such as bytes and ctypes arrays of bytes, are copied as
 * they are. */
static int jitload_has_members(const jitload_python_api* python, void* type) {
  void* fields = jitload_find_attribute(python, type, "_fields_");
  void* element = jitload_find_attribute(python, type, "_type_");
  const ptrdiff_t count = jitload_read_long(python, type, "_length_");
  int has_members = fields != NULL || jitload_simple_type(python, type) != 0;
  if (count >= 0 && element != NULL) {
    const char letter = jitload_simple_type(python, element);
    has_members = letter == 0 || strchr("bBc", letter) == NULL;
  }
  python->decref(element);
  python->decref(fields);
  return has_members;
}

/* A ctypes type that matches a parameter. Such records are never freed, because other threads may read them. */
typedef struct jitload_checked_type {
  const jitload_param* param;
  void* type;
} jitload_checked_type;

/* Whether the members of a type cover all numbers of the parameter; if not, describe the first that is missing. */
static int jitload_covers_layout(const jitload_comparison* c) {
  jitload_numbers numbers;
  for (const char* rest = c->layout; (rest = jitload_read_numbers(rest, &numbers)) != NULL;) {
    const size_t bytes = (size_t)numbers.size * (size_t)numbers.count;
    if (!jitload_is_comparable(&numbers) || memchr(c->is_covered + numbers.offset, 0, bytes) == NULL) continue;
    snprintf(c->problem, c->problem_size, "has no member for %s of %d byte%s at byte %d" JITLOAD_AS_IN_SOURCE,
             jitload_kind_name(numbers.kind), numbers.size, numbers.size == 1 ? "" : "s", numbers.offset);
    return 0;
  }
  return 1;
}

int jitload_compare_layout(const jitload_param* param, void* object, char* problem, size_t problem_size) {
  static const jitload_checked_type* checked[64];
  const jitload_python_api* python = jitload_find_python();
  if (python == NULL) return 1;
  const int state = python->ensure();
  void* type = python->type(object);
  const jitload_checked_type** slot = &checked[(((uintptr_t)type >> 4) ^ ((uintptr_t)param >> 3)) % 64];
  const jitload_checked_type* last = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  int is_same = last != NULL && last->type == type && last->param == param;
  if (!is_same && !jitload_has_members(python, type)) {
    is_same = 1;
  } else if (!is_same) {
    unsigned char* is_covered = (unsigned char*)calloc(param->size, 1);
    char unknown[32];
    snprintf(unknown, sizeof unknown, "?%u*1@0", (unsigned)param->size);
    const char* layout = param->layout != NULL ? param->layout : unknown;
    jitload_comparison comparison = {param, layout, python, is_covered, problem, problem_size};
    is_same = is_covered != NULL && jitload_compare_type(&comparison, type, 0, param->size) &&
              jitload_covers_layout(&comparison);
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

const jitload_sequence* jitload_get_sequence(const TVMFFIAny* value) {
  const int32_t list = 75; /* the type index of a list; tvm-ffi has lists since 0.1.9 */
  if (value->type_index != kTVMFFIArray && value->type_index != list) return NULL;
  return (const jitload_sequence*)((const char*)value->v_obj + sizeof(TVMFFIObject));
}

int jitload_is_vector(const jitload_param* param, jitload_param* element, int* count) {
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
