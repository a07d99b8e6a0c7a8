// Steps with more tokens than were prepared for: the public op on stock experts, with the bits of a runtime
// that was prepared for as many.
#include <gtest/gtest.h>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using checkpoint::ExpertKind;
using decode::Mode;

TEST(Unprepared, StepsOfUpTo4096TokensHaveThePreparedBits) {
  const Synthetic model(8, 128, 64, {1}, 2);  // an NVFP4 layer and one of BF16 experts
  const checkpoint::Checkpoint from = model.open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.max_tokens = 8;
    const auto small = decode::Runtime::build(from, options, rank);
    options.max_tokens = 4096;
    const auto large = decode::Runtime::build(from, options, rank);
    for (const std::int64_t tokens : {9, 64, 65, 1000, 4096}) {
      for (std::size_t i = 0; i < 2; ++i) {
        const ExpertKind kind = small.layers()[i].kind;
        decode::Inputs in = decode::make_inputs(1, static_cast<std::int64_t>(i), tokens, kind, {8, 128, 4});
        for (std::size_t r = 0; r < in.ids.size(); r += 11) in.ids[r] = -1;
        decode::StepInputs step{tokens, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
        if (kind == ExpertKind::bf16) step = {tokens, in.x, {}, {}, {}, {}, &small.router(), in.logits, {}};
        EXPECT_THROW((void)small.execute(i, Mode::ep, step), Error) << tokens;
        const std::int64_t before = rank.memory.current();
        const std::vector<std::uint16_t> got = small.execute_unprepared(i, step);
        EXPECT_EQ(rank.memory.current(), before);
        const auto want = large.execute(i, Mode::ep, step);
        ASSERT_EQ(got.size(), static_cast<std::size_t>(tokens) * 128);
        ASSERT_TRUE(std::ranges::equal(got, want)) << tokens << " tokens, layer " << i;
      }
    }
  });
}

// A sliced runtime keeps its stock experts for such steps.
TEST(Unprepared, RunOnStockExpertsOfASlicedRuntime) {
  const Synthetic model(8, 128, 128, {}, 1);
  const checkpoint::Checkpoint from = model.open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    const auto sliced = decode::Runtime::build(from, options, rank);
    options.expert_tp = false;
    options.max_tokens = 200;
    const auto stock = decode::Runtime::build(from, options, rank);
    const decode::Inputs in = decode::make_inputs(1, 0, 200, ExpertKind::nvfp4, {8, 128, 4});
    const decode::StepInputs step{200, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
    // No more than the steps of a runtime without slices take, and gone afterwards.
    const std::int64_t held = rank.memory.current();
    rank.memory.reset_peak();
    const std::vector<std::uint16_t> got = sliced.execute_unprepared(0, step);
    EXPECT_LE(rank.memory.peak() - held, stock.footprint().steps);
    EXPECT_EQ(rank.memory.current(), held);
    EXPECT_TRUE(std::ranges::equal(got, stock.execute(0, Mode::ep, step)));
  });
}

}  // namespace
}  // namespace kerf::test
