/* Error messages for invalid arguments. */
#include <stdarg.h>
#include <stdio.h>

#include "arguments.h"

void jitload_append(char* text, size_t size, const char* format, ...) {
  const size_t used = strlen(text);
  va_list values;
  va_start(values, format);
  vsnprintf(text + used, size - used, format, values);
  va_end(values);
}

void jitload_format_extents(const int64_t* extents, int32_t count, char* text, size_t size) {
  *text = 0;
  for (int32_t i = 0; i < count; ++i) jitload_append(text, size, "%s%lld", i == 0 ? "[" : ", ", (long long)extents[i]);
  jitload_append(text, size, count == 0 ? "[]" : "]");
}

static void jitload_format_dtype(DLDataType dtype, char* text, size_t size) {
  static const char* const small[] = {"float8_e3m4",   "float8_e4m3",     "float8_e4m3b11fnuz", "float8_e4m3fn",
                                      "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                      "float6_e2m3fn", "float6_e3m2fn",   "float4_e2m1fn"};
  static const char* const base[] = {"int", "uint", "float", "handle", "bfloat", "complex"};
  if (dtype.code == kDLBool) {
    snprintf(text, size, "bool");
  } else if (dtype.code >= kDLFloat8_e3m4 && dtype.code <= kDLFloat4_e2m1fn) {
    snprintf(text, size, "%s", small[dtype.code - kDLFloat8_e3m4]);
  } else if (dtype.code <= kDLComplex) {
    snprintf(text, size, "%s%d", base[dtype.code], dtype.bits);
  } else {
    snprintf(text, size, "dtype(code=%d, bits=%d)", dtype.code, dtype.bits);
  }
  if (dtype.lanes > 1) jitload_append(text, size, "x%d", dtype.lanes);
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
  static const struct {
    int32_t type_index;
    const char* name;
  } names[] = {
      {kTVMFFINone, "None"}, {kTVMFFIInt, "int"}, {JITLOAD_BIG_INT, "int"}, {kTVMFFIBool, "bool"},
      {kTVMFFIFloat, "float"}, {kTVMFFIOpaquePtr, "a pointer"}, {kTVMFFIDataType, "a dtype"},
      {kTVMFFIDevice, "a device"}, {kTVMFFIRawStr, "str"}, {kTVMFFISmallStr, "str"}, {kTVMFFIStr, "str"},
      {kTVMFFIByteArrayPtr, "bytes"}, {kTVMFFISmallBytes, "bytes"}, {kTVMFFIBytes, "bytes"},
      {kTVMFFIFunction, "a function"}, {kTVMFFIShape, "a list or tuple"}, {kTVMFFIArray, "a list or tuple"},
      {kTVMFFIMap, "a dict"}, {kTVMFFIModule, "a module"},
  };
  const DLTensor* tensor = jitload_get_tensor(value);
  snprintf(text, size, "an object of type index %d", (int)value->type_index);
  for (const auto& row : names) {
    if (row.type_index == value->type_index) snprintf(text, size, "%s", row.name);
  }
  if (tensor != NULL) {
    char dtype[48], device[48];
    jitload_format_dtype(tensor->dtype, dtype, sizeof dtype);
    snprintf(text, size, "%s %s tensor on %s", jitload_article(dtype), dtype,
             jitload_format_device(tensor->device, device, sizeof device));
  } else if (value->type_index == kTVMFFIOpaquePyObject) {
    jitload_format_class(*(void**)((char*)value->v_obj + sizeof(TVMFFIObject)), text, size);
  }
  return text;
}

static const char* jitload_supported_devices(const jitload_kernel* kernel) {
  return kernel->cpu == NULL ? "CUDA" : kernel->module->image_count == 0 ? "CPU" : "CUDA or CPU";
}

static const char* jitload_expected_device(const jitload_kernel* kernel, const jitload_param* param) {
  return (param->flags & JITLOAD_HOST) ? "CPU" : jitload_supported_devices(kernel);
}

static int jitload_is_supported_device(const jitload_kernel* kernel, const jitload_param* param, DLDevice device) {
  if (param->flags & JITLOAD_HOST) return jitload_is_host(device);
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
    const int has_one_dtype = param->dtype_bits != 0 && !(kernel->flags & JITLOAD_DISPATCHES);
    if (has_one_dtype) jitload_format_dtype(expected, dtype, sizeof dtype);
    const char* of_addresses = "";
    if (param->flags & JITLOAD_ADDRESSES) of_addresses = " of addresses (torch.tensor([x.data_ptr() for x in …]))";
    snprintf(text, size, "%s %s%s%s tensor%s%s%s%s", jitload_article(dtype), dtype, dtype[0] ? " " : "",
             jitload_expected_device(kernel, param), of_addresses, or_object, or_none, or_address);
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

/* Write advice to pass a copy of a tensor, which `method` makes, instead of the tensor. For an output, the advice is to
 * copy the result back, too. */
static void jitload_format_copy(const jitload_kernel* kernel, const jitload_param* param, const char* method, char* text,
                                size_t size) {
  if (strncmp(param->type, "const ", 6) == 0 || param->kind != JITLOAD_POINTER) {
    snprintf(text, size, "pass %s.%s()", param->name, method);
  } else {
    snprintf(text, size, "pass a copy and copy the result back (tmp = %s.%s(); %s(…, tmp, …); %s.copy_(tmp))",
             param->name, method, kernel->name, param->name);
  }
}

static int jitload_raise_count_error(const jitload_kernel* kernel, int32_t num_args) {
  char names[1024] = "";
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    if (kernel->params[i].argument < 0) continue;
    jitload_append(names, sizeof names, "%s%s", *names ? ", " : " (", kernel->params[i].name);
  }
  return jitload_fail("TypeError", "%s() takes %d argument%s%s%s, got %d", kernel->name, (int)kernel->argument_count,
                      kernel->argument_count == 1 ? "" : "s", names, *names ? ")" : "", (int)num_args);
}

/* Set the error for a ctypes structure whose members differ from the parameter's. */
static int jitload_raise_layout_error(const jitload_kernel* kernel, const jitload_param* param, const TVMFFIAny* value) {
  char problem[512] = "", name[160] = "object";
  void* object = *(void* const*)((const char*)value->v_obj + sizeof(TVMFFIObject));
  jitload_compare_layout(param, object, problem, sizeof problem);
  jitload_format_class(object, name, sizeof name);
  return jitload_fail("TypeError", "%s(): argument '%s' (%s): %s %s", kernel->name, param->name, param->type, name, problem);
}

/* Set the error for a tuple or list whose items are not the elements of the parameter's vector. */
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

/* Append `x=float32, y=float32`: the dtypes of the tensors in `args`, or if it is NULL, those that the kernel takes. */
static void jitload_append_dtypes(const jitload_kernel* kernel, const TVMFFIAny* args, char* text, size_t size) {
  const char* separator = "";
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->kind != JITLOAD_POINTER || param->argument < 0) continue;
    const DLTensor* tensor = args != NULL ? jitload_get_tensor(&args[param->argument]) : NULL;
    if (args != NULL ? tensor == NULL : param->dtype_bits == 0) continue;
    char dtype[48];
    const DLDataType expected = {param->dtype_code, param->dtype_bits, 1};
    jitload_format_dtype(tensor != NULL ? tensor->dtype : expected, dtype, sizeof dtype);
    jitload_append(text, size, "%s%s=%s", separator, param->name, dtype);
    separator = ", ";
  }
}

int jitload_raise_variant_error(const jitload_kernel* kernel, const TVMFFIAny* args) {
  char got[512] = "", supported[2048] = "";
  for (int32_t i = 0; i < kernel->param_count; ++i) {
    const jitload_param* param = &kernel->params[i];
    if (param->argument >= 0 && jitload_check_kind(kernel, param, &args[param->argument]) != 0) return -1;
  }
  jitload_append_dtypes(kernel, args, got, sizeof got);
  for (int32_t i = 0; i < kernel->variant_count; ++i) {
    jitload_append(supported, sizeof supported, i != 0 ? "), (" : "(");
    jitload_append_dtypes(&kernel->module->kernels[kernel->first_variant + i], NULL, supported, sizeof supported);
  }
  return jitload_fail("TypeError", "%s(): no kernel takes (%s); there are kernels for %s)", kernel->name, got, supported);
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
    if (!jitload_is_supported_device(kernel, param, tensor->device)) {
      char hint[160] = "";
      if (kernel->host != NULL && !(param->flags & JITLOAD_HOST)) {
        snprintf(hint, sizeof hint, "; if it is a pointer to host memory, declare it with Launch(host=(\"%s\",))",
                 param->name);
      } else if (kernel->host == NULL && jitload_is_cuda(tensor->device)) {
        snprintf(hint, sizeof hint, "; to support both, build it with arch=(\"native\", \"cpu\")");
      }
      return jitload_fail("ValueError", "%s(): argument '%s' must be a %s tensor, but it is on %s%s", kernel->name,
                          param->name, jitload_expected_device(kernel, param), device, hint);
    }
    if (param->flags & JITLOAD_HOST) continue;
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
  } else if (!jitload_read_address(param, value, &address)) {
    return 0; /* jitload_check_range reports it */
  }
  if (jitload_is_aligned(param, address)) return 0;
  char copy[384] = "; ";
  jitload_format_copy(kernel, param, "clone", copy + 2, sizeof copy - 2);
  return jitload_fail("ValueError", "%s(): argument '%s' (%s) must be aligned to %u bytes, but its address is 0x%llx%s",
                      kernel->name, param->name, param->type, (unsigned)param->alignment, (unsigned long long)address,
                      tensor != NULL ? copy : "");
}

/* Set the error for an argument or a computed integer that does not fit its parameter. Addresses are unsigned. */
int jitload_raise_range_error(const jitload_kernel* kernel, const jitload_param* param, const TVMFFIAny* value) {
  char got[32] = "an integer beyond 64 bits";
  uint64_t large;
  if (param->kind == JITLOAD_FLOAT) {
    return jitload_fail("ValueError", "%s(): argument '%s' (%s) is too large for its type", kernel->name, param->name,
                        param->type);
  }
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
  int is_read = 1;
  if (param->kind == JITLOAD_POINTER) {
    is_read = jitload_get_tensor(value) != NULL || jitload_read_address(param, value, &ignored);
  } else if (param->kind != JITLOAD_STRUCT) {
    is_read = jitload_read_number(param, value, &ignored);
  }
  return is_read ? 0 : jitload_raise_range_error(kernel, param, value);
}

int jitload_raise_argument_error(const jitload_kernel* kernel, const TVMFFIAny* args, int32_t num_args) {
  typedef int (*check)(const jitload_kernel*, const jitload_param*, const TVMFFIAny*);
  static const check checks[] = {jitload_check_kind, jitload_check_dtype, NULL, jitload_check_layout,
                                 jitload_check_range};
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
