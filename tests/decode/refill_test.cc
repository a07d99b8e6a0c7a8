// A layer that is filled anew: from then on its steps have the bits of a runtime that was built from the new
// weights, from the addresses that the old ones had; other layers stay as they are.
#include "kerf/decode/refill.h"

#include <gtest/gtest.h>

#include <mutex>
#include <ostream>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/feed.h"
#include "kerf/decode/runtime.h"
#include "kerf/tools/export.h"
#include "tests/decode/refill_support.h"
#include "tests/support/allocations.h"

namespace kerf::test {
namespace {

using decode::Mode;
using decode::Runtime;
using decode::RuntimeOptions;

struct Case {
  std::string label;
  int ep = 1, tp = 1;
  tools::SynthOptions model = spark_options();
  RuntimeOptions options = {};

  friend void PrintTo(const Case& c, std::ostream* to) { *to << c.label; }
};

RuntimeOptions steps_with(const Case& c) {
  RuntimeOptions options = c.options;
  options.expert_tp = c.tp > 1;
  return options;
}

// Ranks of a case: a grid where there are rows and columns.
void on(const Case& c, const std::function<void(const decode::Rank&)>& body) {
  if (c.ep > 1 && c.tp > 1) return on_grid(c.ep, c.tp, body);
  on_ranks({c.ep * c.tp, c.ep * c.tp == 1 ? 2 : 1, {}}, body);
}

tools::SynthOptions exact_options() {
  tools::SynthOptions o = spark_options();
  o.intermediate = 2048;  // slices of it are nodes of the sum over K
  o.layers = 2;
  o.bf16_layers = {};
  return o;
}

// SwiGLU with alpha, beta and limits, which are divided by the scales of the weights.
tools::SynthOptions clamped_options(bool weight_only) {
  tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::qwen3_moe);
  o.experts = 8;
  o.hidden = 128;
  o.intermediate = 256;
  o.layers = 2;
  o.top_k = 4;
  o.dialect = weight_only ? "" : "gpt-oss";
  o.weight_only = weight_only;
  o.bf16_layers = weight_only ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1};
  return o;
}

std::vector<Case> cases() {
  RuntimeOptions block;
  block.block = decode::BlockKind::muse_spark;
  RuntimeOptions w4a16;
  w4a16.build.input = op::Input::bf16;
  RuntimeOptions exact;
  exact.tail.kind = tail::Kind::exact;
  RuntimeOptions reference;
  reference.build.backend = "reference";
  std::vector<Case> out = {{"OneRank", 1, 1},
                           {"Ep2Block", 2, 1, spark_options(), block},
                           {"Ep4", 4, 1},
                           {"Tp2Block", 1, 2, spark_options(), block},
                           {"Tp4", 1, 4},
                           {"Hybrid", 2, 2},
                           {"HybridBlock", 2, 2, spark_options(), block},
                           {"W4a16", 1, 2, spark_options(), w4a16},
                           {"WeightOnly", 1, 2, clamped_options(true)},
                           {"ClampedEp2", 2, 1, clamped_options(false)},
                           {"ClampedTp2", 1, 2, clamped_options(false)},
                           {"ClampedHybrid", 2, 2, clamped_options(false)},
                           {"ExactOneRank", 1, 1, exact_options(), exact},
                           {"ExactTp2", 1, 2, exact_options(), exact},
                           {"ExactTp4", 1, 4, exact_options(), exact},
                           {"ExactHybrid", 2, 2, exact_options(), exact},
                           {"Reference", 1, 2, spark_options(), reference}};
  return out;
}

class Refill : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Everywhere, Refill, testing::ValuesIn(cases()),
                         [](const auto& listed) { return listed.param.label; });

TEST_P(Refill, HasTheBitsOfANewStartAndGoesBack) {
  const Case& c = GetParam();
  const Weights old_weights(c.model, 1);
  const Weights new_weights(c.model, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  on(c, [&](const decode::Rank& rank) {
    std::vector<Bits> wanted;
    {
      const Runtime other = Runtime::build(b, steps_with(c), rank);
      wanted = steps_of(other);
    }
    Runtime runtime = Runtime::build(a, steps_with(c), rank);
    runtime.warm_up();
    const std::vector<Bits> first = steps_of(runtime);
    const auto where = addresses_of(runtime);
    const std::int64_t in_use = rank.memory.current();
    for (std::size_t i = 0; i < first.size(); ++i) {
      ASSERT_NE(first[i], wanted[i]) << "layer " << i;
      const decode::RefillReport report = runtime.refill(i, b);
      EXPECT_EQ(report.layer, static_cast<std::int64_t>(i));
      EXPECT_GT(report.bytes, 0);
      EXPECT_EQ(report.rel_l2.has_value(), runtime.layers()[i].sliced.has_value());
      EXPECT_LT(report.rel_l2.value_or(0), decode::probe_limit);
      for (std::size_t j = 0; j < first.size(); ++j)
        EXPECT_EQ(steps_of(runtime, j), j <= i ? wanted[j] : first[j])
            << "layer " << j << " after the refill of layer " << i;
    }
    EXPECT_EQ(addresses_of(runtime), where);
    EXPECT_EQ(rank.memory.current(), in_use);
    // And back, in another order.
    for (std::size_t i = first.size(); i-- > 0;) (void)runtime.refill(i, a);
    EXPECT_EQ(steps_of(runtime), first);
    EXPECT_EQ(addresses_of(runtime), where);
    EXPECT_EQ(rank.memory.current(), in_use);
  });
}

// A refill from the very weights that are there changes nothing, in no byte.
TEST_P(Refill, FromTheSameWeightsChangesNothing) {
  const Case& c = GetParam();
  const Weights weights(c.model, 1);
  const checkpoint::Checkpoint a = weights.open();
  on(c, [&](const decode::Rank& rank) {
    Runtime runtime = Runtime::build(a, steps_with(c), rank);
    const auto before = contents_of(runtime, 0);
    (void)runtime.refill(0, a);
    EXPECT_EQ(contents_of(runtime, 0), before);
  });
}

TEST_P(Refill, LeavesAStepWithoutAllocations) {
  const Case& c = GetParam();
  const Weights old_weights(c.model, 1);
  const Weights new_weights(c.model, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  if (c.options.build.backend == "reference") GTEST_SKIP() << "the reference allocates in every step";
  on(c, [&](const decode::Rank& rank) {
    Runtime runtime = Runtime::build(a, steps_with(c), rank);
    runtime.warm_up();
    (void)runtime.refill(0, b);
    const op::RoutedExperts& bound = runtime.layers()[0].bound();
    const decode::Inputs in = decode::make_inputs(1, 0, 8, runtime.layers()[0].kind,
                                                  {bound.num_experts(), bound.shape().hidden, bound.top_k()});
    const decode::StepInputs step = step_of(in, runtime.router());
    const std::int64_t in_use = rank.memory.current();
    rank.memory.reset_peak();
    for (const Mode mode : {Mode::ep, Mode::tp}) {
      (void)runtime.execute(0, mode, step);
      rank.group.barrier("the counted step");
      const std::int64_t before = allocations;
      (void)runtime.execute(0, mode, step);
      EXPECT_EQ(allocations - before, 0) << decode::name(mode);
    }
    EXPECT_EQ(rank.memory.peak(), in_use);
  });
}

// What is needed beside the layers is one layer's experts and slices, whatever the model has, and it is given
// back.
TEST(RefillMemory, IsThatOfOneLayer) {
  tools::SynthOptions model = spark_options();
  model.layers = 6;
  model.bf16_layers = {};
  const Weights weights(model, 1);
  const checkpoint::Checkpoint a = weights.open();
  on({"", 1, 2}, [&](const decode::Rank& rank) {
    RuntimeOptions options;
    options.expert_tp = true;
    Runtime runtime = Runtime::build(a, options, rank);
    const std::int64_t in_use = rank.memory.current();
    const std::int64_t layer = (runtime.footprint().stock + runtime.footprint().sliced) / 6;
    rank.memory.reset_peak();
    (void)runtime.refill(3, a);
    EXPECT_GE(rank.memory.peak() - in_use, layer);
    // The probe's buffers, and one packed kind, come on top.
    EXPECT_LE(rank.memory.peak() - in_use, 2 * layer + (1 << 20));
    EXPECT_EQ(rank.memory.current(), in_use);
  });
}

// The same weights in another dialect, and fed by one rank.
TEST(RefillSource, MayBeOfAnotherDialectOrFed) {
  tools::SynthOptions model = spark_options();
  model.model = tools::SynthModel::qwen3_moe;
  const Weights old_weights(model, 1);
  const Weights new_weights(model, 2);
  tools::SynthOptions stacked = model;
  stacked.dialect = "llama4";
  const Weights restated(stacked, 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  const checkpoint::Checkpoint other = restated.open();
  on({"", 2, 2}, [&](const decode::Rank& rank) {
    RuntimeOptions options;
    options.expert_tp = true;
    const std::vector<Bits> wanted = steps_of(Runtime::build(b, options, rank));
    Runtime runtime = Runtime::build(a, options, rank);
    const std::vector<Bits> first = steps_of(runtime);
    for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, other);
    EXPECT_EQ(steps_of(runtime), wanted);
    for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, a);
    EXPECT_EQ(steps_of(runtime), first);
    const checkpoint::Checkpoint fed = decode::fed_from(rank.group, 1, [&] { return b; });
    for (std::size_t i = 0; i < first.size(); ++i) (void)runtime.refill(i, fed);
    EXPECT_EQ(steps_of(runtime), wanted);
  });
}

// An export holds whole experts or slices: either fills a runtime that has them, and slices can be cut anew
// for a runtime that has nothing else.
TEST(RefillSource, MayBeAnExport) {
  const Weights old_weights(spark_options(), 1);
  const Weights new_weights(spark_options(), 2);
  const checkpoint::Checkpoint a = old_weights.open();
  const checkpoint::Checkpoint b = new_weights.open();
  const TempDir whole;
  const TempDir sliced;
  on({"", 1, 2}, [&](const decode::Rank& rank) {
    tools::ExportOptions exporting;
    tools::export_experts(b, whole.path(), exporting, rank);
    exporting.expert_tp = true;
    tools::export_experts(b, sliced.path(), exporting, rank);
    RuntimeOptions options;
    options.expert_tp = true;
    const std::vector<Bits> wanted = steps_of(Runtime::build(b, options, rank));
    checkpoint::Checkpoint from_whole;
    checkpoint::Checkpoint from_slices;
    comm::agreed(rank.group, "opening the exports", [&] {
      from_whole = checkpoint::Checkpoint::open(whole.path());
      from_slices = checkpoint::Checkpoint::open(sliced.path());
    });
    Runtime runtime = Runtime::build(a, options, rank);
    for (std::size_t i = 0; i < wanted.size(); ++i) (void)runtime.refill(i, from_whole);
    EXPECT_EQ(steps_of(runtime), wanted);
    // Slices alone.
    Runtime slices = Runtime::build(from_slices, options, rank);
    const std::vector<Bits> before = steps_of(slices);
    const auto where = addresses_of(slices);
    const decode::RefillReport report = slices.refill(0, a);
    EXPECT_TRUE(report.rel_l2);
    EXPECT_NE(steps_of(slices, 0), before[0]);
    EXPECT_EQ(steps_of(slices, 2), before[2]);
    (void)slices.refill(0, from_slices);
    EXPECT_EQ(steps_of(slices), before);
    EXPECT_EQ(addresses_of(slices), where);
    // They do not fill whole experts.
    const Verdict v = attempt([&] { (void)runtime.refill(0, from_slices); });
    ASSERT_TRUE(v);
    EXPECT_EQ(v->kind, ErrorKind::checkpoint);
    EXPECT_NE(v->text.find("layer 0: the source has slices alone"), std::string::npos) << v->text;
    EXPECT_EQ(steps_of(runtime), wanted);
  });
}

// A rank's report and one line of the log say what happened.
TEST(RefillReport, IsLoggedOnce) {
  const Weights weights(spark_options(), 1);
  const checkpoint::Checkpoint a = weights.open();
  std::vector<std::string> lines;
  std::mutex lock;
  const Log log([&](LogLevel level, const std::string& line) {
    const std::lock_guard guard(lock);
    if (level == LogLevel::info && line.find("refilled") != std::string::npos) lines.push_back(line);
  });
  on_ranks({2, 1, log}, [&](const decode::Rank& rank) {
    RuntimeOptions options;
    options.expert_tp = true;
    Runtime runtime = Runtime::build(a, options, rank);
    (void)runtime.refill(2, a);
  });
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("layer 2 refilled from " + weights.path().string()), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("probe rel L2 0.00"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace kerf::test
