/* Python's C API, and errors and objects of Python in C++: what the torch_*.cc files share.
 *
 * Their functions take the GIL if they need it, like torch's own, so code that has released the GIL may call them.
 */
#ifndef JITLOAD_TORCH_PYTHON_H_
#define JITLOAD_TORCH_PYTHON_H_

#include <initializer_list>
#include <string>

#include "../include/torch_light/jitload_torch/pybind.h"

/* Declarations from CPython's C API that hold for any version of Python, so that one library works with all of them. */
extern "C" {
typedef struct {
  const char* name;
  void* function;
  int flags;
  const char* doc;
} PyMethodDef;
extern char _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern char PyDict_Type, PyFloat_Type, PyTuple_Type, PyList_Type, PySet_Type, PyFrozenSet_Type, PyLong_Type, PyUnicode_Type, PyBytes_Type;
extern void *PyExc_RuntimeError, *PyExc_TypeError, *PyExc_UserWarning;
int Py_IsInitialized(void);
void Py_IncRef(void*);
void Py_DecRef(void*);
int PyGILState_Ensure(void);
void PyGILState_Release(int);
int PyGILState_Check(void);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
void* PyObject_Type(void*);
int PyType_IsSubtype(void*, void*);
void* PyObject_GetAttrString(void*, const char*);
int PyObject_SetAttrString(void*, const char*, void*);
int PyObject_HasAttrString(void*, const char*);
void* PyObject_Vectorcall(void*, void* const*, size_t, void*);
int PyObject_IsTrue(void*);
int PyCallable_Check(void*);
void* PyObject_Str(void*);
void* PyObject_Repr(void*);
void* PyImport_ImportModule(const char*);
void* PyLong_FromLongLong(long long);
void* PyLong_FromUnsignedLongLong(unsigned long long);
long long PyLong_AsLongLong(void*);
unsigned long long PyLong_AsUnsignedLongLong(void*);
void* PyFloat_FromDouble(double);
double PyFloat_AsDouble(void*);
void* PyComplex_FromDoubles(double, double);
double PyComplex_RealAsDouble(void*);
double PyComplex_ImagAsDouble(void*);
void* PyBool_FromLong(long);
int PyNumber_Check(void*);
void* PyNumber_Index(void*);
void* PyNumber_Long(void*);
void* PyNumber_Float(void*);
int PyIndex_Check(void*);
void* PyUnicode_FromStringAndSize(const char*, ptrdiff_t);
const char* PyUnicode_AsUTF8AndSize(void*, ptrdiff_t*);
int PyBytes_AsStringAndSize(void*, char**, ptrdiff_t*);
void* PyList_New(ptrdiff_t);
int PyList_SetItem(void*, ptrdiff_t, void*);
void* PyTuple_New(ptrdiff_t);
int PyTuple_SetItem(void*, ptrdiff_t, void*);
void* PyDict_New(void);
int PyObject_SetItem(void*, void*, void*);
void* PyMapping_Items(void*);
int PySequence_Check(void*);
void* PySequence_List(void*);
ptrdiff_t PySequence_Size(void*);
void* PySequence_GetItem(void*, ptrdiff_t);
void* PySlice_New(void*, void*, void*);
void* PyCapsule_New(void*, const char*, void (*)(void*));
void* PyCapsule_GetPointer(void*, const char*);
void* PyCMethod_New(PyMethodDef*, void*, void*, void*);
void* PyErr_Occurred(void);
void PyErr_Clear(void);
void PyErr_Fetch(void**, void**, void**);
void PyErr_Restore(void*, void*, void*);
void PyErr_NormalizeException(void**, void**, void**);
void PyErr_SetString(void*, const char*);
int PyErr_GivenExceptionMatches(void*, void*);
int PyErr_WarnEx(void*, const char*, ptrdiff_t);
int TVMFFIErrorSetRaisedFromCStr(const char*, const char*);
}

namespace jitload_torch {

/* Whether this thread is in a call from Python that has not released the GIL. To ask Python would take longer. */
extern __thread bool holds_gil;

struct Gil {
  Gil() : was_held(holds_gil), state(was_held ? 0 : PyGILState_Ensure()) { holds_gil = true; }
  ~Gil() {
    holds_gil = was_held;
    if (!was_held) PyGILState_Release(state);
  }
  const bool was_held;
  const int state;
};

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

/* An error that a check in the user's text or in jitload's own code reports. */
class CheckError : public c10::Error {
 public:
  CheckError(ErrorKind kind, const std::string& text) : c10::Error(kind, text.c_str()) {}
  ~CheckError() override;
  ErrorKind kind() const { return kind_; }
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
Object python(const T& value) {
  return Caster<T>::to_python(value);
}

/* What a code says: see convert.h. */
inline Holder holder_of(unsigned code) { return static_cast<Holder>(code >> 8 & 3); }
inline unsigned inner_of(unsigned code) { return (code & 0xff) | code >> 10 << 8; }
size_t size_of(unsigned code);
const void* optional_value(unsigned code, const void* optional); /* whose has_value() is its first byte */

}  // namespace jitload_torch

#endif  // JITLOAD_TORCH_PYTHON_H_
