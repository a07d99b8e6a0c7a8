// Which files of a model directory hold its tensors: an index, one model.safetensors, or numbered shards.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kerf::checkpoint::internal {

inline constexpr const char* index_name = "model.safetensors.index.json";

struct ShardFiles {
  std::vector<std::string> files;                           // names inside the directory, ascending
  std::optional<std::map<std::string, std::string>> index;  // tensor -> file, where there is an index
};

// Error{checkpoint}: no weights, an index that is damaged or names files outside the directory, shards that
// are not there (all are listed), two sets of shards.
ShardFiles find_shards(const std::filesystem::path& directory);

// The index's own text, and what it says; `path` is for messages. Error{checkpoint}.
std::string read_index_text(const std::filesystem::path& path);
std::map<std::string, std::string> parse_index(const std::string& text, const std::filesystem::path& path);

}  // namespace kerf::checkpoint::internal
