// Which files of a model directory hold its tensors: an index, one model.safetensors, or numbered shards.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kerf/checkpoint/internal/weight_map.h"

namespace kerf::checkpoint::internal {

inline constexpr const char* index_name = "model.safetensors.index.json";

struct ShardFiles {
  std::vector<std::string> files;  // names inside the directory, ascending
  std::optional<WeightMap> index;  // of the same files, where there is one
};

// Error{checkpoint}: no weights, an index that is damaged or names files outside the directory, shards that
// are not there (all are listed), two sets of shards.
ShardFiles find_shards(const std::filesystem::path& directory);

// The index at `path`; and its own text. Error{checkpoint}.
WeightMap read_index(const std::filesystem::path& path);
std::string read_index_text(const std::filesystem::path& path);

}  // namespace kerf::checkpoint::internal
