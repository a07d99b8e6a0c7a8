// What tests of the program ask of its answers.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/program.h"
#include "tests/support/test_env.h"

namespace kerf::test {

inline nlohmann::json json_of(const Ran& ran) { return nlohmann::json::parse(ran.out); }

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline testing::AssertionResult contains(const std::string& text, std::string_view words) {
  if (text.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no '" << words << "' in:\n" << text;
}

// The program refused: this exit code, nothing on standard output, the words on standard error.
inline void expect_refusal(const Ran& ran, int code, std::initializer_list<std::string_view> words) {
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_EQ(ran.out, "");
  for (const std::string_view w : words) EXPECT_TRUE(contains(ran.err, w));
}

}  // namespace kerf::test
