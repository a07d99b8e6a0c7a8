#include "src/callers.h"

#include <fmt/format.h>

#include <exception>

namespace kerf::python {

namespace {

std::string words_of(nb::handle value) { return nb::cast<std::string>(nb::str(value)); }

// As Python's own functions take whole numbers: int, and what says that it is one.
nb::int_ index_of(nb::handle value) {
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  return nb::borrow<nb::int_>(number);
}

}  // namespace

nb::object empty_like(nb::handle like, const char* dtype, const tensor::Shape& shape) {
  nb::list sizes;
  for (const std::int64_t size : shape.dims()) sizes.append(size);
  return nb::module_::import_("kerf._arrays").attr("empty_like")(like, nb::tuple(sizes), dtype);
}

nb::object out_or_like(nb::handle out, nb::handle like, const char* dtype, const tensor::Shape& shape) {
  return out.is_none() ? empty_like(like, dtype, shape) : nb::borrow(out);
}

std::int64_t whole(const char* name, nb::handle value, std::int64_t low, std::int64_t high) {
  const nb::int_ number = index_of(value);
  std::int64_t out = 0;
  if (!nb::try_cast<std::int64_t>(number, out, false) || out < low || out > high)
    throw Error(ErrorKind::usage, fmt::format("{} is {}, wanted a whole number from {} to {}", name,
                                              words_of(number), low, high));
  return out;
}

std::int64_t whole_attribute(nb::handle object, const char* name, std::int64_t low, std::int64_t high) {
  const nb::object value = nb::getattr(object, name, nb::none());
  if (PyIndex_Check(value.ptr()) != 0) return whole(name, value, low, high);
  throw Error(ErrorKind::usage, fmt::format("{} is {}, wanted a whole number from {} to {}", name,
                                            nb::cast<std::string>(nb::repr(value)), low, high));
}

std::uint64_t seed_of(nb::handle value) {
  const nb::int_ number = index_of(value);
  std::uint64_t out = 0;
  if (!nb::try_cast<std::uint64_t>(number, out, false))
    throw Error(ErrorKind::usage,
                fmt::format("seed is {}, wanted a whole number from 0 to 2^64 - 1", words_of(number)));
  return out;
}

void agreed(comm::Group& group, const char* what, const std::function<void()>& step) {
  std::exception_ptr raised;
  const Verdict mine = attempt([&] {
    try {
      step();
    } catch (const nb::python_error& error) {
      raised = std::current_exception();
      throw Error(ErrorKind::usage, error.what());
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
