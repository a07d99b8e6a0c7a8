// Checkpoints that real quantisers wrote, and what their packages make of them: tests/checkpoint/fixtures/.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/paths.h"

namespace kerf::test {

inline constexpr std::array<const char*, 12> made_cases = {
    "modelopt-qwen3",         "modelopt-qwen3-w4a16",
    "modelopt-qwen3-mixed",   "modelopt-qwen3-fp8-attention",
    "modelopt-mixtral",       "modelopt-deepseek-v3",
    "modelopt-llama4",        "compressed-qwen3",
    "compressed-qwen3-w4a16", "compressed-qwen3-mixed",
    "compressed-mixtral",     "compressed-deepseek-v3"};
inline constexpr std::array<const char*, 2> made_refused = {"modelopt-gpt-oss", "compressed-gpt-oss"};

// The case's model directory; rows-L.safetensors, y-L.safetensors and truth.json lie in it, too.
inline std::filesystem::path made(const std::string& name) {
  return std::filesystem::path(made_folder) / name;
}

inline nlohmann::json made_truth(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(made(name) / "truth.json"));
}

// As the name of a test.
inline std::string made_case_name(const testing::TestParamInfo<const char*>& test) {
  std::string out = test.param;
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace kerf::test
