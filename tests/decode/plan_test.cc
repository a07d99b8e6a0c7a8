// The plan: which bodies are prepared, what steps without one do, how large the shared buffers are.
#include "kerf/decode/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/shard.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/tactics/choose.h"
#include "tests/decode/forwarding_experts.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/decode/warnings.h"

namespace kerf::test {
namespace {

using decode::Layer;
using decode::Mode;
using decode::Plan;
using op::Tactic;

bool holds(const std::vector<Tactic>& list, Tactic tactic) {
  return std::find(list.begin(), list.end(), tactic) != list.end();
}

std::vector<Layer> stock(const decode::Rank& rank, std::vector<std::int64_t> layers = {0}) {
  return decode::build(small_model().open(), {std::move(layers), op::Input::nvfp4, "cpu", {}}, rank);
}

// EP, TP and BF16 layers.
std::vector<Layer> sliced(const decode::Rank& rank, std::vector<std::int64_t> layers = {0, 1}) {
  std::vector<Layer> out = stock(rank, std::move(layers));
  (void)decode::shard(out, {}, rank);
  return out;
}

decode::StepInputs step_of(const decode::Inputs& in) {
  return {in.tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
}

decode::Inputs inputs_of(std::int64_t tokens) {
  return decode::make_inputs(3, 0, tokens, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
}

// 16 experts on one rank, top 4: the default's tile is 8 up to 64 tokens (average 16), then 16 (32 a token).
TEST(Plan, PreparesEveryValidTacticAndTheDefaultOnce) {
  on_ranks({}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers = stock(rank);
    LackingExperts::Seen seen;
    wrap<LackingExperts>(layers[0].ep, std::vector<Tactic>{}, &seen);
    const Plan plan = decode::make_plan(layers, {70, 64}, rank);
    std::vector<Tactic> want = layers[0].ep->tactics(70);
    EXPECT_EQ(want.size(), 12U);
    want.push_back({8, -1});
    want.push_back({16, -1});
    EXPECT_EQ(seen.prepared.size(), want.size()) << "each is asked for once";
    const std::vector<Tactic>& keys = plan.prepared_for(layers[0], Mode::ep).keys;
    EXPECT_EQ(keys.size(), want.size());
    for (const Tactic t : want) {
      EXPECT_TRUE(holds(seen.prepared, t)) << t.tile << ", " << t.config;
      EXPECT_TRUE(holds(keys, t)) << t.tile << ", " << t.config;
    }
    // At most 8 tokens: only tile 8 is of use.
    const Plan few = decode::make_plan(layers, {8, 64}, rank);
    EXPECT_EQ(few.prepared_for(layers[0], Mode::ep).keys.size(), 4U);
    for (const Tactic t : few.prepared_for(layers[0], Mode::ep).keys) EXPECT_EQ(t.tile, 8);
  });
}

TEST(Plan, TilesAboveTheLargestArePassedOver) {
  Warnings warnings;
  on_ranks({1, 1, warnings.log()}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers = stock(rank);
    LackingExperts::Seen seen;
    wrap<LackingExperts>(layers[0].ep, std::vector<Tactic>{}, &seen);
    const Plan plan = decode::make_plan(layers, {70, 8}, rank);
    for (const Tactic t : seen.prepared) EXPECT_EQ(t.tile, 8);
    EXPECT_FALSE(plan.prepared_for(layers[0], Mode::ep).keys.empty());
    // 65 tokens come to tile 16, for which there is no metadata: the public op's default runs, and gives the
    // rows of a plan without a bound.
    EXPECT_EQ(plan.resolve(layers[0], Mode::ep, 65), (Tactic{16, -1}));
    EXPECT_EQ(plan.body_tactic(layers[0], Mode::ep, 65), std::nullopt);
    EXPECT_EQ(plan.body_tactic(layers[0], Mode::ep, 64), (Tactic{8, -1}));
    decode::warn_of_missing_bodies(plan, layers, rank);
    const decode::Inputs in = inputs_of(65);
    const auto rows =
        expert_tp::route_rows(decode::run_experts(layers[0], Mode::ep, step_of(in), plan, rank.workers));
    EXPECT_EQ(seen.run.back(), Tactic{});
    const Plan whole = decode::make_plan(layers, {70, 64}, rank);
    const auto want =
        expert_tp::route_rows(decode::run_experts(layers[0], Mode::ep, step_of(in), whole, rank.workers));
    EXPECT_EQ(seen.run.back(), (Tactic{16, -1}));
    EXPECT_EQ(rows.rows, want.rows);
  });
  ASSERT_EQ(warnings.lines().size(), 1U);
  EXPECT_EQ(warnings.with("tile 16, config -1"), 1U) << warnings.lines()[0];
}

class TwoKinds : public ForwardingExperts {
 public:
  using ForwardingExperts::ForwardingExperts;
  [[nodiscard]] std::string_view workspace_kind(Tactic tactic) const override {
    return tactic == Tactic{8, 2} ? "device" : "host";
  }
};

TEST(Plan, RefusesAWorkspaceWhoseKindDiffersByTactic) {
  const auto verdicts = thrown_on({2, 1, {}}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers = stock(rank);
    if (rank.group.rank() == 1) wrap<TwoKinds>(layers[0].ep);
    (void)decode::make_plan(layers, {8, 64}, rank);
  });
  expect_all_refuse(verdicts, ErrorKind::unsupported,
                    {"rank 1", "workspace's kind differs", "'device' at tile 8, config 2", "'host'"});
}

// Six layers need what one does; a plan's tensors are one of each.
TEST(Plan, MemoryDoesNotGrowWithTheLayers) {
  const Synthetic model(16, 256, 256, {}, 6);
  const checkpoint::Checkpoint from = model.open();
  std::vector<std::int64_t> bytes;
  for (const std::vector<std::int64_t>& layers :
       std::vector<std::vector<std::int64_t>>{{0}, {0, 1, 2}, {0, 1, 2, 3, 4, 5}}) {
    on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.build.layers = layers;
      options.expert_tp = true;
      options.max_tokens = 40;
      const auto runtime = decode::Runtime::build(from, options, rank);
      if (rank.group.rank() == 0) bytes.push_back(runtime.footprint().steps);
    });
  }
  ASSERT_EQ(bytes.size(), 3U);
  EXPECT_GT(bytes[0], 0);
  EXPECT_EQ(bytes[1], bytes[0]);
  EXPECT_EQ(bytes[2], bytes[0]);
}

// The buffers hold the largest that any number of tokens and any key needs, and no more.
TEST(Plan, BuffersAreTheLargestOverTacticsAndTokens) {
  on_ranks({}, [&](const decode::Rank& rank) {
    const std::vector<Layer> layers = stock(rank);
    const Plan plan = decode::make_plan(layers, {40, 32}, rank);
    std::int64_t words = 0;
    std::int64_t rows = 0;
    std::size_t workspace = 0;
    for (std::int64_t t = 0; t <= 40; ++t) {
      for (const int tile : {8, 16, 32}) {
        if (tile > 8 && t <= tile / 2) continue;  // not of use for so few
        const auto shape = layers[0].ep->metadata_shape(t, tile);
        words = std::max(words, routing::metadata_words(shape));
        rows = std::max(rows, op::gemm2_rows(shape, 256));
        workspace = std::max(workspace, layers[0].ep->workspace_bytes(shape, {tile, 0}));
      }
    }
    EXPECT_EQ(plan.metadata.words(), words);
    EXPECT_EQ(plan.rows.bytes().size(), static_cast<std::size_t>(rows) * 256 * 2);
    EXPECT_EQ(plan.workspace.bytes().size(), workspace);
    // All words are -1 at first.
    const routing::Metadata m = plan.metadata.view(layers[0].ep->metadata_shape(40, 8));
    EXPECT_EQ(m.total_padded[0], -1);
    EXPECT_TRUE(std::ranges::all_of(m.permuted_to_token, [](std::int32_t v) { return v == -1; }));
    EXPECT_TRUE(std::ranges::all_of(m.histogram, [](std::int32_t v) { return v == -1; }));
  });
}

// Bodies and the public op agree at every tactic, in EP, TP and of BF16 experts, at any number of tokens.
TEST(Plan, BodiesGiveThePublicOpsRowsAtEveryTactic) {
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    const std::vector<Layer> layers = sliced(rank);
    Plan plan = decode::make_plan(layers, {64, 64}, rank);
    int bodies = 0;
    for (const std::int64_t tokens : {0, 1, 2, 7, 8, 9, 17, 33, 64}) {
      decode::Inputs in = inputs_of(tokens);
      for (std::size_t r = 0; r < in.ids.size(); ++r) {
        if (r % 7 == 3) in.ids[r] = -1;
        if (r % 5 == 4) in.ids[r] = in.ids[r - 1];  // twice in a token
        if (tokens == 17) in.ids[r] = 5;            // all on one expert, of rank 0
        if (tokens == 33) in.ids[r] = 12;           // ... of rank 1
      }
      for (const Layer& layer : layers) {
        for (const Mode mode : {Mode::ep, Mode::tp}) {
          std::vector<std::uint16_t> want;
          for (const Tactic tactic : layer.experts(mode).tactics(tokens)) {
            plan.tactic.tactic = tactic;
            for (decode::Prepared& p : plan.prepared)
              if (!p.sliced) p.tuned = {{tactics::bucket_of(tokens, 64), tactic}};
            ASSERT_EQ(plan.body_tactic(layer, mode, tokens), tactic);
            const auto got =
                expert_tp::route_rows(decode::run_experts(layer, mode, step_of(in), plan, rank.workers));
            if (want.empty())
              want =
                  expert_tp::route_rows(decode::run_public_op(layer, mode, step_of(in), plan, rank.workers))
                      .rows;
            ASSERT_EQ(got.rows, want)
                << "layer " << layer.index << ", " << decode::name(mode) << ", " << tokens << " tokens, tile "
                << tactic.tile << ", config " << tactic.config;
            ++bodies;
          }
        }
      }
    }
    EXPECT_GT(bodies, 200);
  });
}

// A backend without a body at a tactic: the public op runs instead, with the same rows; one warning tells it,
// however many steps, layers and ranks there are.
TEST(Plan, WithoutABodyThePublicOpRunsAndOneWarningSaysSo) {
  Warnings warnings;
  on_ranks({2, 1, warnings.log()}, [&](const decode::Rank& rank) {
    std::vector<Layer> layers = sliced(rank, {0, 2});
    LackingExperts::Seen seen;
    // Rank 1 lacks the default's body; both lack {8, 1} of the sliced experts.
    for (Layer& layer : layers) {
      if (rank.group.rank() == 1) wrap<LackingExperts>(layer.ep, std::vector<Tactic>{{8, -1}}, &seen);
      wrap<LackingExperts>(layer.tp, std::vector<Tactic>{{8, 1}}, &seen);
    }
    Plan plan = decode::make_plan(layers, {8, 64}, rank);
    plan.tactic.tactic = {8, 1};
    decode::warn_of_missing_bodies(plan, layers, rank);
    const std::vector<Layer> plain = sliced(rank, {0, 2});
    const Plan whole = decode::make_plan(plain, {8, 64}, rank);
    for (int again = 0; again < 3; ++again) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        for (const Mode mode : {Mode::ep, Mode::tp}) {
          for (const std::int64_t tokens : {1, 8}) {
            const bool lacks = mode == Mode::tp || rank.group.rank() == 1;
            EXPECT_EQ(plan.body_tactic(layers[i], mode, tokens).has_value(), !lacks);
            const decode::Inputs in = inputs_of(tokens);
            const auto y = decode::execute(layers[i], mode, step_of(in), plan, rank);
            const std::vector<std::uint16_t> got(y.begin(), y.end());
            if (lacks) {
              EXPECT_EQ(seen.run.back(), Tactic{}) << "the public op's default";
            }
            const auto z = decode::execute(plain[i], mode, step_of(in), whole, rank);
            EXPECT_EQ(got, std::vector<std::uint16_t>(z.begin(), z.end()));
          }
        }
      }
    }
  });
  EXPECT_EQ(warnings.lines().size(), 2U);
  EXPECT_EQ(warnings.with("no body is prepared for tactic tile 8, config -1"), 1U);
  EXPECT_EQ(warnings.with("no body is prepared for tactic tile 8, config 1"), 1U);
}

}  // namespace
}  // namespace kerf::test
