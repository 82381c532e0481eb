/* Python's C API, and errors and objects of Python in C++: what the files of this directory share.
 *
 * Their functions take the GIL if they need it, like torch's own, so code that has released the GIL may call them.
 */
#pragma once

#include <initializer_list>
#include <string>

#include "../../include/torch_light/jitload_torch/pybind.h"

/* Declarations from CPython's C API that hold for any version of Python, so that one library works with all of them. */
extern "C" {
struct PyMethodDef { const char* name; void* function; int flags; const char* doc; };
extern char _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct, _Py_EllipsisObject;
extern char PyDict_Type, PyFloat_Type, PyComplex_Type, PyTuple_Type, PyList_Type, PySet_Type, PyFrozenSet_Type, PyLong_Type, PyUnicode_Type, PyBytes_Type;
extern void *PyExc_RuntimeError, *PyExc_TypeError, *PyExc_UserWarning;
int Py_IsInitialized(void), PyGILState_Ensure(void), PyGILState_Check(void), PyType_IsSubtype(void*, void*),
    PyObject_SetAttrString(void*, const char*, void*), PyObject_HasAttrString(void*, const char*),
    PyObject_IsTrue(void*), PyCallable_Check(void*), PyNumber_Check(void*), PyIndex_Check(void*),
    PyBytes_AsStringAndSize(void*, char**, ptrdiff_t*), PyList_SetItem(void*, ptrdiff_t, void*),
    PyTuple_SetItem(void*, ptrdiff_t, void*), PySequence_Check(void*),
    PyErr_GivenExceptionMatches(void*, void*), PyErr_WarnEx(void*, const char*, ptrdiff_t);
void Py_IncRef(void*), Py_DecRef(void*), PyGILState_Release(int), PyEval_RestoreThread(void*),
    PyErr_Clear(void), PyErr_Fetch(void**, void**, void**), PyErr_Restore(void*, void*, void*),
    PyErr_NormalizeException(void**, void**, void**), PyErr_SetString(void*, const char*);
void *PyEval_SaveThread(void), *PyObject_Type(void*), *PyObject_GetAttrString(void*, const char*), *PyObject_GetAttr(void*, void*),
    *PyObject_Vectorcall(void*, void* const*, size_t, void*), *PyObject_Str(void*), *PyObject_Repr(void*),
    *PyImport_ImportModule(const char*), *PyLong_FromLongLong(long long),
    *PyLong_FromUnsignedLongLong(unsigned long long), *PyFloat_FromDouble(double),
    *PyComplex_FromDoubles(double, double), *PyBool_FromLong(long), *PyNumber_Index(void*),
    *PyNumber_Long(void*), *PyNumber_Float(void*), *PyUnicode_FromStringAndSize(const char*, ptrdiff_t),
    *PyList_New(ptrdiff_t), *PyTuple_New(ptrdiff_t), *PyMapping_Items(void*), *PySequence_List(void*),
    *PySequence_GetItem(void*, ptrdiff_t), *PySlice_New(void*, void*, void*),
    *PyCapsule_New(void*, const char*, void (*)(void*)), *PyCapsule_GetPointer(void*, const char*),
    *PyCMethod_New(PyMethodDef*, void*, void*, void*), *PyErr_Occurred(void), *PyType_GetSlot(void*, int);
long long PyLong_AsLongLong(void*);
unsigned long long PyLong_AsUnsignedLongLong(void*);
double PyFloat_AsDouble(void*), PyComplex_RealAsDouble(void*), PyComplex_ImagAsDouble(void*);
const char *PyUnicode_AsUTF8AndSize(void*, ptrdiff_t*);
ptrdiff_t PySequence_Size(void*);
int TVMFFIErrorSetRaisedFromCStr(const char*, const char*);
}

namespace jitload_torch {

extern __thread bool has_turn; /* passed on during code of Python, which lets other callers run */

/* Gives `holds_gil` another value while an object of this class lives. */
struct GilNote {
  explicit GilNote(bool holds) : before(holds_gil) { holds_gil = holds; }
  ~GilNote() { holds_gil = before; }
  const bool before;
};

/* A Python exception that is thrown through C++. */
class PythonError : public c10::Error {
 public:
  PythonError(); /* takes over Python's current error */
  PythonError(const PythonError& other) noexcept;
  ~PythonError() override;
  void restore() const;
  bool is(void* type) const { return PyErr_GivenExceptionMatches(type_, type) != 0; }

 private:
  struct Parts;
  explicit PythonError(const Parts& parts);
  void *type_, *value_, *trace_;
};

/* Sets Python's error for the exception that is being handled. */
void set_python_error(bool is_torch_wrapped);

Object checked(void* owned); /* throws Python's error for NULL */
Object attribute(void* object, const char* name);
void* attribute_or_null(void* object, const char* name); /* an owned reference */
Object call(void* function, std::initializer_list<void*> arguments);
Object object_at(const std::string& path); /* the object of a dotted path that begins with a module */
std::string text_of(void* text);
std::string repr_of(void* object);
bool is_instance(void* object, void* type);
template <class T>
Object python(const T& value) { return Caster<T>::to_python(value); }

/* What a code says: see convert.h. */
inline Holder holder_of(unsigned code) { return static_cast<Holder>(code >> 8 & 3); }
inline unsigned inner_of(unsigned code) { return (code & 0xff) | code >> 10 << 8; }
#define X(T, name) sizeof(T),
constexpr size_t kSizes[] = {JITLOAD_TORCH_TYPES_(X) sizeof(std::string)};
#undef X
#define X(T, name) alignof(T),
constexpr size_t kAlignments[] = {JITLOAD_TORCH_TYPES_(X) alignof(std::string)};
#undef X
/* The size of a value; of what holds values, only that of an array is needed. */
inline size_t size_of(unsigned code) { return holder_of(code) == kArray ? sizeof(c10::ArrayRef<char>) : kSizes[code]; }
/* The value of a `c10::OptionalArg`, which is behind a bool, or NULL if it is absent. */
inline const void* optional_value(unsigned inner, const void* optional) {
  const bool* const has_value = static_cast<const bool*>(optional);
  return *has_value ? has_value + (holder_of(inner) == kArray ? alignof(void*) : kAlignments[inner]) : nullptr;
}

}  // namespace jitload_torch
