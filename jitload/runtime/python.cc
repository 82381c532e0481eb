/* A call from Python without a detour: arguments of the usual kinds go from Python's objects straight to the launch.
 *
 * tvm-ffi makes two allocations for each tensor of a call; DLPack's exchange table can also fill in a DLTensor on the
 * stack. Whatever is unusual - another kind of argument, an error - is left to tvm-ffi's own call, which then says
 * what is wrong. Nothing of Python is linked: its functions are looked up when the loader asks for this, so that a
 * library works without Python, too.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "device.h"

/* What a typed function has behind the fields of `tvm_ffi.Function`. */
typedef struct jitload_bound {
  void* (*call)(void*, void* const*, size_t, void*); /* where `__vectorcalloffset__` points */
  jitload_config config;
  int32_t keeps_gil;
} jitload_bound;
static_assert(sizeof(jitload_bound) <= 128, "jitload/loader/direct.py makes room for 128 bytes");

/* A PyObject of a CPython with a GIL, where tensors' exact types tell how to read them. */
typedef struct jitload_object {
  ptrdiff_t references;
  const void* type;
} jitload_object;

#define JITLOAD_PYTHON_FUNCTIONS(X)                            \
  X(long_value, "PyLong_AsLongLongAndOverflow", long long, (void*, int*)) \
  X(float_value, "PyFloat_AsDouble", double, (void*))          \
  X(save_thread, "PyEval_SaveThread", void*, (void))           \
  X(restore_thread, "PyEval_RestoreThread", void, (void*))     \
  X(increment, "Py_IncRef", void, (void*))                     \
  X(decrement, "Py_DecRef", void, (void*))                     \
  X(clear_error, "PyErr_Clear", void, (void))                  \
  X(set_error, "PyErr_SetString", void, (void*, const char*))  \
  X(is_error, "PyErr_ExceptionMatches", int, (void*))          \
  X(is_instance, "PyObject_IsInstance", int, (void*, void*))   \
  X(call_with, "PyObject_CallFunctionObjArgs", void*, (void*, ...)) \
  X(call_method, "PyObject_CallMethod", void*, (void*, const char*, const char*, ...)) \
  X(letters, "PyUnicode_AsUTF8", const char*, (void*))         \
  X(new_tuple, "PyTuple_New", void*, (ptrdiff_t))              \
  X(set_item, "PyTuple_SetItem", int, (void*, ptrdiff_t, void*))

#define JITLOAD_PYTHON_OBJECTS(X) \
  X(none, "_Py_NoneStruct")       \
  X(yes, "_Py_TrueStruct")        \
  X(no, "_Py_FalseStruct")        \
  X(long_type, "PyLong_Type")     \
  X(float_type, "PyFloat_Type")   \
  X(type_error, "PyExc_TypeError") \
  X(buffer_error, "PyExc_BufferError")

#define JITLOAD_DECLARE_FUNCTION_(field, symbol, result, parameters) result(*field) parameters;
#define JITLOAD_DECLARE_OBJECT_(field, symbol) void* field;
static struct {
  JITLOAD_PYTHON_FUNCTIONS(JITLOAD_DECLARE_FUNCTION_)
  JITLOAD_PYTHON_OBJECTS(JITLOAD_DECLARE_OBJECT_)
  ptrdiff_t offset; /* of jitload_bound in a typed function */
  void* (*plain_call)(void*, void*, void*); /* tvm_ffi.Function's own tp_call */
  const void* tensor_type;
  const void* parameter_type;
  void* describe;   /* a function of direct.py: what a tensor without a view is, in words */
  void* call_again; /* another: the call with what it can make of arrays that tvm-ffi cannot read */
  int (*view)(void* tensor, DLTensor* out); /* DLPack's dltensor_from_py_object_no_sync */
  jitload_stream_source_fn stream;
} python;

static __attribute__((cold, noinline)) int jitload_answers_yes(void* object, const char* question) {
  void* answer = python.call_method(object, question, NULL);
  if (answer == NULL) {
    python.clear_error();
    return 0;
  }
  const int is_yes = answer == python.yes;
  python.decrement(answer);
  return is_yes;
}

/* Whether torch has yet to conjugate or negate the tensor when somebody reads it: the bytes are another tensor's. Only
 * complex tensors and views of their imaginary parts can be like that, whose elements are two apart or a single one. */
static inline int jitload_is_pending(void* object, const DLTensor* view) {
  if (view->dtype.code == kDLComplex) return jitload_answers_yes(object, "is_conj") || jitload_answers_yes(object, "is_neg");
  if (view->dtype.code != kDLFloat) return 0;
  const int32_t last = view->ndim - 1;
  if (last >= 0 && view->shape[last] != 1 && (view->strides == NULL || view->strides[last] == 1)) return 0;
  return jitload_answers_yes(object, "is_neg");
}

static inline int jitload_can_read(void* object, DLTensor* view) {
  return python.view(object, view) == 0 && !jitload_is_pending(object, view);
}

/* Read one argument; 0 means that tvm-ffi is to do it. */
static inline int jitload_read_object(void* object, TVMFFIAny* out, DLTensor* view, int* has_tensor) {
  const void* type = ((const jitload_object*)object)->type;
  out->zero_padding = 0;
  if (type == python.tensor_type || type == python.parameter_type) {
    if (!jitload_can_read(object, view)) {
      python.clear_error();
      return 0;
    }
    out->type_index = kTVMFFIDLTensorPtr;
    out->v_ptr = view;
    *has_tensor = 1;
  } else if (type == python.long_type) {
    int overflow = 0;
    out->type_index = kTVMFFIInt;
    out->v_int64 = python.long_value(object, &overflow);
    return overflow == 0;
  } else if (type == python.float_type) {
    out->type_index = kTVMFFIFloat;
    out->v_float64 = python.float_value(object);
  } else if (object == python.yes || object == python.no) {
    out->type_index = kTVMFFIBool;
    out->v_int64 = object == python.yes;
  } else if (object == python.none) {
    out->type_index = kTVMFFINone;
    out->v_int64 = 0;
  } else {
    return 0;
  }
  return 1;
}

/* Let tvm-ffi make the call, from the arguments on. */
static __attribute__((cold, noinline)) void* jitload_plain_call(void* self, void* const* args, ptrdiff_t count) {
  void* tuple = python.new_tuple(count);
  if (tuple == NULL) return NULL;
  for (ptrdiff_t i = 0; i < count; ++i) {
    python.increment(args[i]);
    python.set_item(tuple, i, args[i]);
  }
  void* result = python.plain_call(self, tuple, NULL);
  if (result == NULL && python.is_error(*(void**)python.buffer_error)) {
    python.clear_error();
    result = python.call_with(python.call_again, self, tuple, NULL);
  }
  python.decrement(tuple);
  return result;
}

/* Let tvm-ffi raise the error that is set. The launch must not be made again, so the call has a wrong count of
 * arguments, and what explains that finds the error waiting. */
static __attribute__((cold, noinline)) void* jitload_raise(void* self, const jitload_kernel* kernel) {
  void* const arguments[] = {python.none};
  TVMFFIErrorMoveFromRaised(&jitload_waiting_error);
  return jitload_plain_call(self, arguments, kernel->argument_count == 0);
}

/* Say what is wrong with the first of torch's tensors that DLPack cannot export as it is: a meta tensor, a sparse one, one
 * that is yet to be conjugated. tvm-ffi would pass on torch's own error, a backtrace of its C++, or the wrong bytes. */
static int jitload_refuse_unreadable(const jitload_kernel* kernel, void* const* args, ptrdiff_t count) {
  DLTensor ignored;
  for (ptrdiff_t i = 0; i < count; ++i) {
    if (python.is_instance(args[i], (void*)python.tensor_type) != 1 || jitload_can_read(args[i], &ignored)) continue;
    python.clear_error();
    void* described = python.call_with(python.describe, args[i], NULL);
    const char* text = described != NULL ? python.letters(described) : NULL;
    jitload_refuse_argument(kernel, (int32_t)i, text != NULL ? text : "a tensor that DLPack cannot export");
    if (described != NULL) python.decrement(described);
    python.clear_error();
    return 1;
  }
  python.clear_error();
  return 0;
}

/* Arguments of another kind than the usual. */
static __attribute__((cold, noinline)) void* jitload_unusual_call(void* self, const jitload_kernel* kernel,
                                                                   void* const* args, ptrdiff_t count) {
  if (count != kernel->argument_count) {
    jitload_explain(kernel, NULL, (int32_t)count);
    return jitload_raise(self, kernel);
  }
  if (jitload_refuse_unreadable(kernel, args, count)) return jitload_raise(self, kernel);
  return jitload_plain_call(self, args, count);
}

static void* jitload_vectorcall(void* self, void* const* args, size_t flags_and_count, void* keywords) {
  const ptrdiff_t count = (ptrdiff_t)(flags_and_count & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
  const jitload_bound* bound = (const jitload_bound*)((const char*)self + python.offset);
  if (keywords != NULL) {
    char text[256];
    const char* name = bound->config.kernel->name;
    snprintf(text, sizeof text, "%s() takes positional arguments; keywords go through %s.call(…)", name, name);
    python.set_error(*(void**)python.type_error, text);
    return NULL;
  }
  const jitload_kernel* kernel = bound->config.kernel;
  if (count != kernel->argument_count) return jitload_unusual_call(self, kernel, args, count);
  TVMFFIAny* values = (TVMFFIAny*)__builtin_alloca(sizeof(TVMFFIAny) * (size_t)count + 1);
  DLTensor* views = (DLTensor*)__builtin_alloca(sizeof(DLTensor) * (size_t)count + 1);
  int has_tensor = 0;
  for (ptrdiff_t i = 0; i < count; ++i) {
    if (!jitload_read_object(args[i], &values[i], &views[i], &has_tensor)) {
      return jitload_unusual_call(self, kernel, args, count);
    }
  }
  const jitload_stream_source_fn stream = has_tensor ? python.stream : NULL;
  void* thread = bound->keeps_gil ? NULL : python.save_thread();
  const int failed = jitload_run(kernel, &bound->config, values, (int32_t)count, stream);
  if (thread != NULL) python.restore_thread(thread);
  if (__builtin_expect(failed, 0)) return failed == JITLOAD_INTERRUPTED ? NULL : jitload_raise(self, kernel);
  python.increment(python.none);
  return python.none;
}

/* (offset of a typed function's own fields, tp_call of tvm_ffi.Function, torch.Tensor, torch.nn.Parameter, of torch's
 * exchange table dltensor_from_py_object_no_sync and current_work_stream, what describes a tensor without a view,
 * and what calls again, all as addresses) -> whether calls can go this way. */
JITLOAD_FOR_LOADER(use_python)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  result->type_index = kTVMFFIBool;
  result->v_int64 = 0;
  if (num_args != 8) return 0;
  int is_complete = 1;
#define JITLOAD_FIND_FUNCTION_(field, symbol, result_type, parameters) \
  *(void**)&python.field = dlsym(RTLD_DEFAULT, symbol);                \
  is_complete &= python.field != NULL;
#define JITLOAD_FIND_OBJECT_(field, symbol)        \
  python.field = dlsym(RTLD_DEFAULT, symbol);      \
  is_complete &= python.field != NULL;
  JITLOAD_PYTHON_FUNCTIONS(JITLOAD_FIND_FUNCTION_)
  JITLOAD_PYTHON_OBJECTS(JITLOAD_FIND_OBJECT_)
  python.offset = (ptrdiff_t)args[0].v_int64;
  python.plain_call = (void* (*)(void*, void*, void*))args[1].v_ptr;
  python.tensor_type = args[2].v_ptr;
  python.parameter_type = args[3].v_ptr;
  python.view = (int (*)(void*, DLTensor*))args[4].v_ptr;
  python.stream = (jitload_stream_source_fn)args[5].v_ptr;
  python.describe = args[6].v_ptr;
  python.call_again = args[7].v_ptr;
  result->v_int64 = is_complete;
  return 0;
}

/* (address of a typed function, whether it keeps the GIL, then what `_jitload_configure` takes): make its calls come
 * here. */
JITLOAD_FOR_LOADER(bind)(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny*) {
  if (num_args != 13) return jitload_fail("TypeError", "_jitload_bind() takes 13 arguments, got %d", (int)num_args);
  jitload_bound* bound = (jitload_bound*)(uintptr_t)(args[0].v_int64 + python.offset);
  if (jitload_read_config(args + 2, &bound->config) != 0) return -1;
  bound->keeps_gil = args[1].v_int64 != 0;
  bound->call = jitload_vectorcall;
  return 0;
}
