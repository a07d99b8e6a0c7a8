// A directory that the targets of one process write their inputs into, and the kinds of errors that a file's
// contents may cause.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/base/function_ref.h"
#include "tests/fuzz/targets.h"

namespace kerf::fuzz {

// A directory of this process alone, in memory where the system has such a place; gone at its end.
class Directory {
 public:
  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  Directory(Directory&&) = delete;
  Directory& operator=(Directory&&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Replaces the file's contents.
  void write(const std::string& name, std::string_view text) const;
  void remove(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

std::vector<std::string_view> parts_of(Bytes input);

// Runs `step`, which may throw an Error of one of these kinds: whether it threw none. Anything else ends the
// process, so that the fuzzer keeps the input.
bool expect_only(std::initializer_list<ErrorKind> kinds, FunctionRef<void()> step);

}  // namespace kerf::fuzz
