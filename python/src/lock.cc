#include "src/lock.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "src/bind.h"

namespace kerf::python {

namespace {

// Of the process, as the interpreter is: a thread that comes back has nobody else to ask.
struct Interpreter {
  std::atomic<bool> ends{false};
  std::atomic<std::thread::id> ender;
  std::atomic<int> coming{0};  // threads on their way to the lock
  std::atomic<bool> watched{false};
  pid_t process = 0;  // that made the module
};

Interpreter& interpreter() {
  static Interpreter it;
  return it;
}

// Takes the lock, or never returns.
template <typename Take>
void come(Take take) {
  Interpreter& it = interpreter();
  ++it.coming;
  if (it.ends && it.ender.load() != std::this_thread::get_id()) {
    --it.coming;
    while (true) pause();
  }
  take();
  --it.coming;
}

// The interpreter ends behind this: who is on his way to the lock still gets it, whoever comes later does
// not.
void end() {
  Interpreter& it = interpreter();
  it.ender = std::this_thread::get_id();
  it.ends = true;
  PyThreadState* const state = PyEval_SaveThread();
  while (it.coming > 0) std::this_thread::yield();
  PyEval_RestoreThread(state);
}

}  // namespace

void watch_the_interpreter() {
  if (PyInterpreterState_Get() != PyInterpreterState_Main())
    throw nb::import_error("kerf is loaded in the main interpreter alone");
  if (interpreter().watched.exchange(true))
    throw nb::import_error(
        "kerf is loaded in this process already: it cannot be loaded twice, nor in a second interpreter");
  interpreter().process = getpid();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(end));
  // The parent's other threads, who may have been on their way, are not in the child.
  nb::module_::import_("os").attr("register_at_fork")(nb::arg("after_in_child") =
                                                          nb::cpp_function([] { interpreter().coming = 0; }));
}

bool in_forked_child() { return getpid() != interpreter().process; }

Unlocked::~Unlocked() {
  come([this] { PyEval_RestoreThread(state_); });
}

Locked::Locked() : state_{} {
  const auto take = [this] { state_ = PyGILState_Ensure(); };
  // Who has it already (something of Python's is let go of) must not be held with it.
  if (PyGILState_Check() != 0)
    take();
  else
    come(take);
}

}  // namespace kerf::python
