// Which entries a decode step reaches, recorded by the entries themselves, against the list of those that it
// may reach.
#include "kerf/base/calls.h"

#include <gtest/gtest.h>

#include <tuple>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertKind;
using decode::Mode;

// Layer 0 of the small model has NVFP4 experts, layer 1 BF16 ones.
struct Configuration {
  std::vector<std::int64_t> layers;
  Mode mode = Mode::ep;
  std::vector<int> own_step_tps;
};

decode::AllReduceSpec spec_of(const Configuration& c) {
  decode::AllReduceSpec spec;
  spec.model_width = 384;
  spec.own_step_tps = c.own_step_tps;
  return spec;
}

// What an engine does in a step: every layer's experts, and the all-reduce where it is a step of its own.
void decode_step(const decode::Runtime& runtime, Mode mode) {
  for (std::size_t i = 0; i < runtime.layers().size(); ++i) {
    const decode::Layer& layer = runtime.layers()[i];
    const decode::Inputs in = decode::make_inputs(1, layer.index, 8, layer.kind, {16, 256, 4});
    decode::StepInputs step{8, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
    if (layer.kind == ExpertKind::bf16) step = {8, in.x, {}, {}, {}, {}, &runtime.router(), in.logits, {}};
    (void)runtime.execute(i, mode, step);
  }
  if (!runtime.all_reduce_report().own_step) return;
  std::vector<std::uint16_t> rows(std::size_t{8} * 384);
  runtime.all_reduce(rows, rows);
}

// What one step of 2 ranks reached, build and warm-up not counted.
CallSet reached(const Configuration& c) {
  const checkpoint::Checkpoint from = small_model().open();
  std::vector<CallSet> seen(2);
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    CallRecord calls;
    decode::Rank recorded = rank;
    recorded.calls = &calls;
    decode::RuntimeOptions options;
    options.build.layers = c.layers;
    options.expert_tp = c.mode == Mode::tp;
    options.all_reduce = spec_of(c);
    const auto runtime = decode::Runtime::build(from, options, recorded);
    runtime.warm_up();
    calls.reset();
    decode_step(runtime, c.mode);
    seen[static_cast<std::size_t>(rank.group.rank())] = calls.seen();
  });
  EXPECT_EQ(seen[0], seen[1]);
  return seen[0];
}

TEST(ExpectedCalls, AStepReachesThemAndNoOthers) {
  for (const std::vector<int>& own : {std::vector<int>{2}, std::vector<int>{16}, std::vector<int>{}})
    for (const auto& [layers, mode, nvfp4, bf16] :
         {std::tuple{std::vector<std::int64_t>{0}, Mode::ep, true, false},
          {std::vector<std::int64_t>{0, 1}, Mode::ep, true, true},
          {std::vector<std::int64_t>{1}, Mode::ep, false, true},
          {std::vector<std::int64_t>{0, 2}, Mode::tp, true, false},
          {std::vector<std::int64_t>{0, 1}, Mode::tp, true, true}}) {
      const Configuration c{layers, mode, own};
      const CallSet expected = decode::expected_calls(spec_of(c), 2, nvfp4, bf16);
      EXPECT_EQ(reached(c), expected)
          << layers.size() << " layers from " << layers[0] << ", " << decode::name(mode) << ": reached "
          << reached(c).text() << ", expected " << expected.text();
    }
}

TEST(ExpectedCalls, WrittenOut) {
  decode::AllReduceSpec spec;
  spec.model_width = 8192;
  const auto names = [&](int tp, bool nvfp4, bool bf16) {
    return decode::expected_calls(spec, tp, nvfp4, bf16).text();
  };
  EXPECT_EQ(names(8, true, false), "routed_experts_from_metadata");
  EXPECT_EQ(names(8, true, true), "routed_experts_from_logits, routed_experts_from_metadata");
  EXPECT_EQ(names(4, false, true), "routed_experts_from_logits");
  EXPECT_EQ(names(16, true, true), "routed_experts_from_logits, routed_experts_from_metadata, all_reduce");
  EXPECT_EQ(names(16, true, false), "routed_experts_from_metadata, all_reduce");
  spec.model_width = 0;
  EXPECT_EQ(names(16, true, false), "routed_experts_from_metadata");
}

// A step that leaves one out, or reaches one more, is told from the list.
TEST(ExpectedCalls, OneMoreOrOneLessIsSeen) {
  const Configuration both{{0, 1}, Mode::ep, {2}};
  const CallSet expected = decode::expected_calls(spec_of(both), 2, true, true);
  EXPECT_EQ(reached(both), expected);
  EXPECT_NE(reached({{0}, Mode::ep, {2}}), expected);      // no layer that routes itself
  EXPECT_NE(reached({{0, 1}, Mode::ep, {16}}), expected);  // no all-reduce
  // A step larger than prepared takes the public op.
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    CallRecord calls;
    decode::Rank recorded = rank;
    recorded.calls = &calls;
    decode::RuntimeOptions options;
    options.build.layers = {0};
    options.max_tokens = 2;
    const auto runtime = decode::Runtime::build(from, options, recorded);
    runtime.warm_up();
    calls.reset();
    const decode::Inputs in = decode::make_inputs(1, 0, 3, ExpertKind::nvfp4, {16, 256, 4});
    (void)runtime.execute_unprepared(0, {3, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}});
    EXPECT_EQ(calls.seen(), CallSet{Call::routed_experts}) << calls.seen().text();
  });
}

TEST(CallRecord, KeepsASet) {
  CallRecord calls;
  EXPECT_EQ(calls.seen(), CallSet{});
  EXPECT_EQ(calls.seen().text(), "nothing");
  record(&calls, Call::all_reduce);
  record(&calls, Call::routed_experts);
  record(&calls, Call::all_reduce);
  record(nullptr, Call::routed_experts_from_logits);
  EXPECT_EQ(calls.seen(), (CallSet{Call::routed_experts, Call::all_reduce}));
  EXPECT_EQ(calls.seen().text(), "routed_experts, all_reduce");
  calls.reset();
  EXPECT_EQ(calls.seen(), CallSet{});
}

}  // namespace
}  // namespace kerf::test
