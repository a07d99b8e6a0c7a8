// A start spends its time on weights: what comes between them and the first step is done once a kind of
// experts, or a fixed number of times a layer. What is done is counted, not timed.
#include "kerf/decode/startup.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "kerf/decode/plan.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_experts.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

// Alike, so that they are one kind.
const Synthetic& alike() {
  static const Synthetic model(16, 256, 256, {}, 6);
  return model;
}

std::vector<std::int64_t> first_layers(std::int64_t count) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(i);
  return out;
}

class CountingExperts : public ForwardingExperts {
 public:
  CountingExperts(std::unique_ptr<op::RoutedExperts> below, int* asked)
      : ForwardingExperts(std::move(below)), asked_(asked) {}
  [[nodiscard]] std::vector<op::Tactic> tactics(std::int64_t tokens) const override {
    ++*asked_;
    return ForwardingExperts::tactics(tokens);
  }
  [[nodiscard]] Verdict prepare(op::Tactic tactic) const override {
    ++*asked_;
    return ForwardingExperts::prepare(tactic);
  }
  [[nodiscard]] std::string_view workspace_kind(op::Tactic tactic) const override {
    ++*asked_;
    return ForwardingExperts::workspace_kind(tactic);
  }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& shape,
                                            op::Tactic tactic) const override {
    ++*asked_;
    return ForwardingExperts::workspace_bytes(shape, tactic);
  }

 private:
  int* asked_;
};

class CountingGroup : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  int calls = 0;

 private:
  void before(std::string_view /*what*/) override { ++calls; }
};

struct Counts {
  int asked = 0;        // questions to experts
  int collectives = 0;  // of the plan
  friend bool operator==(const Counts&, const Counts&) = default;
};

Counts of_a_plan(const decode::Rank& below, std::int64_t layers) {
  decode::BuildOptions options;
  options.layers = first_layers(layers);
  std::vector<decode::Layer> built = decode::build(alike().open(), options, below);
  (void)decode::shard(built, {}, below);
  Counts counts;
  for (decode::Layer& layer : built) {
    wrap<CountingExperts>(layer.ep, &counts.asked);
    wrap<CountingExperts>(layer.tp, &counts.asked);
  }
  CountingGroup group(below.group);
  const decode::Rank rank{group, below.memory, below.workers, below.log};
  const decode::Plan plan = decode::make_plan(built, {8}, rank);
  const std::vector<op::Tactic> preferred = {{8, 99}, {8, 0}};
  (void)decode::pin(plan, built, preferred, "", rank);
  decode::warn_of_missing_bodies(plan, built, rank);
  counts.collectives = group.calls;
  return counts;
}

TEST(Startup, APlanCostsAsMuchForManyLayersAsForOne) {
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    const Counts one = of_a_plan(rank, 1);
    EXPECT_GT(one.asked, 0);
    EXPECT_GT(one.collectives, 0);
    EXPECT_TRUE(of_a_plan(rank, 6) == one);
  });
}

// Twice as many tokens: about twice as many questions, and those of the tactics that only larger steps have.
TEST(Startup, APlanGrowsWithTokensAtMostAsTheyDo) {
  on_ranks({}, [&](const decode::Rank& rank) {
    const auto asked = [&](std::int64_t tokens) {
      decode::BuildOptions options;
      options.layers = {0};
      std::vector<decode::Layer> built = decode::build(alike().open(), options, rank);
      int count = 0;
      wrap<CountingExperts>(built[0].ep, &count);
      (void)decode::make_plan(built, {tokens}, rank);
      return count;
    };
    const int few = asked(64);
    EXPECT_GT(few, 0);
    EXPECT_LE(asked(128), 5 * few / 2);
  });
}

// Every layer adds the same to a start and to its warm-up, the last one as much as the second.
TEST(Startup, EveryLayerAddsTheSameCollectives) {
  const auto calls = [&](std::int64_t layers) {
    std::vector<int> out;
    on_ranks({2, 1, {}}, [&](const decode::Rank& below) {
      CountingGroup group(below.group);
      const decode::Rank rank{group, below.memory, below.workers, below.log};
      decode::RuntimeOptions options;
      options.build.layers = first_layers(layers);
      options.expert_tp = true;
      const auto runtime = decode::Runtime::build(alike().open(), options, rank);
      const int built = group.calls;
      runtime.warm_up();
      if (group.rank() == 0) out = {built, group.calls - built};
    });
    return out;
  };
  const std::vector<int> one = calls(1), two = calls(2), six = calls(6);
  for (std::size_t stage : {0U, 1U}) {
    EXPECT_GT(two[stage], one[stage]);
    EXPECT_EQ(six[stage] - two[stage], 4 * (two[stage] - one[stage])) << "stage " << stage;
  }
}

TEST(Startup, StagesAddUpToNoMoreThanTheStart) {
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    const auto start = std::chrono::steady_clock::now();
    const auto runtime = decode::Runtime::build(small_model().open(), options, rank);
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const decode::Startup& s = runtime.startup();
    for (const double stage : {s.check, s.convert, s.reshard, s.probe, s.plan}) EXPECT_GT(stage, 0);
    EXPECT_EQ(s.warm_up, 0);
    EXPECT_LE(s.seconds() - s.reshard, all);  // that one is the slowest rank's
    // 8 of 16 experts of 256 x 256 a rank: three NVFP4 layers and a BF16 one.
    EXPECT_EQ(s.bytes, 8 * 3 * 256 * 256 * 9 / 16 * 3 + 8 * 3 * 256 * 256 * 2);
  });
}

TEST(Startup, TheSlowestRankOfEachStageCounts) {
  on_ranks({3, 1, {}}, [&](const decode::Rank& rank) {
    decode::Startup mine;
    mine.check = rank.group.rank();
    mine.convert = 2 - rank.group.rank();
    mine.warm_up = rank.group.rank() == 1 ? 7 : 0;
    mine.bytes = 10 + rank.group.rank();
    const decode::Startup all = decode::slowest(mine, rank.group);
    EXPECT_EQ(all.check, 2);
    EXPECT_EQ(all.convert, 2);
    EXPECT_EQ(all.warm_up, 7);
    EXPECT_EQ(all.plan, 0);
    EXPECT_EQ(all.seconds(), 11);
    EXPECT_EQ(all.bytes, 33);
  });
}

}  // namespace
}  // namespace kerf::test
