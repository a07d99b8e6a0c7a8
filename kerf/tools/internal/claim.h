// Directories that a command fills with files of its own: made, or cleared of what an earlier run of the same
// command left, finished or stopped; never of anything else.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace kerf::tools::internal {

struct OwnFiles {
  std::string_view writer;  // "kerf synth"
  // Whether such a file can be one that the command writes, or one on its way.
  std::function<bool(const std::string& name)> is_own;
  // A file by which the command marks a directory as its own before any other is written; empty where the
  // names alone say it.
  std::string_view marker;
  // The file without which the others are no checkpoint: removed first, written last; may be empty.
  std::string_view key;
};

// The directory is there and empty. Error{usage}, with nothing changed, for one that holds anything that the
// command did not write (the message names it), and where it cannot be made, read or cleared.
void claim(const std::filesystem::path& directory, const OwnFiles& own);

// What a checkpoint that kerf writes consists of: shards, index, configs and `marker`, with what is on its
// way to them.
bool is_checkpoint_file(const std::string& name, std::string_view marker);

// Writes a small file in one go. Error{usage} as AtomicFile.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace kerf::tools::internal
