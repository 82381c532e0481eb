/* The fast path from tvm-ffi's arguments to a kernel's parameters. It only detects that an argument is invalid:
 * `jitload_raise_argument_error` then repeats the checks in their documented order (count, kind, dtype, device,
 * contiguity, range) and reports the first failure.
 */
#pragma once

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include <jitload/expression.h>
#include <jitload/record.h>

#define JITLOAD_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define JITLOAD_ALWAYS_INLINE inline __attribute__((always_inline))

/* Set tvm-ffi's error and return -1; so do all functions named jitload_raise_…. */
__attribute__((format(printf, 2, 3))) int jitload_fail(const char* kind, const char* format, ...);

/* Raise the error of the first check that fails. */
int jitload_raise_argument_error(const jitload_kernel* kernel, const TVMFFIAny* args, int32_t num_args);
/* Raise the error for tensors whose dtypes fit none of a function's kernels. */
int jitload_raise_variant_error(const jitload_kernel* kernel, const TVMFFIAny* args);
int jitload_raise_range_error(const jitload_kernel* kernel, const jitload_param* param, const TVMFFIAny* value);

/* Append to a text, as much as fits. */
__attribute__((format(printf, 3, 4))) void jitload_append(char* text, size_t size, const char* format, ...);
/* Format extents as torch does: `[3, 4]`. */
void jitload_format_extents(const int64_t* extents, int32_t count, char* text, size_t size);

/* Read or encode rarer kinds of arguments. The readers return 0 for an invalid argument. */
int jitload_read_big_int(const TVMFFIAny* value, uint64_t* out);
uint32_t jitload_round_to_small_float(double value, int exponent_bits, int mantissa_bits, int finite_only);
uint32_t jitload_round_to_e8m0(double value);
int jitload_read_struct(const jitload_param* param, const TVMFFIAny* value, void* out, ptrdiff_t* length);
int jitload_read_address(const jitload_param* param, const TVMFFIAny* value, uint64_t* out);
int jitload_read_numpy_bool(const TVMFFIAny* value, uint64_t* out);

/* Copy the bytes of a Python object. Return 1 if it has exactly `size` bytes, otherwise 0; `*length` becomes its
 * length, or -1 without a buffer. */
int jitload_read_buffer(void* object, void* out, size_t size, ptrdiff_t* length);
/* Format the qualified class name of a Python object, such as "decimal.Decimal"; builtins have no prefix. */
int jitload_format_class(void* object, char* text, size_t size);
/* Compare a ctypes object with a parameter's layout. Return 0 and describe the first difference if there is one. */
int jitload_compare_layout(const jitload_param* param, void* object, char* problem, size_t problem_size);
/* Return whether a parameter is a CUDA vector; if so, describe its elements as a parameter, and set their number. */
int jitload_is_vector(const jitload_param* param, jitload_param* element, int* count);

/* How tvm-ffi's arrays and lists begin after the object's header. */
typedef struct jitload_sequence {
  const TVMFFIAny* items;
  int64_t size;
} jitload_sequence;
const jitload_sequence* jitload_get_sequence(const TVMFFIAny* value); /* NULL for other values */

/* Return the parameter for the argument with this index. There is always one. */
static inline const jitload_param* jitload_param_of(const jitload_kernel* kernel, int64_t argument) {
  const jitload_param* param = kernel->params;
  while (param->argument != argument) ++param;
  return param;
}

/* Return the tensor in an argument, or NULL. */
static inline const DLTensor* jitload_get_tensor(const TVMFFIAny* value) {
  if (__builtin_expect(value->type_index == kTVMFFITensor, 1)) {
    return (const DLTensor*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  }
  return value->type_index == kTVMFFIDLTensorPtr ? (const DLTensor*)value->v_ptr : 0;
}

static inline int jitload_is_empty(const DLTensor* tensor) {
  for (int32_t axis = 0; axis < tensor->ndim; ++axis) {
    if (tensor->shape[axis] == 0) return 1;
  }
  return 0;
}

/* Find the memory between a tensor's first and last elements, as distances in bytes from its address; strides may be
 * negative. */
static inline void jitload_find_memory(const DLTensor* tensor, int64_t* begin, int64_t* end) {
  const int64_t bytes = ((int64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  int64_t step = 1;
  *begin = 0, *end = jitload_is_empty(tensor) ? 0 : bytes;
  for (int32_t axis = tensor->ndim - 1; *end != 0 && axis >= 0; --axis) {
    const int64_t extent = tensor->shape[axis], stride = tensor->strides != NULL ? tensor->strides[axis] : step;
    *(stride < 0 ? begin : end) += (extent - 1) * stride * bytes;
    step *= extent;
  }
}

static inline int jitload_is_contiguous(const DLTensor* tensor) {
  if (tensor->strides == NULL) return 1;
  uint64_t expected = 1; /* unsigned: it may overflow for a tensor without elements */
  for (int32_t axis = tensor->ndim - 1; axis >= 0; --axis) {
    const int64_t extent = tensor->shape[axis];
    if (extent == 1) continue;
    /* The strides of a tensor without elements do not matter. */
    if ((uint64_t)tensor->strides[axis] != expected) return jitload_is_empty(tensor);
    expected *= (uint64_t)extent;
  }
  return 1;
}

static inline int jitload_dtype_fits(const jitload_param* param, DLDataType dtype) {
  if (param->dtype_bits == 0) return 1;
  if (dtype.code == param->dtype_code && dtype.bits == param->dtype_bits && dtype.lanes == 1) return 1;
  if (dtype.lanes != 1) return 0;
  if (param->flags & JITLOAD_ADDRESSES) return dtype.code == kDLUInt && dtype.bits == 64;
  return (param->flags & JITLOAD_COMPLEX) != 0 && dtype.code == kDLComplex && dtype.bits == 2 * param->dtype_bits;
}

static inline int jitload_is_cuda(DLDevice device) {
  return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
}

/* Pinned memory has a CUDA device type in DLPack, but is host memory. */
static inline int jitload_is_host(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost;
}

/* The device index that stands for the CPU. */
#define JITLOAD_CPU_DEVICE INT32_MAX

/* tvm-ffi's return code for a call that ended with a Python exception, such as KeyboardInterrupt. */
#define JITLOAD_INTERRUPTED (-2)

static inline uint64_t jitload_tensor_address(const DLTensor* tensor) {
  return (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
}

static inline int jitload_is_aligned(const jitload_param* param, uint64_t address) {
  return (address & (uint64_t)(param->alignment - 1)) == 0;
}

static inline int jitload_int_fits(const jitload_param* param, int64_t value) {
  const int unused_bits = 64 - 8 * (int)param->size;
  if (param->kind == JITLOAD_UINT) {
    return value >= 0 && (unused_bits == 0 || (uint64_t)value >> (64 - unused_bits) == 0);
  }
  return unused_bits <= 0 || (int64_t)((uint64_t)value << unused_bits) >> unused_bits == value;
}

/* The type index of a BigInt object: integers of 2^63 or more since tvm-ffi 0.1.14. */
#define JITLOAD_BIG_INT 78

static inline uint64_t jitload_encode_float(const jitload_param* param, double value) {
  uint64_t bits = 0;
  if (param->size == 8) {
    memcpy(&bits, &value, 8);
  } else if (param->size == 4) {
    const float narrow = (float)value;
    memcpy(&bits, &narrow, 4);
  } else if (param->dtype_code == kDLBfloat) {
    bits = jitload_round_to_small_float(value, 8, 7, 0);
  } else if (param->size == 2) {
    bits = jitload_round_to_small_float(value, 5, 10, 0);
  } else if (param->dtype_code == kDLFloat8_e5m2) {
    bits = jitload_round_to_small_float(value, 5, 2, 0);
  } else if (param->dtype_code == kDLFloat8_e8m0fnu) {
    bits = jitload_round_to_e8m0(value);
  } else {
    bits = jitload_round_to_small_float(value, 4, 3, 1);
  }
  return bits;
}

/* ---- reading one argument; 0 means that it is invalid ---------------------------------------------------------- */

static JITLOAD_ALWAYS_INLINE int jitload_read_pointer(const jitload_param* param, const TVMFFIAny* value, uint64_t* out,
                                       int32_t* device) {
  const DLTensor* tensor = jitload_get_tensor(value);
  if (tensor == NULL) return jitload_read_address(param, value, out) && jitload_is_aligned(param, *out);
  int32_t tensor_device = tensor->device.device_id;
  if (!jitload_dtype_fits(param, tensor->dtype)) return 0;
  const int is_of_host = (param->flags & JITLOAD_HOST) != 0;
  if (__builtin_expect(is_of_host, 0)) {
    if (!jitload_is_host(tensor->device)) return 0;
  } else if (!jitload_is_cuda(tensor->device)) {
    if (!(param->flags & JITLOAD_ON_CPU) || !jitload_is_host(tensor->device)) return 0;
    tensor_device = JITLOAD_CPU_DEVICE;
  }
  if (!is_of_host && *device != tensor_device) {
    if (*device >= 0) return 0;
    *device = tensor_device;
  }
  if (!(param->flags & JITLOAD_STRIDED) && !jitload_is_contiguous(tensor)) return 0;
  *out = jitload_tensor_address(tensor);
  if (__builtin_expect(*out == 0, 0)) return jitload_is_empty(tensor);
  return jitload_is_aligned(param, *out);
}

static JITLOAD_ALWAYS_INLINE int jitload_read_number(const jitload_param* param, const TVMFFIAny* value, uint64_t* out) {
  const int32_t type = value->type_index;
  const int is_int = type == kTVMFFIInt || type == kTVMFFIBool;
  switch (param->kind) {
    case JITLOAD_INT:
    case JITLOAD_UINT:
      *out = (uint64_t)value->v_int64;
      if (JITLOAD_LIKELY(is_int)) return jitload_int_fits(param, value->v_int64);
      return param->kind == JITLOAD_UINT && param->size == 8 && type == JITLOAD_BIG_INT && jitload_read_big_int(value,
                                                                                                                out);
    case JITLOAD_BOOL:
      *out = value->v_int64 != 0;
      return is_int || jitload_read_numpy_bool(value, out);
    default: {
      const double number = type == kTVMFFIFloat ? value->v_float64 : (double)value->v_int64;
      *out = jitload_encode_float(param, number);
      if (__builtin_expect(param->flags & JITLOAD_FINITE, 0) && __builtin_isfinite(number)) { /* a 16-bit float */
        return (is_int || type == kTVMFFIFloat) && (*out & 0x7fff) != (param->dtype_code == kDLBfloat ? 0x7f80 : 0x7c00);
      }
      return is_int || type == kTVMFFIFloat;
    }
  }
}
