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

// Error{usage}: why the file cannot be written.
[[noreturn]] void refuse_output(const OutputFile& file, const std::string& why);

// Error{usage} for a file inside a checkpoint's directory, or one that a link of that directory leads to.
void check_outside(const OutputFile& file, const std::filesystem::path& checkpoint);

}  // namespace kerf::cli
