// The caller's log: lines of the library's to a callable of Python's.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include "src/bind.h"

namespace kerf::python {

// What it raises is kept, and it is called no more.
class CallersLog {
 public:
  // A callable, or None. Error{usage} for anything else. With the interpreter's lock held, as it is let go.
  explicit CallersLog(nb::handle call);

  // Any thread, without the lock; several at once take turns. False once it has raised.
  bool operator()(LogLevel level, const std::string& line);
  // Raises what it raised, once. With the lock held.
  void raise_again();

  // For the collector of cycles, with the lock held: what it refers to; from then on it is called no more.
  [[nodiscard]] nb::object& held() { return call_; }

 private:
  nb::object call_;
  std::exception_ptr raised_;
  bool silent_ = false;
};

// One that any thread may let go of.
std::shared_ptr<CallersLog> shared_log(nb::handle call);

}  // namespace kerf::python
