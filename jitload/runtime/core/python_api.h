/* The part of Python's C API that the runtime needs. It is looked up on first use, so that a library also works in a
 * process without Python.
 */
#pragma once

#include <stddef.h>

/* X(field, symbol, result, parameters) */
#define JITLOAD_PYTHON_FUNCTIONS(X)                                                    \
  X(ensure, "PyGILState_Ensure", int, (void))                                          \
  X(release, "PyGILState_Release", void, (int))                                        \
  X(save_thread, "PyEval_SaveThread", void*, (void))                                   \
  X(restore_thread, "PyEval_RestoreThread", void, (void*))                             \
  X(incref, "Py_IncRef", void, (void*))                                                \
  X(decref, "Py_DecRef", void, (void*))                                                \
  X(type, "PyObject_Type", void*, (void*))                                             \
  X(attribute, "PyObject_GetAttrString", void*, (void*, const char*))                  \
  X(call_with, "PyObject_CallFunctionObjArgs", void*, (void*, ...))                    \
  X(call_method, "PyObject_CallMethod", void*, (void*, const char*, const char*, ...)) \
  X(import_module, "PyImport_ImportModule", void*, (const char*))                      \
  X(long_value, "PyLong_AsLongLongAndOverflow", long long, (void*, int*))              \
  X(float_value, "PyFloat_AsDouble", double, (void*))                                  \
  X(new_text, "PyUnicode_FromStringAndSize", void*, (const char*, ptrdiff_t))          \
  X(utf8, "PyUnicode_AsUTF8", const char*, (void*))                                    \
  X(bytes_data, "PyBytes_AsString", const char*, (void*))                              \
  X(new_tuple, "PyTuple_New", void*, (ptrdiff_t))                                      \
  X(set_item, "PyTuple_SetItem", int, (void*, ptrdiff_t, void*))                       \
  X(get_buffer, "PyObject_GetBuffer", int, (void*, void*, int))                        \
  X(release_buffer, "PyBuffer_Release", void, (void*))                                 \
  X(clear_error, "PyErr_Clear", void, (void))                                          \
  X(set_error_object, "PyErr_SetObject", void, (void*, void*))

/* X(field, symbol) */
#define JITLOAD_PYTHON_OBJECTS(X)        \
  X(none, "_Py_NoneStruct")              \
  X(true_object, "_Py_TrueStruct")       \
  X(false_object, "_Py_FalseStruct")     \
  X(long_type, "PyLong_Type")            \
  X(float_type, "PyFloat_Type")          \
  X(runtime_error, "PyExc_RuntimeError")

#define JITLOAD_DECLARE_FUNCTION_(field, symbol, result, parameters) result(*field) parameters;
#define JITLOAD_DECLARE_OBJECT_(field, symbol) void* field;
struct jitload_python_api {
  JITLOAD_PYTHON_FUNCTIONS(JITLOAD_DECLARE_FUNCTION_)
  JITLOAD_PYTHON_OBJECTS(JITLOAD_DECLARE_OBJECT_)
};
#undef JITLOAD_DECLARE_FUNCTION_
#undef JITLOAD_DECLARE_OBJECT_

/* Look up the functions and objects above. Return NULL in a process without Python. */
const jitload_python_api* jitload_find_python(void);
