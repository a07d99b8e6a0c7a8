#include "kerf/checkpoint/internal/module_patterns.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "kerf/base/error.h"
#include "kerf/checkpoint/internal/module_rules.h"

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

TEST(Patterns, FlagsBoundariesAndCountsOfPython) {
  for (const char* yes : {"re:(?i)MODEL\\.", "re:model\\b", "re:(?P<root>model)", "re:.{30,}", "re:m{1}odel",
                          "re:[a-z.]{5}\\.layers", "re:(((o|m){1}d?){2})el", "re:\\Amodel",
                          "re:model[.]layers", "re:[^*]+", "re:[]^m]odel", "re:^model", "re:(?is)MODEL"})
    EXPECT_TRUE(covers(yes, kLeaf)) << yes;
  for (const char* no : {"re:MODEL", "re:mod\\b", "re:.{60,}", "re:model$"})
    EXPECT_FALSE(covers(no, kLeaf)) << no;
}

TEST(Patterns, WhatCannotBeReadIsRefusedByName) {
  for (const char* bad : {"re:model\\.layers\\.\\61",
                          "re:(m)\\1",
                          "re:(?=x)",
                          "re:(?<!x)y",
                          "re:(?x)y",
                          "re:(a)\\1",
                          "re:a{1001}",
                          "re:((a{255}){255})",
                          "re:[a",
                          "re:a\\",
                          "re:(",
                          "re:a++",
                          "re:a{2}{3}",
                          "re:\\Qa",
                          "re:\\pN",
                          "re:a{,3}",
                          "re:[[:alpha:]]",
                          "re:\\x{61}",
                          "re:model(?i)x",
                          "re:(?-i)x",
                          "re:(?i-s)x",
                          "re:(?i-i:x)",
                          "re:(?U)x",
                          "re:(?)x",
                          "re:^*model",
                          "re:\\b*model",
                          "re:(?P<1>x)",
                          "re:(?P<a>m)(?P<a>o)",
                          "re:(?P>x)"}) {
    const ModulePattern pattern(bad, true);
    EXPECT_FALSE(pattern.readable()) << bad;
    try {
      (void)pattern.covers(kLeaf);
      ADD_FAILURE() << bad << " was read";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(e.what()).find(bad), std::string::npos) << e.what();
    }
  }
  EXPECT_FALSE(ModulePattern("re:" + std::string(2000, 'a'), true).readable());
}

// Nested repetitions, which an engine that backtracks takes years for; stars that a glob may backtrack over.
TEST(Patterns, NothingTakesLong) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(covers("re:(a*)*b", std::string(200, 'a')));
  EXPECT_FALSE(covers("re:(a|a)*(a|aa)*(a+)+b", std::string(200, 'a')));
  std::string stars;
  for (int i = 0; i < 100; ++i) stars += "*a";
  EXPECT_FALSE(covers(stars + "*b", std::string(200, 'a')));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Rules, NamesCountBeforePatternsAndTheLongestFirst) {
  ModuleRules rules;
  for (const auto& [text, says] : {std::pair{"model.layers.3", "outer"},
                                   {"model.layers.3.mlp.experts", "inner"},
                                   {"re:.*experts.*", "pattern"},
                                   {"model.layers.3.mlp.experts.7.up_proj", "part"}})
    rules.add(ModulePattern(text, true), says);
  Effort effort;
  const auto said = [&](std::string_view module) {
    const std::string* found = rules.find(module, effort);
    return found == nullptr ? "nothing" : *found;
  };
  EXPECT_EQ(said(kLeaf), "inner");
  EXPECT_EQ(said("model.layers.3.self_attn"), "outer");
  EXPECT_EQ(said("model.layers.4.mlp.experts.0"), "pattern");
  EXPECT_EQ(said("model.layers.33.mlp"), "nothing");
  EXPECT_EQ(said("model.layers.3.mlp.experts.7.up_proj"), "part");
  std::set<std::string> all;
  rules.collect(kLeaf, all, effort);
  EXPECT_EQ(all, (std::set<std::string>{"outer", "inner", "pattern"}));
  std::vector<std::string> parts;
  rules.each_name("model.layers.3.mlp.experts.", [&](std::string_view name, const std::string& says) {
    parts.push_back(std::string(name) + "=" + says);
  });
  EXPECT_EQ(parts, std::vector<std::string>{"model.layers.3.mlp.experts.7.up_proj=part"});
}

TEST(Rules, MayNameLooksBothWays) {
  ModuleRules rules;
  rules.add(ModulePattern("model.layers.3.mlp", true), "");
  rules.add(ModulePattern("model.layers.5*", true), "");
  rules.add(ModulePattern("visual", true), "");
  Effort effort;
  for (const char* yes : {"model.layers.3.", "model.layers.3.mlp.experts.", "model.layers.5.",
                          "model.layers.51.", "visual.layers.0."})
    EXPECT_TRUE(rules.may_name(yes, effort)) << yes;
  for (const char* no :
       {"model.layers.4.", "model.layers.33.", "backbone.layers.3.", "model.layers.3.self_attn."})
    EXPECT_FALSE(rules.may_name(no, effort)) << no;
}

// Globs that mean nothing here are looked at all the same, at every layer.
TEST(Rules, LooksAreCounted) {
  ModuleRules rules;
  for (int i = 0; i < 20'000; ++i)
    rules.add(ModulePattern("model.layers." + std::to_string(i) + ".mlp.experts.*", true), "");
  Effort effort;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        for (int layer = 0; layer < 100'000; ++layer)
          (void)rules.may_name("backbone.layers." + std::to_string(layer) + ".", effort);
      },
      Error);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// What comparing costs is counted; what a name costs is not, it is looked up.
TEST(Rules, EffortEnds) {
  ModuleRules rules;
  for (int i = 0; i < 500; ++i) rules.add(ModulePattern("re:.*a.*" + std::to_string(i) + ".*b", true), "");
  Effort effort;
  const auto start = std::chrono::steady_clock::now();
  try {
    for (int i = 0; i < 1 << 24; ++i) (void)rules.find(kLeaf, effort);
    ADD_FAILURE() << "no end";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(e.what()).find("500 patterns"), std::string::npos) << e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace kerf::checkpoint::internal
