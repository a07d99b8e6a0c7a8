#include "src/callers_log.h"

#include <fmt/format.h>

#include <utility>

namespace kerf::python {

CallersLog::CallersLog(nb::handle call) : call_(nb::borrow(call)) {
  if (!call.is_none() && PyCallable_Check(call.ptr()) == 0)
    throw Error(ErrorKind::usage, fmt::format("log is {}, wanted a callable with two arguments, or None",
                                              nb::cast<std::string>(nb::repr(call))));
}

bool CallersLog::operator()(LogLevel level, const std::string& line) {
  const Locked lock;
  if (silent_) return false;
  if (!call_.is_valid() || call_.is_none()) return true;
  try {
    // Its own reference: meanwhile the collector may take the other one.
    const nb::object call = call_;
    call(level_name(level), line);
    return true;
  } catch (const nb::python_error&) {
    silent_ = true;
    raised_ = std::current_exception();
  }
  return false;
}

void CallersLog::raise_again() {
  if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
}

std::shared_ptr<CallersLog> shared_log(nb::handle call) {
  return {new CallersLog(call), [](CallersLog* log) {
            const Locked lock;
            delete log;
          }};
}

}  // namespace kerf::python
