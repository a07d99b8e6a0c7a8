// The commands as one call, for the program and for whoever runs one inside a process of his own.
#pragma once

#include <string>

#include "cli/context.h"

namespace kerf::cli {

// A command line that makes no sense.
class NotUnderstood : public Error {
 public:
  NotUnderstood(const std::string& text, bool hint) : Error(ErrorKind::usage, text), hint_(hint) {}
  // Whether --help would have said it.
  [[nodiscard]] bool hint() const noexcept { return hint_; }

 private:
  bool hint_;
};

// Runs the command that argv[1] names; reports, also those of --help and --version, go to context.out,
// messages to context.log. The exit code, which is 0; failures are thrown, NotUnderstood among them.
int run_program(int argc, char** argv, Context& context);

}  // namespace kerf::cli
