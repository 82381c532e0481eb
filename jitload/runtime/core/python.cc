/* Direct calls from Python: arguments of common kinds go from Python objects to the launch without tvm-ffi.
 *
 * tvm-ffi allocates twice for each tensor of a call, whereas DLPack's exchange table can fill in a DLTensor on the
 * stack. Calls with other kinds of arguments are left to `slow_call` of loader/direct_calls.py. Python's functions are
 * looked up when the loader enables direct calls, so that a library also works without Python.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "runtime.h"
#include "python_api.h"

/* The fields that a typed function has after those of `tvm_ffi.Function`. */
typedef struct jitload_function_fields {
  void* (*call)(void*, void* const*, size_t, void*); /* at `__vectorcalloffset__` */
  jitload_config config;
  int32_t keeps_gil;
} jitload_function_fields;
static_assert(sizeof(jitload_function_fields) <= 128, "jitload/loader/direct_calls.py makes room for 128 bytes");

/* The layout of PyObject in builds of CPython with a GIL; the loader enables direct calls only there. */
typedef struct jitload_object {
  ptrdiff_t references;
  const void* type;
} jitload_object;

/* Where a tensor's dispatch keys are: a tensor object points to torch's tensor, which has the 64 bits of keys. */
typedef struct jitload_dispatch_keys {
  int64_t pointer_offset;
  int64_t keys_offset;
  uint64_t lazy_mask; /* the keys of tensors that torch conjugates or negates lazily; 0 if the offsets are unknown */
} jitload_dispatch_keys;

static struct : jitload_python_api {
  ptrdiff_t offset; /* where a typed function has its jitload_function_fields */
  const void* tensor_type;
  const void* parameter_type;
  void* slow_call;           /* the function of direct_calls.py: makes other calls; returns None, or an exception to raise */
  void* find_dispatch_keys;  /* the function of direct_calls.py: returns the bytes of a jitload_dispatch_keys */
  jitload_dispatch_keys dispatch_keys;
  int has_dispatch_keys;
  int (*to_dltensor)(void* tensor, DLTensor* out); /* DLPack's dltensor_from_py_object_no_sync */
  jitload_stream_source_fn stream;
} python;

static __attribute__((cold, noinline)) int jitload_call_predicate(void* object, const char* method) {
  void* answer = python.call_method(object, method, NULL);
  if (answer == NULL) {
    python.clear_error();
    return 0;
  }
  const int is_true = answer == python.true_object;
  python.decref(answer);
  return is_true;
}

static __attribute__((cold, noinline)) int jitload_is_lazy_by_name(void* object) {
  return jitload_call_predicate(object, "is_conj") || jitload_call_predicate(object, "is_neg");
}

static __attribute__((cold, noinline)) void jitload_find_dispatch_keys(void* tensor) {
  void* bytes = python.call_with(python.find_dispatch_keys, tensor, NULL);
  const char* data = bytes != NULL ? python.bytes_data(bytes) : NULL;
  if (data != NULL) memcpy(&python.dispatch_keys, data, sizeof python.dispatch_keys);
  python.decref(bytes);
  python.clear_error();
  python.has_dispatch_keys = 1;
}

/* Whether torch conjugates or negates the tensor lazily, so that its memory holds other values. torch's own functions
 * for this would take a tenth of the time of a call, so the tensor's dispatch keys are read instead. */
static inline int jitload_is_lazy(void* object) {
  const void* type = ((const jitload_object*)object)->type;
  if (type != python.tensor_type && type != python.parameter_type) return jitload_is_lazy_by_name(object);
  if (__builtin_expect(!python.has_dispatch_keys, 0)) jitload_find_dispatch_keys(object);
  if (__builtin_expect(python.dispatch_keys.lazy_mask == 0, 0)) return jitload_is_lazy_by_name(object);
  const char* tensor = *(const char* const*)((const char*)object + python.dispatch_keys.pointer_offset);
  return (*(const uint64_t*)(tensor + python.dispatch_keys.keys_offset) & python.dispatch_keys.lazy_mask) != 0;
}

/* Read an argument of a common kind; return 0 for other kinds. */
static inline int jitload_read_object(void* object, TVMFFIAny* out, DLTensor* tensor, int* has_tensor) {
  const void* type = ((const jitload_object*)object)->type;
  out->zero_padding = 0;
  if (type == python.tensor_type || type == python.parameter_type) {
    if (python.to_dltensor(object, tensor) != 0 || jitload_is_lazy(object)) {
      python.clear_error();
      return 0;
    }
    out->type_index = kTVMFFIDLTensorPtr;
    out->v_ptr = tensor;
    *has_tensor = 1;
  } else if (type == python.long_type) {
    int overflow = 0;
    out->type_index = kTVMFFIInt;
    out->v_int64 = python.long_value(object, &overflow);
    return overflow == 0;
  } else if (type == python.float_type) {
    out->type_index = kTVMFFIFloat;
    out->v_float64 = python.float_value(object);
  } else if (object == python.true_object || object == python.false_object) {
    out->type_index = kTVMFFIBool;
    out->v_int64 = object == python.true_object;
  } else if (object == python.none) {
    out->type_index = kTVMFFINone;
    out->v_int64 = 0;
  } else {
    return 0;
  }
  return 1;
}

/* Raise tvm-ffi's error in Python. tvm-ffi itself would add frames of its own and of C++ to the traceback. */
static __attribute__((cold, noinline)) void* jitload_raise_in_python(void) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error == NULL) return NULL; /* a Python exception is set already */
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((const char*)error + sizeof(TVMFFIObject));
  char symbol[64];
  snprintf(symbol, sizeof symbol, "PyExc_%.*s", (int)cell->kind.size, cell->kind.data);
  void* const* type = (void* const*)dlsym(RTLD_DEFAULT, symbol);
  if (type == NULL) type = (void* const*)python.runtime_error;
  void* message = python.new_text(cell->message.data, (ptrdiff_t)cell->message.size);
  if (message != NULL) {
    python.set_error_object(*type, message);
    python.decref(message);
  }
  TVMFFIObjectDecRef(error);
  return NULL;
}

/* Make a call with arguments of other kinds. Its error is raised here, so that its traceback ends at the caller's line. */
static __attribute__((cold, noinline)) void* jitload_slow_call(void* self, void* const* args, ptrdiff_t count) {
  void* tuple = python.new_tuple(count);
  for (ptrdiff_t i = 0; tuple != NULL && i < count; ++i) {
    python.incref(args[i]);
    python.set_item(tuple, i, args[i]);
  }
  void* result = tuple != NULL ? python.call_with(python.slow_call, self, tuple, NULL) : NULL;
  python.decref(tuple);
  if (result == NULL || result == python.none) return result;
  python.set_error_object((void*)((const jitload_object*)result)->type, result);
  python.decref(result);
  return NULL;
}

static void* jitload_vectorcall(void* self, void* const* args, size_t flags_and_count, void* keywords) {
  const ptrdiff_t count = (ptrdiff_t)(flags_and_count & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
  const jitload_function_fields* bound = (const jitload_function_fields*)((const char*)self + python.offset);
  if (keywords != NULL) {
    const char* name = bound->config.kernel->name;
    jitload_fail("TypeError", "%s() takes only positional arguments; pass keywords to %s.call(…)", name, name);
    return jitload_raise_in_python();
  }
  const jitload_kernel* kernel = bound->config.kernel;
  if (count != kernel->argument_count) return jitload_slow_call(self, args, count);
  TVMFFIAny* values = (TVMFFIAny*)__builtin_alloca(sizeof(TVMFFIAny) * (size_t)count + 1);
  DLTensor* tensors = (DLTensor*)__builtin_alloca(sizeof(DLTensor) * (size_t)count + 1);
  int has_tensor = 0;
  for (ptrdiff_t i = 0; i < count; ++i) {
    if (!jitload_read_object(args[i], &values[i], &tensors[i], &has_tensor)) return jitload_slow_call(self, args, count);
  }
  const jitload_stream_source_fn stream = has_tensor ? python.stream : NULL;
  void* thread = bound->keeps_gil ? NULL : python.save_thread();
  const int failed = jitload_run(kernel, &bound->config, values, (int32_t)count, stream, NULL);
  if (thread != NULL) python.restore_thread(thread);
  if (__builtin_expect(failed, 0)) return failed == JITLOAD_INTERRUPTED ? NULL : jitload_raise_in_python();
  python.incref(python.none);
  return python.none;
}

/* Enable direct calls; return whether this Python supports them. args: (offset of a typed function's own fields,
 * then as addresses: torch.Tensor, torch.nn.Parameter, dltensor_from_py_object_no_sync and current_work_stream of torch's
 * exchange table, and direct_calls.py's functions slow_call and find_dispatch_keys). */
JITLOAD_LOADER_FUNCTION(use_python)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  result->type_index = kTVMFFIBool;
  result->v_int64 = 0;
  const jitload_python_api* api = num_args == 7 ? jitload_find_python() : NULL;
  if (api == NULL) return 0;
  static_cast<jitload_python_api&>(python) = *api;
  python.offset = (ptrdiff_t)args[0].v_int64;
  python.tensor_type = args[1].v_ptr;
  python.parameter_type = args[2].v_ptr;
  python.to_dltensor = (int (*)(void*, DLTensor*))args[3].v_ptr;
  python.stream = (jitload_stream_source_fn)args[4].v_ptr;
  python.slow_call = args[5].v_ptr;
  python.find_dispatch_keys = args[6].v_ptr;
  python.has_dispatch_keys = 0;
  result->v_int64 = 1;
  return 0;
}

/* Make calls of a typed function direct. args: (module, address of the function, whether it keeps the GIL, then the
 * arguments of `jitload_read_config`). */
JITLOAD_LOADER_FUNCTION(bind)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {
  if (num_args != 14) return jitload_fail("TypeError", "_jitload_bind() takes 14 arguments, got %d", (int)num_args);
  jitload_function_fields* bound = (jitload_function_fields*)(uintptr_t)(args[1].v_int64 + python.offset);
  const jitload_module* module = (const jitload_module*)(uintptr_t)args[0].v_int64;
  if (jitload_read_config(module, args + 3, &bound->config) != 0) return -1;
  bound->keeps_gil = args[2].v_int64 != 0;
  bound->call = jitload_vectorcall;
  return 0;
}
