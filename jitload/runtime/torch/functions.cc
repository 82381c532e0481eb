/* Makes C++ functions callable from Python, with overloads, keywords, defaults and messages like pybind11's. */
#include <pthread.h>
#include <string.h>

#include <map>
#include <mutex>
#include <vector>

#include "python.h"

namespace jitload_torch {

GilRelease::GilRelease(bool releases)
    : state(releases && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr), was_held(holds_gil) {
  if (state != nullptr) holds_gil = false;
}
GilRelease::~GilRelease() {
  if (state == nullptr) return;
  PyEval_RestoreThread(state);
  holds_gil = was_held;
}
int take_gil() { return PyGILState_Ensure(); }
void return_gil(int state) { PyGILState_Release(state); }

__thread bool has_turn = false;
static void set_turn(bool wanted) {
  if (wanted == has_turn) return;
  static std::mutex* const mutex = new std::mutex; /* never destroyed, as calls may outlive the process's end */
  [[maybe_unused]] static const int status = pthread_atfork(nullptr, nullptr, [] {
    if (!has_turn) new (mutex) std::mutex; /* the child lacks the thread that may have the turn */
  });
  const GilRelease release(wanted && holds_gil); /* whoever has the turn may be waiting for the GIL */
  wanted ? mutex->lock() : mutex->unlock();
  has_turn = wanted;
}
Turn::Turn(bool takes) : before(has_turn) { set_turn(takes); }
Turn::~Turn() { set_turn(before); }

namespace {

struct Function { /* never freed, as its library is not unloaded */
  std::string name, doc;
  std::vector<Record> overloads;
  PyMethodDef method;
};
std::map<std::string, Function*>* functions_of_module; /* set only while a module is filled, under the GIL */

std::string signature_of(const std::string& name, Record& record) {
  Message message;
  record.describe(message, &record);
  return name + message.text();
}

std::vector<std::string> texts_of(void* tuple) {
  std::vector<std::string> texts;
  const ptrdiff_t count = tuple != nullptr ? PySequence_Size(tuple) : 0;
  for (ptrdiff_t i = 0; i < count; ++i) texts.push_back(text_of(Object(PySequence_GetItem(tuple, i)).get()));
  return texts;
}

/* Puts the arguments of a call in the order of the parameters; returns them, or NULL if they do not fit. */
void* const* place_arguments(const Record& record, void* const* arguments, size_t count,
                             const std::vector<std::string>& keywords, std::vector<void*>& placed) {
  if (count == record.count && keywords.empty()) return arguments;
  if (count > record.count) return nullptr;
  placed.assign(arguments, arguments + count);
  placed.resize(record.count + 1, nullptr);
  for (size_t k = 0; k < keywords.size(); ++k) {
    size_t i = count;
    while (i < record.count && (record.parameters == nullptr || record.parameters[i].name == nullptr ||
                                keywords[k] != record.parameters[i].name)) {
      ++i;
    }
    if (i == record.count || placed[i] != nullptr) return nullptr;
    placed[i] = arguments[count + k];
  }
  for (size_t i = count; i < record.count; ++i) {
    if (placed[i] == nullptr && record.parameters != nullptr) placed[i] = record.parameters[i].default_value;
    if (placed[i] == nullptr) return nullptr;
  }
  return placed.data();
}

void fail_arguments(Function& function, void* const* arguments, size_t count, const std::vector<std::string>& keywords) {
  std::string text = function.name + "(): incompatible function arguments. The following argument types are supported:\n";
  for (size_t i = 0; i < function.overloads.size(); ++i) {
    text += "    " + std::to_string(i + 1) + ". " + signature_of("", function.overloads[i]) + "\n";
  }
  text += "\nInvoked with: ";
  for (size_t i = 0; i < count; ++i) text += (i != 0 ? ", " : "") + repr_of(arguments[i]);
  for (size_t k = 0; k < keywords.size(); ++k) {
    text += k != 0 ? ", " : count != 0 ? "; kwargs: " : "kwargs: ";
    text += keywords[k] + "=" + repr_of(arguments[count + k]);
  }
  PyErr_SetString(PyExc_TypeError, text.c_str());
}

extern "C" void* call_function(void* capsule, void* const* arguments, ptrdiff_t count, void* keyword_names) {
  Function& function = *static_cast<Function*>(PyCapsule_GetPointer(capsule, nullptr));
  const GilNote note(true);
  bool is_torch_wrapped = false;
  try {
    std::vector<void*> placed;
    const size_t positional = static_cast<size_t>(count);
    const std::vector<std::string> keywords = texts_of(keyword_names);
    for (int convert = function.overloads.size() == 1; convert < 2; ++convert) {
      for (Record& record : function.overloads) {
        is_torch_wrapped = record.is_torch_wrapped;
        Object result;
        void* const* ordered = place_arguments(record, arguments, positional, keywords, placed);
        if (ordered != nullptr && record.call(&record, ordered, convert != 0, &result)) return result.release();
      }
    }
    fail_arguments(function, arguments, positional, keywords);
  } catch (...) {
    set_python_error(is_torch_wrapped);
  }
  return nullptr;
}

}  // namespace

void append_parameter(Message& m, const Record* record, size_t index, void (*describe)(Message&, bool)) {
  if (index != 0) m.append(", ");
  const Parameter* parameter = record->parameters != nullptr ? &record->parameters[index] : nullptr;
  if (parameter != nullptr && parameter->name != nullptr) {
    m.append(parameter->name);
  } else {
    append_all(m, "arg", index);
  }
  m.append(": ");
  describe(m, parameter != nullptr && parameter->is_exact);
  if (parameter == nullptr || parameter->default_value == nullptr) return;
  m.append(" = ");
  m.append(repr_of(parameter->default_value).c_str());
}

void add_function(void* module, const char* name, const Record& record) {
  Function*& function = (*functions_of_module)[name];
  const bool is_new = function == nullptr;
  if (is_new) function = new Function{name, "", {}, {}};
  function->overloads.push_back(record);
  if (!is_new) return;
  function->doc = signature_of(name, function->overloads[0]) + "\n";
  if (*record.doc != '\0') function->doc += std::string("\n") + record.doc + "\n";
  /* METH_FASTCALL | METH_KEYWORDS */
  function->method = {function->name.c_str(), reinterpret_cast<void*>(&call_function), 0x0080 | 0x0002, function->doc.c_str()};
  const Object capsule = checked(PyCapsule_New(function, nullptr, nullptr));
  const Object module_name = attribute(module, "__name__");
  const Object object = checked(PyCMethod_New(&function->method, capsule.get(), module_name.get(), nullptr));
  set_attribute(module, name, borrow(object.get()));
}

void set_attribute(void* module, const char* name, Object value) {
  if (PyObject_SetAttrString(module, name, value.get()) != 0) throw PythonError();
}

int run_module(void (*define)(pybind11::module_&), const Any* arguments, int32_t count, Any* result) {
  Gil gil;
  *result = {0, 0, 0};
  try {
    TORCH_CHECK(count == 1, "_jitload_torch_module takes the address of a module");
    pybind11::module_ module(reinterpret_cast<void*>(arguments[0].value));
    std::map<std::string, Function*> functions;
    functions_of_module = &functions;
    define(module);
    return 0;
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
    return -1;
  }
}

}  // namespace jitload_torch
