// After the warm-up a step allocates nothing: neither from the heap (this program counts) nor from the rank's
// memory.
#include <gtest/gtest.h>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"
#include "tests/support/count_allocations.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertKind;
using decode::Mode;

TEST(Allocation, AStepMakesNone) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.build.layers = {0, 1};  // NVFP4 and BF16
    options.expert_tp = true;
    options.max_tokens = 8;
    const auto runtime = decode::Runtime::build(from, options, rank);
    runtime.warm_up();
    const std::int64_t in_use = rank.memory.current();
    for (std::size_t position = 0; position < 2; ++position) {
      const ExpertKind kind = runtime.layers()[position].kind;
      for (const std::int64_t tokens : {1, 5, 8}) {
        const decode::Inputs in =
            decode::make_inputs(1, static_cast<std::int64_t>(position), tokens, kind, {16, 256, 4});
        decode::StepInputs step{tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
        if (kind == ExpertKind::bf16) step = {tokens, in.x, {}, {}, {}, {}, &runtime.router(), in.logits, {}};
        for (const Mode mode : {Mode::ep, Mode::tp}) {
          rank.group.barrier("the counted step");
          const std::int64_t before = allocations;
          const auto rows = runtime.execute(position, mode, step);
          const std::int64_t after = allocations;
          EXPECT_EQ(after - before, 0)
              << "layer " << position << ", " << tokens << " tokens, " << decode::name(mode);
          EXPECT_EQ(rows.size(), static_cast<std::size_t>(tokens) * 256);
        }
      }
    }
    EXPECT_EQ(rank.memory.current(), in_use);
  });
}

TEST(Allocation, TheCounterCounts) {
  const std::int64_t before = allocations;
  const std::vector<int> v(100);
  EXPECT_EQ(v.size(), 100U);
  EXPECT_GT(allocations, before);
}

}  // namespace
}  // namespace kerf::test
