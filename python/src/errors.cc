// kerf::Error as the exceptions of kerf.errors, by kind.
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "kerf/kerf.h"
#include "src/bind.h"

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

void raise(const char* name, const char* text) {
  const nb::object type = nb::module_::import_("kerf.errors").attr(name);
  PyErr_SetObject(type.ptr(), text_object(text).ptr());
}

void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const comm::GroupFailed& error) {
    raise("GroupFailed", error.what());
  } catch (const Error& error) {
    raise(class_name(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    raise("OutOfMemoryError", "out of memory");
  } catch (const std::length_error&) {
    raise("OutOfMemoryError", "out of memory: more elements than any memory has");
  } catch (const std::bad_cast&) {
    // Of an attribute or an item of the caller's. Whoever reads one says which; this is for what nobody
    // thought of.
    raise("UsageError", "a value is of a type that is not wanted there");
  }
}

}  // namespace

void bind_errors(nb::module_& /*m*/) { nb::register_exception_translator(translate); }

}  // namespace kerf::python
