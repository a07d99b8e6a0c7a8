// The tuner's cache: which tactic won for stock experts, by their arithmetic and shape and the bucket of
// token counts. A file belongs to one setting (package, device, model, workers of a rank) and is refused for
// any other. No file is ever replaced that is not such a cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::tactics {

// What a cache's times hold for.
struct CacheSetting {
  std::string package;           // op::Backend::package()
  std::string device;            // op::Backend::device()
  std::int64_t num_experts = 0;  // E of the model
  std::int64_t top_k = 0;
  std::int64_t workers = 1;  // threads of a rank: tasks share out, and times change, with their number

  friend bool operator==(const CacheSetting&, const CacheSetting&) = default;
};

// That of a backend on this machine. Error{device} where its device does not answer.
CacheSetting cache_setting(const op::Backend& backend, std::int64_t num_experts, std::int64_t top_k,
                           std::int64_t workers);

// Nothing where a cache made for `made` holds for `wanted`, else what differs first (package, device, model,
// workers) with both values. Error kind: unsupported.
Verdict foreign(const CacheSetting& made, const CacheSetting& wanted);

// The tactic of one kind of experts for one bucket of token counts.
struct CacheEntry {
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  layout::ExpertsShape shape;  // of one rank's experts
  std::int64_t tokens = 0;     // the bucket's largest count, at least 1
  op::Tactic tactic;

  friend bool operator==(const CacheEntry&, const CacheEntry&) = default;
};

// What was read.
struct CacheRead {
  std::vector<CacheEntry> entries;
  // Why nothing was taken from a file that is there: what is damaged, what is foreign, or that it is no
  // cache.
  Verdict refused;
  // What is refused was not damaged but is somebody's: another setting's, another version's, no cache at all.
  bool stays = false;
};

// Nothing where a cache may be written: no file, an empty one, a cache, or what begins as one and is damaged
// further on. Otherwise why not, led by the path; Error kind: usage. Never throws for what is in the file.
Verdict not_a_cache(const std::filesystem::path& path);

// What a file holds for this setting. No file: no entries and no reason. Never throws for what is in the
// file.
CacheRead read_cache(const std::filesystem::path& path, const CacheSetting& setting);

// Writes a cache, whole or not at all. Error{usage} for a place that cannot be written; not_a_cache()'s
// reason.
void write_cache(const std::filesystem::path& path, const CacheSetting& setting,
                 const std::vector<CacheEntry>& entries);

}  // namespace kerf::tactics
#pragma GCC visibility pop
