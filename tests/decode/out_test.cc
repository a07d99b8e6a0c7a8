// A step's output in memory of the caller's.
#include <gtest/gtest.h>

#include <vector>

#include "kerf/decode/inputs.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

using decode::Mode;

TEST(StepOut, HasTheBitsOfTheRuntimesOwnBufferAndNothingBesides) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.build.layers = {0};
  options.expert_tp = true;
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    const auto runtime = decode::Runtime::build(from, options, rank);
    const decode::Inputs in = decode::make_inputs(1, 0, 3, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
    decode::StepInputs step{3, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
    for (const Mode mode : {Mode::ep, Mode::tp}) {
      step.out = {};
      const auto own = runtime.execute(0, mode, step);
      const std::vector<std::uint16_t> wanted(own.begin(), own.end());
      std::vector<std::uint16_t> page(5 * 256, 0x7FC0);
      step.out = std::span(page).subspan(256, 3 * 256);
      const auto there = runtime.execute(0, mode, step);
      EXPECT_EQ(there.data(), step.out.data());
      EXPECT_EQ(std::vector<std::uint16_t>(there.begin(), there.end()), wanted);
      for (const std::size_t at : {std::size_t{0}, std::size_t{255}, std::size_t{4 * 256}})
        EXPECT_EQ(page[at], 0x7FC0) << at;
    }
  });
}

TEST(StepOut, OfAnotherSizeIsRefused) {
  const checkpoint::Checkpoint from = small_model().open();
  decode::RuntimeOptions options;
  options.build.layers = {0};
  expect_all_refuse(thrown_on({2, 1, {}},
                              [&](const decode::Rank& rank) {
                                const auto runtime = decode::Runtime::build(from, options, rank);
                                const decode::Inputs in =
                                    decode::make_inputs(1, 0, 3, checkpoint::ExpertKind::nvfp4, {16, 256, 4});
                                std::vector<std::uint16_t> out(2 * 256);
                                decode::StepInputs step{3, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
                                step.out = out;
                                (void)runtime.execute(0, Mode::ep, step);
                              }),
                    ErrorKind::usage, {"a step with 512 values of out, wanted 768"});
}

}  // namespace
}  // namespace kerf::test
