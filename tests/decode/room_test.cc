// Runtime::build() asks for room before it loads anything. The right sum is memory_plan()'s, which
// stages_test.cc holds against what really is in use.
#include <gtest/gtest.h>

#include <mutex>

#include "kerf/decode/memory_plan.h"
#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

constexpr int kRanks = 2;

// What all ranks take at most, by sizes alone.
std::int64_t wanted(std::int64_t tokens) {
  decode::MemoryRequest r{.experts = 16,
                          .hidden = 256,
                          .intermediate = 256,
                          .top_k = 4,
                          .nvfp4_layers = 3,
                          .bf16_layers = 1,
                          .ranks = kRanks,
                          .rows = 1,
                          .tp = kRanks,
                          .tokens = tokens,
                          .norm = true};
  return kRanks * decode::worst_stage(decode::memory_plan(r), false).total;
}

std::vector<Verdict> build_within(const decode::Room& room, std::int64_t& loaded) {
  const checkpoint::Checkpoint from = small_model().open();
  std::mutex mutex;
  return thrown_on({kRanks, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.max_tokens = 4;
    options.warm_tokens = 4;
    options.room = room;
    const std::int64_t before = rank.in_use();
    const Verdict why = attempt([&] { (void)decode::Runtime::build(from, options, rank); });
    {
      const std::scoped_lock lock(mutex);
      loaded = std::max(loaded, rank.memory.peak() - before);
    }
    require(why);
  });
}

TEST(RuntimeRoom, ABuildThatCannotFitIsRefusedBeforeItLoads) {
  std::int64_t loaded = 0;
  const std::int64_t all = wanted(4);
  for (const Verdict& why : build_within({all - 1, "this test"}, loaded)) {
    ASSERT_TRUE(why.has_value());
    EXPECT_EQ(why->kind, ErrorKind::memory);
    for (const char* words : {"wanted, and this test has", "2 ranks x (", "stock experts", "at the stage"})
      EXPECT_NE(why->text.find(words), std::string::npos) << why->text;
  }
  EXPECT_EQ(loaded, 0);
  for (const Verdict& why : build_within({all, "this test"}, loaded)) EXPECT_FALSE(why) << why->text;
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace kerf::test
