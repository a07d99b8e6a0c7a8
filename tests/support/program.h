// Runs the program as a person would: arguments in, exit code, standard output and standard error out.
#pragma once

#include <string>
#include <vector>

namespace kerf::test {

struct Ran {
  int code = 0;  // the exit code; 128 + the signal where one ended it
  std::string out;
  std::string err;
};

// `program` is the executable's path; no shell is involved. `environment` adds NAME=VALUE to this process's
// own.
Ran run_executable(const std::string& program, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {});

#ifdef KERF_PROGRAM
// The kerf of this build.
inline Ran run_program(const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment = {}) {
  return run_executable(KERF_PROGRAM, arguments, environment);
}
#endif

}  // namespace kerf::test
