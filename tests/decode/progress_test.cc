// What a caller's report of progress throws on one rank ends the start on all of them, with its reason.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "kerf/decode/runtime.h"
#include "tests/decode/support.h"
#include "tests/decode/synthetic.h"

namespace kerf::test {
namespace {

class Progress : public ::testing::TestWithParam<const char*> {};

TEST_P(Progress, WhatItThrowsAllRanksThrow) {
  const checkpoint::Checkpoint from = small_model().open();
  const std::string stage = GetParam();
  std::array<Verdict, 2> ended;
  int calls = 0;
  // A rank that threw alone would leave the other one to find that out by itself.
  on_ranks({2, 1, {}}, [&](const decode::Rank& rank) {
    decode::RuntimeOptions options;
    options.expert_tp = true;
    options.progress = [&](std::string_view at, std::int64_t, std::int64_t) {
      if (at != stage) return;
      ++calls;
      throw Error(ErrorKind::usage, "enough");
    };
    ended[static_cast<std::size_t>(rank.group.rank())] =
        attempt([&] { (void)decode::Runtime::build(from, options, rank); });
    rank.group.barrier("afterwards");
  });
  EXPECT_EQ(calls, 1);
  for (const Verdict& why : ended) {
    ASSERT_TRUE(why);
    EXPECT_EQ(why->kind, ErrorKind::usage);
    EXPECT_EQ(why->text, "rank 0: enough");
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, Progress, ::testing::Values("loading", "resharding"));

}  // namespace
}  // namespace kerf::test
