// What Python raises inside a callback that the library called: in words for the library, and kept until the
// library's call is over, when it can be raised again.
#pragma once

#include <string>

#include "src/bind.h"

namespace kerf::python {

// str() of an object in UTF-8, whatever it holds. Raises what its __str__ does. With the interpreter's lock
// held.
std::string utf8_of(nb::handle object);

// "ValueError: no such thing", without a trace. With the interpreter's lock held.
std::string words_of(const nb::python_error& error);

// Keeps it for the calling thread, which is inside a RankGroup::Call: whatever this ends with is raised
// because of it. With the lock held.
void keep_raised(const nb::python_error& error);
// What the calling thread keeps, which is then forgotten; not valid where it keeps nothing. With the lock
// held.
nb::object take_raised();
// With the lock or without.
void forget_raised();

// Calls back; what Python raises is kept, and goes on as `Failure` with its words. Any thread, without the
// lock.
template <typename Failure, typename Call>
void call_back(Call call) {
  const Locked lock;
  std::string raised;
  try {
    call();
    return;
  } catch (const nb::python_error& error) {
    keep_raised(error);
    raised = words_of(error);
  }
  throw Failure(raised);
}

}  // namespace kerf::python
