#include "kerf/tactics/tactics.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace kerf::tactics {
namespace {

struct Line {
  std::int64_t tokens, top_k, local;
  int tile;
};

TEST(DefaultTile, TheTileBelowTheOneThatCoversTheAverage) {
  // average = tokens * top_k / local -> covering tile -> one step down
  const Line lines[] = {
      {0, 8, 256, 8},      // 0 -> 8
      {1, 8, 256, 8},      // 1/32 -> 8
      {8, 8, 256, 8},      // 1/4 -> 8
      {8, 8, 8, 8},        // 8 -> 8: the first has nothing below
      {9, 8, 8, 8},        // 9 -> 16 -> 8
      {16, 8, 8, 8},       // 16 -> 16 -> 8
      {512, 8, 256, 8},    // 16 -> 16 -> 8
      {513, 8, 256, 16},   // 16 1/32 -> 32 -> 16
      {17, 8, 8, 16},      // 17 -> 32 -> 16
      {32, 8, 8, 16},      // 32 -> 32 -> 16
      {1024, 8, 256, 16},  // 32 -> 32 -> 16
      {1025, 8, 256, 32},  // 32 1/32 -> 64 -> 32
      {64, 8, 8, 32},      // 64 -> 64 -> 32
      {65, 8, 8, 32},      // 65: none covers, 64 -> 32
      {100000, 8, 1, 32},  // none covers, 64 -> 32
      {8, 8, 32, 8},       // EP 8 of 256 experts: 2 -> 8
      {3, 1, 2, 8},        // 1.5 -> 8
      {33, 1, 2, 16},      // 16.5 -> 32 -> 16
  };
  for (const Line& line : lines) {
    EXPECT_EQ(default_tile(line.tokens, line.top_k, line.local), line.tile)
        << line.tokens << " tokens, top " << line.top_k << ", " << line.local << " local";
  }
}

TEST(DefaultTile, OtherCandidates) {
  constexpr std::array all = {8, 16, 32, 64, 128, 192, 256};
  EXPECT_EQ(default_tile(64, 1, 1, all), 32);
  EXPECT_EQ(default_tile(65, 1, 1, all), 64);
  EXPECT_EQ(default_tile(128, 1, 1, all), 64);
  EXPECT_EQ(default_tile(129, 1, 1, all), 192);  // rounded up to 256, past 192
  EXPECT_EQ(default_tile(192, 1, 1, all), 192);
  EXPECT_EQ(default_tile(193, 1, 1, all), 192);
  EXPECT_EQ(default_tile(5000, 1, 1, all), 192);
  constexpr std::array one = {16};
  EXPECT_EQ(default_tile(1, 1, 1, one), 16);
  EXPECT_EQ(default_tile(500, 1, 1, one), 16);
}

// The launcher's own way to say it: the smallest of the set {centre, the two after it, the one before it}.
RC_GTEST_PROP(DefaultTile, IsTheSmallestOfTheSetAroundTheCentre, ()) {
  static const std::vector<std::vector<int>> lists = {
      {8, 16, 32, 64}, {8, 16, 32, 64, 128}, {8, 16, 32, 64, 128, 256}, {8, 16, 32, 64, 128, 192, 256}};
  const std::vector<int>& all = lists[*rc::gen::inRange<std::size_t>(0, lists.size())];
  const auto tokens = *rc::gen::inRange<std::int64_t>(0, 3000);
  const auto top_k = *rc::gen::inRange<std::int64_t>(1, 17);
  const auto local = *rc::gen::inRange<std::int64_t>(1, 513);
  const double average = static_cast<double>(tokens * top_k) / static_cast<double>(local);
  double centre = 1;
  while (centre < std::ceil(average)) centre *= 2;
  centre = std::min<double>(std::max<double>(centre, all.front()), all.back());
  const auto at = static_cast<std::size_t>(std::ranges::find(all, static_cast<int>(centre)) - all.begin());
  RC_ASSERT(at < all.size());
  std::set<int> around = {all[at]};
  if (at + 1 < all.size()) around.insert(all[at + 1]);
  if (at + 2 < all.size()) around.insert(all[at + 2]);
  if (at > 0) around.insert(all[at - 1]);
  RC_ASSERT(default_tile(tokens, top_k, local, all) == *around.begin());
}

TEST(DefaultTile, RefusesWhatHasNoAverage) {
  EXPECT_THROW(default_tile(8, 8, 0), Error);
  EXPECT_THROW(default_tile(-1, 8, 8), Error);
  EXPECT_THROW(default_tile(8, 8, 8, {}), Error);
}

TEST(TacticKey, MinusOneInEitherPartIsTheDefault) {
  const op::Tactic small{8, -1};
  EXPECT_EQ(tactic_key({-1, -1}, 8, 8, 256), small);
  EXPECT_EQ(tactic_key({-1, 3}, 8, 8, 256), small);
  EXPECT_EQ(tactic_key({32, -1}, 8, 8, 256), small);
  EXPECT_EQ(tactic_key({-1, -1}, 64, 8, 8), (op::Tactic{32, -1}));
}

TEST(TacticKey, AnythingElseIsItself) {
  for (const op::Tactic tactic : {op::Tactic{8, 0}, op::Tactic{64, 17}, op::Tactic{192, 2}}) {
    EXPECT_EQ(tactic_key(tactic, 8, 8, 256), tactic);
  }
}

TEST(TacticKeys, TheDefaultThenEachValidOneOnce) {
  const std::vector<op::Tactic> valid = {{8, 0}, {16, 1}, {8, 0}, {-1, -1}, {32, -1}};
  EXPECT_EQ(tactic_keys(valid, 8, 8, 256, 64), (std::vector<op::Tactic>{{8, -1}, {8, 0}, {16, 1}}));
  // 64 tokens of 8 routes on 8 experts: the default's tile is 32.
  EXPECT_EQ(tactic_keys(valid, 64, 8, 8, 64), (std::vector<op::Tactic>{{32, -1}, {8, 0}, {16, 1}}));
}

TEST(TacticKeys, TilesAboveTheLargestArePassedOver) {
  const std::vector<op::Tactic> valid = {{8, 0}, {16, 1}, {128, 0}, {32, 2}};
  EXPECT_EQ(tactic_keys(valid, 64, 8, 8, 16), (std::vector<op::Tactic>{{8, 0}, {16, 1}}));  // the default too
  EXPECT_EQ(tactic_keys(valid, 8, 8, 256, 64), (std::vector<op::Tactic>{{8, -1}, {8, 0}, {16, 1}, {32, 2}}));
  EXPECT_TRUE(tactic_keys(valid, 64, 8, 8, 4).empty());
}

}  // namespace
}  // namespace kerf::tactics
