/* The part of Python's C API that rarer kinds of arguments need. It is looked up on first use, so that a library also
 * works in a process without Python.
 */
#ifndef JITLOAD_PYTHON_API_H_
#define JITLOAD_PYTHON_API_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(field, symbol, result, parameters) */
#define JITLOAD_PYTHON_API(X)                                           \
  X(ensure, "PyGILState_Ensure", int, (void))                           \
  X(release, "PyGILState_Release", void, (int))                         \
  X(type, "PyObject_Type", void*, (void*))                              \
  X(attribute, "PyObject_GetAttrString", void*, (void*, const char*))   \
  X(call, "PyObject_Call", void*, (void*, void*, void*))                \
  X(new_tuple, "PyTuple_New", void*, (ptrdiff_t))                       \
  X(new_dict, "PyDict_New", void*, (void))                              \
  X(set_item, "PyDict_SetItemString", int, (void*, const char*, void*)) \
  X(new_long, "PyLong_FromLong", void*, (long))                         \
  X(long_value, "PyLong_AsLongLong", long long, (void*))                \
  X(length, "PySequence_Size", ptrdiff_t, (void*))                      \
  X(item, "PySequence_GetItem", void*, (void*, ptrdiff_t))              \
  X(is_true, "PyObject_IsTrue", int, (void*))                           \
  X(utf8, "PyUnicode_AsUTF8", const char*, (void*))                  \
  X(pointer, "PyCapsule_GetPointer", void*, (void*, const char*))       \
  X(get_buffer, "PyObject_GetBuffer", int, (void*, void*, int))         \
  X(release_buffer, "PyBuffer_Release", void, (void*))                     \
  X(decref, "Py_DecRef", void, (void*))                                   \
  X(incref, "Py_IncRef", void, (void*))                                   \
  X(has_error, "PyErr_Occurred", void*, (void))                         \
  X(clear_error, "PyErr_Clear", void, (void))

#define JITLOAD_DECLARE_(field, symbol, result, parameters) result(*field) parameters;
typedef struct jitload_python_api {
  JITLOAD_PYTHON_API(JITLOAD_DECLARE_)
} jitload_python_api;
#undef JITLOAD_DECLARE_

/* Return NULL in a process without Python. */
const jitload_python_api* jitload_find_python(void);

#ifdef __cplusplus
}
#endif
#endif /* JITLOAD_PYTHON_API_H_ */
