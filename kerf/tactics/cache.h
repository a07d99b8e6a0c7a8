// The tuner's cache: which tactic won for stock experts, by arithmetic and bucket of token counts. A file
// belongs to one setting (package, device, sizes) and is refused for any other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "kerf/tactics/setting.h"

namespace kerf::tactics {

struct CacheEntry {
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  std::int64_t tokens = 0;  // the bucket's largest count
  op::Tactic tactic;

  friend bool operator==(const CacheEntry&, const CacheEntry&) = default;
};

struct CacheRead {
  std::vector<CacheEntry> entries;
  // Why nothing was taken from a file that is there: what is damaged, or what is foreign.
  Verdict refused;
  bool foreign = false;  // made for another setting: to be left as it is
};

// No file: no entries and no reason. Never throws for what is in the file.
CacheRead read_cache(const std::filesystem::path& path, const Setting& setting);

// Whole or not at all. Error{usage}.
void write_cache(const std::filesystem::path& path, const Setting& setting,
                 const std::vector<CacheEntry>& entries);

}  // namespace kerf::tactics
