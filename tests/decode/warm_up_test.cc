// The warm-up: every bound op of every layer runs once, in every mode, and has GEMMs to run on every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "kerf/decode/runtime.h"
#include "tests/decode/forwarding_group.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

// Counts the collectives by what they are for.
class Counting : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  std::map<std::string, int, std::less<>> calls;

 private:
  void before(std::string_view what) override { ++calls[std::string(what)]; }
};

// A step ends with the tail of its mode, which is the one to sum over ranks: so many steps were taken. Three
// NVFP4 layers in EP and TP, the BF16 layer in EP alone.
TEST(WarmUp, RunsEveryBoundOpOnce) {
  const checkpoint::Checkpoint from = small_model().open();
  on_ranks({2, 1, {}}, [&](const decode::Rank& below) {
    Counting group(below.group);
    const decode::Rank rank{group, below.memory, below.workers, below.log};
    decode::RuntimeOptions options;
    options.expert_tp = true;
    const auto runtime = decode::Runtime::build(from, options, rank);
    group.calls.clear();
    runtime.warm_up();
    EXPECT_EQ(group.calls["EP tail: sum"], 4);
    EXPECT_EQ(group.calls["TP tail: sum of rows"], 3);
  });
}

// Every rank's rows are written, by NVFP4 and BF16 experts alike: no rank's op idles through its warm-up,
// however few tokens the first batch has.
TEST(WarmUp, EveryRankHasRowsToCompute) {
  const checkpoint::Checkpoint from = small_model().open();
  for (const std::int64_t layer : {0, 1})
    for (const std::int64_t tokens : {1, 8})
      on_ranks({4, 1, {}}, [&](const decode::Rank& rank) {
        decode::RuntimeOptions options;
        options.build.layers = {layer};
        options.warm_tokens = tokens;
        const auto runtime = decode::Runtime::build(from, options, rank);
        const auto rows = runtime.plan().rows.as<std::uint16_t>();
        constexpr std::uint16_t untouched = 0x7FC1;  // a NaN that no op writes
        std::ranges::fill(rows, untouched);
        runtime.warm_up();
        const auto written = std::ranges::count_if(rows, [](auto bits) { return bits != untouched; });
        EXPECT_GE(written, 256) << "layer " << layer << ", rank " << rank.group.rank() << ", " << tokens;
        EXPECT_LE(written, 256 * 4 * tokens);
      });
}

}  // namespace
}  // namespace kerf::test
