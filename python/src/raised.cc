#include "src/raised.h"

#include <utility>

namespace kerf::python {

namespace {

// As the interpreter's own: an exception is the thread's. A plain pointer, since a thread may end without the
// interpreter's lock.
PyObject*& kept() {
  thread_local PyObject* exception = nullptr;
  return exception;
}

}  // namespace

std::string utf8_of(nb::handle object) {
  const nb::object bytes = nb::str(object).attr("encode")("utf-8", "backslashreplace");
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

std::string words_of(const nb::python_error& error) {
  const std::string kind = nb::cast<std::string>(nb::str(nb::type_name(error.type())));
  std::string text;
  // Its own __str__ may raise.
  const Verdict wordless = attempt([&] { text = utf8_of(error.value()); });
  return wordless || text.empty() ? kind : kind + ": " + text;
}

void keep_raised(const nb::python_error& error) {
  // Up to CPython 3.11 what was raised need not be an exception's object yet.
  nb::python_error(error).restore();
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  Py_XDECREF(std::exchange(kept(), value));
}

nb::object take_raised() { return nb::steal(std::exchange(kept(), nullptr)); }

void forget_raised() {
  if (kept() == nullptr) return;
  const Locked lock;
  (void)take_raised();
}

}  // namespace kerf::python
