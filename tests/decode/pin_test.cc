// Pinning the tactic of sliced experts: the first preferred one that all ranks can run at all numbers of
// tokens, the same at every start.
#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/decode/decode.h"
#include "tests/decode/forwarding_experts.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/decode/warnings.h"

namespace kerf::test {
namespace {

using decode::Layer;
using decode::Mode;
using decode::TacticChoice;
using op::Tactic;

// pin() on two ranks, where `edit` may change a rank's layers first. The choice must be the same on both.
TacticChoice pinned(const std::vector<Tactic>& preferred, std::int64_t max_tokens, Warnings& warnings,
                    const std::function<void(int rank, std::vector<Layer>&)>& edit = {},
                    int largest_tile = 64) {
  std::vector<TacticChoice> choices(2);
  on_ranks({2, 1, warnings.log()}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers =
        decode::build(small_model().open(), {{0, 1, 2}, op::Input::nvfp4, "cpu", {}}, rank);
    (void)decode::shard(layers, {}, rank);
    if (edit) edit(rank.group.rank(), layers);
    const decode::Plan plan = decode::make_plan(layers, {max_tokens, largest_tile}, rank);
    choices[static_cast<std::size_t>(rank.group.rank())] =
        decode::pin(plan, layers, preferred, "for kernel package 'none'", rank);
  });
  EXPECT_EQ(choices[0].tactic, choices[1].tactic);
  EXPECT_EQ(choices[0].pinned, choices[1].pinned);
  EXPECT_EQ(choices[0].preference, choices[1].preference);
  return choices[0];
}

TEST(Pin, TakesTheFirstOfTheList) {
  Warnings warnings;
  const TacticChoice c = pinned({{8, 2}, {8, 0}}, 8, warnings);
  EXPECT_TRUE(c.pinned);
  EXPECT_EQ(c.tactic, (Tactic{8, 2}));
  EXPECT_EQ(c.preference, 0);
  EXPECT_EQ(c.of, 2);
  EXPECT_TRUE(warnings.lines().empty());
}

// Tiles and configs that do not exist, a tile that one token has no use for, and one above the metadata's.
TEST(Pin, PassesOverEntriesThatAreNotValidForEveryNumberOfTokens) {
  Warnings warnings;
  const TacticChoice c = pinned({{24, 0}, {8, 99}, {16, 0}, {64, 1}, {8, 1}, {8, 0}}, 64, warnings);
  EXPECT_EQ(c.tactic, (Tactic{8, 1}));
  EXPECT_EQ(c.preference, 4);
  EXPECT_EQ(c.of, 6);
  EXPECT_TRUE(warnings.lines().empty());
}

TEST(Pin, NoneThatIsValidIsTheDefaultWithOneWarning) {
  Warnings warnings;
  const TacticChoice c = pinned({{16, 0}, {24, 0}}, 64, warnings);
  EXPECT_FALSE(c.pinned);
  EXPECT_EQ(c.tactic, Tactic{});
  EXPECT_EQ(c.preference, -1);
  ASSERT_EQ(warnings.lines().size(), 1U);
  EXPECT_EQ(warnings.with("none of 2 preferred tactics runs 1 to 64 tokens"), 1U) << warnings.lines()[0];
}

TEST(Pin, NoListIsTheDefaultWithOneWarningThatSaysForWhat) {
  Warnings warnings;
  const TacticChoice c = pinned({}, 8, warnings);
  EXPECT_FALSE(c.pinned);
  EXPECT_EQ(c.of, 0);
  ASSERT_EQ(warnings.lines().size(), 1U);
  EXPECT_EQ(warnings.with("measured for kernel package 'none', so the op's default runs"), 1U);
}

// A rank without the first one's body, then one without the second's: the third is the first that all have.
TEST(Pin, ATacticThatOneRankLacksIsPassedOverOnAll) {
  Warnings warnings;
  const TacticChoice c =
      pinned({{8, 0}, {8, 1}, {8, 2}}, 8, warnings, [](int rank, std::vector<Layer>& layers) {
        wrap<LackingExperts>(layers[0].tp, std::vector<Tactic>{{8, rank == 1 ? 0 : 1}});
      });
  EXPECT_EQ(c.tactic, (Tactic{8, 2}));
  EXPECT_EQ(c.preference, 2);
  EXPECT_TRUE(warnings.lines().empty());
}

class OnlyFew : public ForwardingExperts {
 public:
  using ForwardingExperts::ForwardingExperts;
  // At 5 tokens it cannot run {8, 0}.
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    std::vector<Tactic> out = ForwardingExperts::tactics(tokens);
    if (tokens == 5) std::erase(out, Tactic{8, 0});
    return out;
  }
};

TEST(Pin, OneNumberOfTokensOnOneRankIsEnoughToPassOver) {
  Warnings warnings;
  const auto edit = [](int rank, std::vector<Layer>& layers) {
    if (rank == 1) wrap<OnlyFew>(layers[0].tp);
  };
  EXPECT_EQ(pinned({{8, 0}, {8, 1}}, 8, warnings, edit).tactic, (Tactic{8, 1}));
  EXPECT_EQ(pinned({{8, 0}, {8, 1}}, 4, warnings, edit).tactic, (Tactic{8, 0}));
}

// EP layers, stock or BF16, have no say.
TEST(Pin, AsksSlicedExpertsAlone) {
  Warnings warnings;
  const TacticChoice c = pinned({{8, 0}}, 8, warnings, [](int, std::vector<Layer>& layers) {
    for (Layer& layer : layers) wrap<LackingExperts>(layer.ep, std::vector<Tactic>{{8, 0}});
  });
  EXPECT_TRUE(c.pinned);
}

// Lists: looked up by the experts as they are sliced.
tactics::PreferredList list_for(std::int64_t width, std::vector<Tactic> tactics) {
  tactics::PreferredList list;
  list.setting = tactics::setting_of(op::backend("cpu"), {16, 256, width}, 16, 4);
  list.tactics = std::move(tactics);
  return list;
}

struct Started {
  decode::TacticReport tactic;
  std::vector<std::string> digests;
};

Started start(const decode::Options& options, Warnings& warnings, int ranks = 2) {
  Started out;
  on_ranks({ranks, 1, warnings.log()}, [&](const decode::Rank& rank) {
    const decode::Report r = decode::run(small_model().open(), options, rank);
    if (rank.group.rank() != 0) return;
    out.tactic = r.tactic;
    for (const decode::StepReport& s : r.steps) out.digests.push_back(s.output_sha256);
  });
  return out;
}

decode::Options quick() {
  decode::Options options;
  options.modes = {Mode::ep, Mode::tp};
  options.batches = {1, 8};
  options.repetitions = 2;
  options.seconds = 0;
  return options;
}

TEST(Pin, FindsTheListOfTheSlicesWidth) {
  decode::Options options = quick();
  options.lists = {list_for(256, {{8, 0}}), list_for(128, {{8, 2}, {8, 0}}), list_for(64, {{8, 1}})};
  Warnings warnings;
  const Started two = start(options, warnings);
  EXPECT_TRUE(two.tactic.pinned);
  EXPECT_EQ(two.tactic.config, 2);  // 256 / 2 ranks
  EXPECT_EQ(two.tactic.of, 2);
  const Started four = start(options, warnings, 4);
  EXPECT_EQ(four.tactic.config, 1);
  EXPECT_TRUE(warnings.lines().empty());
  options.lists[1].setting.package = "cpu-other-1";
  EXPECT_FALSE(start(options, warnings).tactic.pinned);
  options.lists = {list_for(128, {{8, 2}})};
  options.lists[0].setting.device = "another machine";
  EXPECT_FALSE(start(options, warnings).tactic.pinned);
  ASSERT_EQ(warnings.lines().size(), 2U);
  EXPECT_EQ(warnings.with("measured on device"), 1U) << warnings.lines()[1];
}

// Nothing is timed: three starts have one tactic and one set of bits, those of the default too.
TEST(Pin, ThreeStartsAreAlike) {
  decode::Options options = quick();
  options.lists = {list_for(128, {{64, 0}, {8, 1}, {8, 0}})};
  Warnings warnings;
  const Started first = start(options, warnings);
  EXPECT_TRUE(first.tactic.pinned);
  EXPECT_EQ(first.tactic.preference, 1);
  for (int again = 0; again < 2; ++again) {
    const Started next = start(options, warnings);
    EXPECT_EQ(next.tactic.tile, first.tactic.tile);
    EXPECT_EQ(next.tactic.config, first.tactic.config);
    EXPECT_EQ(next.tactic.preference, first.tactic.preference);
    EXPECT_EQ(next.digests, first.digests);
  }
  options.lists = {};
  EXPECT_EQ(start(options, warnings).digests, first.digests);
}

}  // namespace
}  // namespace kerf::test
