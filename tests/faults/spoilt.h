// Checkpoints that are sound by themselves and differ from another one in a single place.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "kerf/checkpoint/safetensors.h"

namespace kerf::test {

// Top 4 becomes top 2.
inline void change_top_k(const std::filesystem::path& config) {
  std::ifstream in(config);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  in.close();
  const std::string changed = std::regex_replace(text, std::regex("(\"num_experts_per_tok\": *)4"), "$012");
  ASSERT_NE(changed, text);
  std::ofstream(config) << changed;
}

// The last bit of one global scale of down: that of expert 5, of eight.
inline void change_a_global_scale(const std::filesystem::path& shard) {
  const auto header = checkpoint::read_header(shard);
  const auto entry = std::ranges::find_if(header.tensors, [](const auto& t) {
    return t.first.find("down_proj") != std::string::npos && t.second.shape.elements() == 8;
  });
  ASSERT_NE(entry, header.tensors.end());
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  const std::int64_t at = entry->second.begin + 5 * 4;
  file.seekg(at);
  const char last = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(last);
}

}  // namespace kerf::test
