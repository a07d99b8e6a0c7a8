// Errors and verdicts. Nothing in the library ends the process or writes to the terminal: a failure is an
// Error, with a kind and a text that names the value found, the one needed and the place. A part that answers
// "may I run on this?" returns a Verdict.
#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)
namespace kerf {

// What failed. The values are the command line's exit codes.
enum class ErrorKind : int {
  usage = 2,        // arguments that make no sense
  checkpoint = 3,   // files that are damaged, incomplete or inconsistent
  unsupported = 4,  // sound input that kerf does not implement, or a layout that cannot hold it
  peer = 5,         // another rank vanished or did not answer in time
  probe = 6,        // the probe found different results
  memory = 7,       // not enough memory
  device = 8,       // a device is absent or failed
  bug = 70,         // kerf's own fault
};

// What the library throws. what() is the text alone.
class Error : public std::runtime_error {
 public:
  // `text`: the value found, the one needed, and the place.
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  // What failed, and the same as a program's exit code.
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

// Why something is refused.
struct Reason {
  ErrorKind kind = ErrorKind::unsupported;
  std::string text;

  friend bool operator==(const Reason&, const Reason&) = default;
};

// Nothing: supported. Otherwise the reason. Never a bare bool, so that a refusal always says why.
using Verdict = std::optional<Reason>;

// Throws the verdict's reason as an Error; does nothing for "supported".
void require(const Verdict& verdict);

// Runs `step` and turns what it throws into a verdict: an Error's own kind; memory for std::bad_alloc and for
// a std::system_error that says that there is no memory or no thread; bug for anything else, std::exception
// or not. This is how a rank keeps a failure of its own until all ranks have agreed on it. Throws
// std::bad_alloc alone, where the text itself finds no memory.
Verdict attempt(const std::function<void()>& step);

}  // namespace kerf
#pragma GCC visibility pop
