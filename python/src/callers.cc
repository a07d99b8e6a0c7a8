#include "src/callers.h"

#include <fmt/format.h>

#include <exception>

#include "src/raised.h"

namespace kerf::python {

namespace {

// To the other ranks: an error of kerf's own as what it is; otherwise what Python raised, in words.
Error reason_of(const nb::python_error& error) {
  const nb::object own = nb::module_::import_("kerf.errors").attr("Error");
  std::int64_t kind = 0;
  const bool kerfs = error.matches(own) && nb::try_cast<std::int64_t>(error.value().attr("exit_code"), kind);
  if (kerfs) return {static_cast<ErrorKind>(kind), utf8_of(error.value())};
  return {error.matches(PyExc_MemoryError) ? ErrorKind::memory : ErrorKind::usage, words_of(error)};
}

}  // namespace

nb::int_ index_number(nb::handle value) {
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  return nb::borrow<nb::int_>(number);
}

nb::object empty_like(nb::handle like, const char* dtype, const tensor::Shape& shape) {
  nb::list sizes;
  for (const std::int64_t size : shape.dims()) sizes.append(size);
  return nb::module_::import_("kerf._arrays").attr("empty_like")(like, nb::tuple(sizes), dtype);
}

nb::object out_or_like(nb::handle out, nb::handle like, const char* dtype, const tensor::Shape& shape) {
  return out.is_none() ? empty_like(like, dtype, shape) : nb::borrow(out);
}

std::int64_t whole(const char* name, nb::handle value, std::int64_t low, std::int64_t high) {
  const nb::int_ number = index_number(value);
  std::int64_t out = 0;
  if (!nb::try_cast<std::int64_t>(number, out, false) || out < low || out > high)
    throw Error(ErrorKind::usage, fmt::format("{} is {}, wanted a whole number from {} to {}", name,
                                              utf8_of(number), low, high));
  return out;
}

nb::object attribute_of(nb::handle object, const char* name) {
  nb::object value = nb::steal(PyObject_GetAttrString(object.ptr(), name));
  if (value.is_valid()) return value;
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw nb::python_error();
  PyErr_Clear();
  return nb::none();
}

std::int64_t whole_attribute(nb::handle object, const char* name, std::int64_t low, std::int64_t high) {
  const nb::object value = attribute_of(object, name);
  if (PyIndex_Check(value.ptr()) != 0) return whole(name, value, low, high);
  throw Error(ErrorKind::usage, fmt::format("{} is {}, wanted a whole number from {} to {}", name,
                                            nb::cast<std::string>(nb::repr(value)), low, high));
}

std::uint64_t seed_of(nb::handle value) {
  const nb::int_ number = index_number(value);
  std::uint64_t out = 0;
  if (!nb::try_cast<std::uint64_t>(number, out, false))
    throw Error(ErrorKind::usage,
                fmt::format("seed is {}, wanted a whole number from 0 to 2^64 - 1", utf8_of(number)));
  return out;
}

void agreed(comm::Group& group, const char* what, const std::function<void()>& step) {
  std::exception_ptr raised;
  const Verdict mine = attempt([&] {
    try {
      step();
    } catch (const nb::python_error& error) {
      raised = std::current_exception();
      throw reason_of(error);
    }
  });
  Verdict all;
  {
    const Unlocked released;
    all = comm::agree(group, mine, what);
  }
  if (raised) std::rethrow_exception(raised);
  require(all);
}

}  // namespace kerf::python
