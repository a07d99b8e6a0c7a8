// After the warm-up a step allocates nothing: neither from the heap (this program counts) nor from the rank's
// memory.
#include <gtest/gtest.h>

#include <thread>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/count_allocations.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertKind;
using decode::Mode;

// Steps of both layers (NVFP4 and BF16), in both modes, with the tail that the runtime was built for.
void expect_none(const decode::Runtime& runtime, const decode::Rank& rank, const decode::InputShape& shape) {
  for (std::size_t position = 0; position < 2; ++position) {
    const ExpertKind kind = runtime.layers()[position].kind;
    for (const std::int64_t tokens : {1, 5, 8}) {
      const decode::Inputs in =
          decode::make_inputs(1, static_cast<std::int64_t>(position), tokens, kind, shape);
      decode::StepInputs step{tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
      if (kind == ExpertKind::bf16) step = {tokens, in.x, {}, {}, {}, {}, &runtime.router(), in.logits, {}};
      for (const Mode mode : {Mode::ep, Mode::tp}) {
        rank.group.barrier("the counted step");
        const std::int64_t before = allocations;
        const auto rows = runtime.execute(position, mode, step);
        const std::int64_t after = allocations;
        EXPECT_EQ(after - before, 0) << "layer " << position << ", " << tokens << " tokens, "
                                     << decode::name(mode);
        EXPECT_EQ(rows.size(), static_cast<std::size_t>(tokens * shape.hidden));
      }
    }
  }
}

// On any ranks: those of one row, and those of a grid, whose tail has a sum over rows besides.
TEST(Allocation, AStepMakesNone) {
  const checkpoint::Checkpoint from = small_model().open();
  const auto counted = [&](const decode::Rank& unrecorded) {
    CallRecord calls;
    decode::Rank rank = unrecorded;
    rank.calls = &calls;
    decode::RuntimeOptions options;
    options.all_reduce.model_width = 512;
    options.all_reduce.own_step_tps = {2, 4};
    options.build.layers = {0, 1};  // NVFP4 and BF16
    options.expert_tp = true;
    options.max_tokens = 8;
    const auto runtime = decode::Runtime::build(from, options, rank);
    runtime.warm_up();
    const std::int64_t in_use = rank.memory.current();
    expect_none(runtime, rank, {16, 256, 4});
    std::vector<std::uint16_t> rows(std::size_t{8} * 512);
    const std::int64_t before = allocations;
    runtime.all_reduce(rows, rows);
    EXPECT_EQ(allocations - before, 0) << "the all-reduce";
    EXPECT_TRUE(calls.seen().has(Call::all_reduce));
    EXPECT_EQ(rank.memory.current(), in_use);
  };
  on_ranks({2, 1, {}}, counted);
  on_grid(2, 2, counted);
}

TEST(Allocation, AStepOfTheBlockMakesNone) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const int threads : {1, 3}) {
    on_ranks({2, threads, {}}, [&](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.build.layers = {0, 1};
      options.expert_tp = true;
      options.block = decode::BlockKind::muse_spark;
      const auto runtime = decode::Runtime::build(from, options, rank);
      runtime.warm_up();
      const std::int64_t in_use = rank.memory.current();
      rank.memory.reset_peak();
      const std::vector<std::uint16_t> x = decode::make_rows(1, 0, 8, 512);
      const auto run_all = [&] {
        for (std::size_t i = 0; i < 2; ++i)
          for (const Mode mode : {Mode::ep, Mode::tp})
            for (const std::size_t tokens : {1, 8})
              (void)runtime.execute_block(i, mode, static_cast<std::int64_t>(tokens),
                                          std::span(x).first(tokens * 512));
      };
      run_all();
      rank.group.barrier("before the counted steps");
      const std::int64_t before = all_allocations;
      rank.group.barrier("the count is taken");
      for (int round = 0; round < 5; ++round) run_all();
      rank.group.barrier("after the counted steps");
      const std::int64_t after = all_allocations;
      rank.group.barrier("the count is taken again");
      EXPECT_EQ(after - before, 0) << threads << " threads a rank";
      EXPECT_EQ(rank.memory.peak(), in_use);
    });
  }
}

// The same with several workers, where other threads work too: their allocations count as well. A barrier
// allocates nothing, so that between the two of them every rank is inside its step.
TEST(Allocation, AStepOnManyThreadsMakesNone) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const int threads : {2, 4}) {
    on_ranks({2, threads, {}}, [&](const decode::Rank& rank) {
      decode::RuntimeOptions options;
      options.build.layers = {0, 1};
      options.expert_tp = true;
      options.max_tokens = 8;
      const auto runtime = decode::Runtime::build(from, options, rank);
      runtime.warm_up();
      const std::int64_t in_use = rank.memory.current();
      rank.memory.reset_peak();
      std::vector<decode::Inputs> made;
      for (const decode::Layer& layer : runtime.layers())
        made.push_back(decode::make_inputs(1, layer.index, 8, layer.kind, {16, 256, 4}));
      const auto run_all = [&] {
        for (std::size_t i = 0; i < made.size(); ++i) {
          decode::StepInputs step{8, made[i].x, {}, {}, made[i].ids, made[i].weights, nullptr, {}, {}};
          if (made[i].ids.empty())
            step = {8, made[i].x, {}, {}, {}, {}, &runtime.router(), made[i].logits, {}};
          for (const Mode mode : {Mode::ep, Mode::tp}) (void)runtime.execute(i, mode, step);
        }
      };
      run_all();
      rank.group.barrier("before the counted steps");
      const std::int64_t before = all_allocations;
      rank.group.barrier("the count is taken");
      for (int round = 0; round < 20; ++round) run_all();
      rank.group.barrier("after the counted steps");
      const std::int64_t after = all_allocations;
      rank.group.barrier("the count is taken again");
      EXPECT_EQ(after - before, 0) << threads << " threads a rank";
      EXPECT_EQ(rank.memory.peak(), in_use);
    });
  }
}

TEST(Allocation, AnExactStepMakesNone) {
  const Synthetic model(8, 128, 1024, {1}, 2);
  const checkpoint::Checkpoint from = model.open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 8;
    options.tail.kind = tail::Kind::exact;
    const auto runtime = decode::Runtime::build(from, options, rank);
    runtime.warm_up();
    const std::int64_t in_use = rank.memory.current();
    expect_none(runtime, rank, {8, 128, 4});
    EXPECT_EQ(rank.memory.current(), in_use);
  });
}

// A thousand steps of every kind at tuned and pinned tactics: the heap sees none of them, nor does the rank's
// memory.
TEST(Allocation, AThousandStepsMakeNone) {
  const Synthetic model(8, 128, 128, {1}, 2);  // an NVFP4 layer and one of BF16 experts
  const checkpoint::Checkpoint from = model.open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 8;
    options.preferred = {{8, 1}};
    options.tune.seconds = 0.01;
    const auto runtime = decode::Runtime::build(from, options, rank);
    runtime.warm_up();
    EXPECT_TRUE(runtime.plan().tactic.pinned);
    EXPECT_EQ(runtime.plan().prepared_for(runtime.layers()[0], Mode::ep).tuned.size(), 4U);
    std::vector<decode::Inputs> made;
    for (std::int64_t tokens = 0; tokens <= 8; ++tokens)
      for (const decode::Layer& layer : runtime.layers())
        made.push_back(decode::make_inputs(1, layer.index, tokens, layer.kind, {8, 128, 4}));
    const std::int64_t in_use = rank.memory.current();
    rank.memory.reset_peak();
    rank.group.barrier("before the counted steps");
    const std::int64_t before = allocations;
    for (std::size_t step = 0; step < 1000; ++step) {
      const decode::Inputs& in = made[step % made.size()];
      decode::StepInputs inputs{in.tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
      const std::size_t layer = step % made.size() % 2;
      if (layer == 1) inputs = {in.tokens, in.x, {}, {}, {}, {}, &runtime.router(), in.logits, {}};
      (void)runtime.execute(layer, step % 4 < 2 ? Mode::ep : Mode::tp, inputs);
    }
    EXPECT_EQ(allocations - before, 0);
    EXPECT_EQ(rank.memory.peak(), in_use);
    EXPECT_EQ(rank.memory.current(), in_use);
  });
}

TEST(Allocation, TheCountersCount) {
  const std::int64_t elsewhere = all_allocations;
  std::thread([] {
    const std::vector<int> v(100);
    EXPECT_EQ(v.size(), 100U);
  }).join();
  EXPECT_GE(all_allocations - elsewhere, 1);

  const std::int64_t before = allocations;
  const std::vector<int> v(100);
  EXPECT_EQ(v.size(), 100U);
  EXPECT_GT(allocations, before);
}

}  // namespace
}  // namespace kerf::test
