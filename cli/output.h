// Files that options name to be written: each has to be one of its own, never one that is read, and never
// inside a checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "kerf/kerf.h"

namespace kerf::cli {

// A file that an option names, at the end of symlinks (checkpoint::check_writable(), or a file that is
// there).
struct OutputFile {
  std::string option;  // "--out"
  std::string given;   // what the user wrote
  std::filesystem::path resolved;
};

// Whether two paths are one file: same device and inode.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

// The file that an option names. Error{usage} where it cannot be written, or is where standard output or
// standard error goes: it would take the place of what was printed there.
OutputFile output_file(const std::string& option, const std::string& given);

// Error{usage}: why the file cannot be written.
[[noreturn]] void refuse_output(const OutputFile& file, const std::string& why);

// Error{usage} for a file inside a checkpoint's directory, or one that a link of that directory leads to.
void check_outside(const OutputFile& file, const std::filesystem::path& checkpoint);

}  // namespace kerf::cli
