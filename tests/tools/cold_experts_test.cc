// Which experts steps and reads take in turns: never those that were just touched, and never another rank's.
#include "kerf/tools/internal/cold_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kerf/decode/inputs.h"

namespace kerf::tools::internal {
namespace {

std::vector<std::int32_t> routes(std::uint64_t seed, std::int64_t tokens, std::int64_t experts,
                                 std::int64_t top_k) {
  return decode::make_inputs(seed, 0, tokens, checkpoint::ExpertKind::nvfp4, {experts, 0, top_k}).ids;
}

std::set<std::int32_t> set_of(const std::vector<std::int32_t>& ids) { return {ids.begin(), ids.end()}; }

bool disjoint(const std::set<std::int32_t>& a, const std::set<std::int32_t>& b) {
  return std::ranges::none_of(a, [&](std::int32_t id) { return b.contains(id); });
}

TEST(ColdExperts, AStepTheReadAfterItAndTheNextStepShareNoExpert) {
  ColdExperts cold(64, 1);
  std::set<std::int32_t> before;
  for (std::uint64_t pair = 0; pair < 20; ++pair) {
    std::vector<std::int32_t> ids = routes(pair, 1, 64, 8);
    cold.rename(ids);
    const std::set<std::int32_t> step = set_of(ids);
    const std::set<std::int32_t> read = set_of(cold.as_many());
    EXPECT_EQ(step.size(), 8U);
    EXPECT_EQ(read.size(), 8U);
    EXPECT_EQ(cold.met(), 8);
    EXPECT_TRUE(disjoint(step, before));
    EXPECT_TRUE(disjoint(read, step));
    before = read;
  }
}

// A renaming is one to one, and keeps every expert on its rank: which routes share an expert, and how many
// experts each rank has, is as it was.
TEST(ColdExperts, RenamingKeepsTheStepsStructure) {
  for (const std::int64_t blocks : {1, 2, 4}) {
    ColdExperts cold(16, blocks);
    const auto block_of = [&](std::int32_t id) { return id / (16 / blocks); };
    for (std::uint64_t pair = 0; pair < 10; ++pair) {
      const std::vector<std::int32_t> drawn = routes(pair, 3, 16, 4);
      std::vector<std::int32_t> ids = drawn;
      cold.rename(ids);
      std::map<std::int32_t, std::int32_t> name;
      for (std::size_t r = 0; r < ids.size(); ++r) {
        EXPECT_EQ(name.emplace(drawn[r], ids[r]).first->second, ids[r]);
        EXPECT_EQ(block_of(drawn[r]), block_of(ids[r]));
      }
      EXPECT_EQ(set_of(ids).size(), name.size());
      EXPECT_EQ(cold.met(), static_cast<std::int64_t>(name.size()));
      std::map<std::int64_t, std::int64_t> step, read;
      for (const std::int32_t id : set_of(ids)) ++step[block_of(id)];
      for (const std::int32_t id : cold.as_many()) ++read[block_of(id)];
      EXPECT_EQ(step, read);
    }
  }
}

// A step with all experts leaves a read no others; it starts with the one that the step ran first.
TEST(ColdExperts, WhereThereAreNoOthersTheOldestComesFirst) {
  ColdExperts cold(4, 1);
  std::vector<std::int32_t> ids = {3, 1, 0, 2};
  cold.rename(ids);
  EXPECT_EQ(cold.as_many(), (std::vector<std::int32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace kerf::tools::internal
