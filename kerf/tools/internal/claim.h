// Directories that a command fills with files of its own: made, or taken over with what an earlier run of the
// same command left, finished or stopped; never with anything else.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/base/file.h"
#include "kerf/checkpoint/atomic_file.h"

namespace kerf::tools::internal {

struct OwnFiles {
  std::string_view writer;  // "kerf synth"
  // Whether such a file can be one that the command writes, or one on its way.
  std::function<bool(const std::string& name)> is_own;
  // A file by which the command marks a directory as its own before any other is written; empty where the
  // names alone say it. Where it lists names (mark()), those alone are its own.
  std::string_view marker;
  // The file without which the others are no checkpoint: removed first, written last; may be empty.
  std::string_view key;
};

// A hold on such a directory, which no other run gets as long as this lives.
class Claim {
 public:
  // The directory is there, and holds at most what an earlier run left, without temporaries. Error{usage},
  // with nothing changed, for one that holds anything that the command did not write (the message names it),
  // that another run writes to at the moment, or that cannot be made or read.
  Claim(const std::filesystem::path& directory, OwnFiles own);
  // A marker beside which nothing came to be goes.
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  Claim(Claim&&) = delete;
  Claim& operator=(Claim&&) = delete;

  // Marks the directory: `names` are about to be written to it, besides what it has.
  void mark(const std::vector<std::string>& names) const;
  // Removes what the earlier run left, but for the marker, which then lists `names` alone where there are
  // any. Error{usage} where something cannot be removed.
  void clear(const std::vector<std::string>& names = {});

 private:
  void write_marker(std::vector<std::string> names) const;

  std::filesystem::path directory_;
  OwnFiles own_;
  std::vector<std::string> there_;  // the earlier run's, the key first
  Descriptor lock_;
};

// What a checkpoint that kerf writes consists of: "model-00001-of-00004.safetensors" for shard 0 of 4, ...
inline constexpr const char* index_name = "model.safetensors.index.json";
inline constexpr const char* quant_name = "hf_quant_config.json";
std::string shard_name(std::size_t shard, std::size_t of);
std::vector<std::string> checkpoint_files(std::size_t shards, bool quantisation);
// Whether a file can be one of those, `marker`, or on its way to one.
bool is_checkpoint_file(const std::string& name, std::string_view marker);

// A small file, on the disk but for its name, which finish() gives it. Error{usage} as AtomicFile.
checkpoint::AtomicFile text_to_come(const std::filesystem::path& path, const std::string& text);
// Writes a small file in one go. Error{usage} as AtomicFile.
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace kerf::tools::internal
