// The interpreter's lock, and its end. nanobind's guards let a thread that comes back while the interpreter
// ends be torn out of C++ by its thread library, which ends the process by std::terminate; these hold such a
// thread for good instead, as CPython itself does from 3.14 on.
#pragma once

#include <Python.h>

namespace kerf::python {

// Called when the module is made: from then on its end is known, and that of forked children. ImportError the
// second time, in whatever interpreter: the module's types are the process's.
void watch_the_interpreter();
// Whether this process is a fork of the one that made the module: threads of the library are not in it, so
// that nothing may wait for them.
bool in_forked_child();

// The calling thread lets the lock go for as long as this lives.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  Unlocked(Unlocked&&) = delete;
  Unlocked& operator=(Unlocked&&) = delete;

 private:
  PyThreadState* state_;
};

// Any thread has the lock for as long as this lives.
class Locked {
 public:
  Locked();
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  Locked(Locked&&) = delete;
  Locked& operator=(Locked&&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace kerf::python
