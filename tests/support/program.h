// Runs the program as a person would: arguments in, exit code, standard output and standard error out.
#pragma once

#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace kerf::test {

// Arguments of a command line.
using Words = std::vector<std::string>;
inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Ran {
  int code = 0;  // the exit code; 128 + the signal where one ended it
  std::string out;
  std::string err;
};

// `program` is the executable's path; no shell is involved. `environment` (NAME=VALUE) takes the place of the
// KERF_* variables of this process. `to`: a descriptor that becomes standard output, which then is not kept.
Ran run_executable(const std::string& program, const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {}, int to = -1);

// The kerf of this build.
inline Ran run_program(const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment = {}, int to = -1) {
  return run_executable(program_path, arguments, environment, to);
}

}  // namespace kerf::test
