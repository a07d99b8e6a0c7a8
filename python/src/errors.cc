// kerf::Error as the exceptions of kerf.errors, by kind.
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include "kerf/kerf.h"
#include "src/bind.h"
#include "src/raised.h"

namespace kerf::python {

namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "UsageError";
    case ErrorKind::checkpoint:
      return "CheckpointError";
    case ErrorKind::unsupported:
      return "UnsupportedError";
    case ErrorKind::peer:
      return "PeerError";
    case ErrorKind::probe:
      return "ProbeError";
    case ErrorKind::memory:
      return "OutOfMemoryError";
    case ErrorKind::device:
      return "DeviceError";
    case ErrorKind::bug:
      break;
  }
  return "BugError";
}

// Text out of files need not be UTF-8.
nb::object text_object(const char* text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::char_traits<char>::length(text)), "replace"));
}

// `because`: what a callback raised, which this came of; it is raised itself unless a group is gone by it,
// and where it is no Exception (an interrupt).
void raise(const char* name, const char* text, nb::object because, bool group_failed = false) {
  if (because.is_valid() && !(group_failed && PyObject_IsInstance(because.ptr(), PyExc_Exception) == 1)) {
    PyErr_SetObject(because.type().ptr(), because.ptr());
    return;
  }
  const nb::object type = nb::module_::import_("kerf.errors").attr(name);
  const nb::object error = type(text_object(text));
  if (because.is_valid()) PyException_SetCause(error.ptr(), because.release().ptr());
  PyErr_SetObject(type.ptr(), error.ptr());
}

void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  nb::object because = take_raised();
  try {
    std::rethrow_exception(thrown);
  } catch (const comm::GroupFailed& error) {
    raise("GroupFailed", error.what(), std::move(because), true);
  } catch (const Error& error) {
    raise(class_name(error.kind()), error.what(), std::move(because));
  } catch (const std::bad_alloc&) {
    raise("OutOfMemoryError", "out of memory", std::move(because));
  } catch (const std::length_error&) {
    raise("OutOfMemoryError", "out of memory: more elements than any memory has", std::move(because));
  } catch (const std::bad_cast&) {
    // Of an attribute or an item of the caller's. Whoever reads one says which; this is for what nobody
    // thought of.
    raise("UsageError", "a value is of a type that is not wanted there", std::move(because));
  }
}

}  // namespace

void bind_errors(nb::module_& /*m*/) { nb::register_exception_translator(translate); }

}  // namespace kerf::python
