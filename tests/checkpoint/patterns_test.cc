#include "kerf/checkpoint/internal/module_patterns.h"

#include <gtest/gtest.h>

#include <chrono>

#include "kerf/base/error.h"

namespace kerf::checkpoint::internal {
namespace {

bool covers(const std::string& pattern, const std::string& module) {
  return ModulePattern(pattern, true).covers(module);
}

const std::string kLeaf = "model.layers.3.mlp.experts.0.gate_proj";

TEST(Patterns, NamesCoverThemselvesAndTheirParts) {
  EXPECT_TRUE(covers(kLeaf, kLeaf));
  EXPECT_TRUE(covers("model.layers.3.mlp", kLeaf));
  EXPECT_FALSE(covers("model.layers.3.ml", kLeaf));
  EXPECT_FALSE(covers("model.layers.3.mlp.experts.0.gate_proj.x", kLeaf));
  EXPECT_FALSE(covers("", kLeaf));
}

TEST(Patterns, GlobsCoverWholeNames) {
  for (const char* yes : {"model.layers.3.mlp*", "*experts*", "*.gate_proj", "model.layers.[0-3].*", "*"})
    EXPECT_TRUE(covers(yes, kLeaf)) << yes;
  for (const char* no : {"model.layers.3.mlp?", "*.gate", "*mlp.gate*", "model.layers.33*"})
    EXPECT_FALSE(covers(no, kLeaf)) << no;
  EXPECT_FALSE(ModulePattern("*experts*", false).covers(kLeaf));  // a plain name there
}

// Expressions as compressed-tensors and llm-compressor write them.
TEST(Patterns, RegularExpressionsMatchFromTheStart) {
  for (const char* yes :
       {"re:.*gate_proj$", "re:model.*", "re:.*mlp\\.experts\\..*(gate|up|down)_proj$",
        "re:.*\\.layers\\.(?:[3-9]|[1-3][0-9]|4[0-4])\\.mlp\\.experts\\..*(gate|up|down)_proj$",
        "re:.*\\.experts\\.\\d+\\.(gate_proj|up_proj)$", "re:.*?experts.*?", "re:model\\.layers\\.[\\d]+.*",
        "re:.{3}el.*", "re:\\w+\\.layers"})
    EXPECT_TRUE(covers(yes, kLeaf)) << yes;
  for (const char* no :
       {"re:.*mlp.gate$", "re:layers.*", "re:.*\\.layers\\.45\\..*", "re:.*lm_head", "re:vision_tower.*",
        "re:.*self_attn.*", "re:[^m].*", "re:.*experts\\.\\d\\d.*", "re:.*\\$"})
    EXPECT_FALSE(covers(no, kLeaf)) << no;
}

TEST(Patterns, WhatCannotBeReadIsRefusedByName) {
  for (const char* bad : {"re:(?=x)", "re:(?i)x", "re:(a)\\1", "re:a{300}", "re:(((a{9}){9}){9})", "re:[a",
                          "re:a\\", "re:\\bx", "re:(", "re:a++"}) {
    try {
      (void)covers(bad, kLeaf);
      ADD_FAILURE() << bad << " was read";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(e.what()).find(bad), std::string::npos) << e.what();
    }
  }
  EXPECT_FALSE(posix_of(std::string(2000, 'a')));
}

// Nested repetitions, which an engine that backtracks takes years for.
TEST(Patterns, NothingTakesLong) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(covers("re:(a*)*b", std::string(200, 'a')));
  EXPECT_FALSE(covers("re:(a|a)*(a|aa)*(a+)+b", std::string(200, 'a')));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace kerf::checkpoint::internal
