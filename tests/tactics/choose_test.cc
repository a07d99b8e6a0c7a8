// Choosing by time: ties, ranks, buckets; and that every candidate is timed.
#include "kerf/tactics/choose.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kerf/base/error.h"

namespace kerf::tactics {
namespace {

TEST(BestOf, ATieGoesToTheFirstListed) {
  EXPECT_EQ(best_of(std::vector{1.0, 1.0, 1.0}, 0.03), 0U);
  EXPECT_EQ(best_of(std::vector{1.02, 1.0}, 0.03), 0U);  // within 3%
  EXPECT_EQ(best_of(std::vector{1.04, 1.0}, 0.03), 1U);  // not within
  EXPECT_EQ(best_of(std::vector{1.04, 1.02, 1.0}, 0.03), 1U);
  EXPECT_EQ(best_of(std::vector{2.0, 1.0, 0.5}, 0.03), 2U);
  EXPECT_EQ(best_of(std::vector{1.0000001, 1.0}, 0.0), 1U);
  EXPECT_EQ(best_of(std::vector{7.0}), 0U);
  EXPECT_THROW((void)best_of({}), Error);
}

TEST(BestOf, RankedIsBestOfWhatIsLeft) {
  // 1.00 is least; 1.02 ties with it and is listed before it; then 1.00; of 1.05 and 1.07 the first.
  EXPECT_EQ(ranked(std::vector{1.05, 1.02, 3.0, 1.0, 1.07}, 0.03), (std::vector<std::size_t>{1, 3, 0, 4, 2}));
  EXPECT_TRUE(ranked({}).empty());
}

TEST(Buckets, ArePowersOfTwoAndTheMost) {
  EXPECT_EQ(buckets(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(buckets(8), (std::vector<std::int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(buckets(12), (std::vector<std::int64_t>{1, 2, 4, 8, 12}));
  // Each count belongs to the first bucket that is no smaller.
  for (const std::int64_t most : {1, 7, 8, 12, 64, 65}) {
    const std::vector<std::int64_t> all = buckets(most);
    for (std::int64_t t = 0; t <= most; ++t) {
      std::size_t at = 0;
      while (all[at] < t) ++at;
      EXPECT_EQ(bucket_of(t, most), all[at]) << t << " of " << most;
      if (t > 0) {
        EXPECT_EQ(first_in(all[at]), at == 0 ? 1 : all[at - 1] + 1) << all[at] << " of " << most;
      }
    }
  }
}

TEST(TimeCandidates, RunsEachInTurnAndKeepsTheLeast) {
  std::vector<std::size_t> order;
  const std::vector<double> seconds = time_candidates(3, 0, [&](std::size_t i) {
    order.push_back(i);
    // The first run of each, which does not count, is slow for all.
    if (order.size() <= 3 || i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 0, 1, 2}));  // no budget: one round
  EXPECT_LT(seconds[0], 0.015);
  EXPECT_GE(seconds[1], 0.02);
  EXPECT_LT(seconds[2], 0.015);
}

TEST(TimeCandidates, GoesOnUntilTheBudgetIsSpent) {
  int runs = 0;
  (void)time_candidates(1, 0.05, [&](std::size_t) {
    ++runs;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  EXPECT_GE(runs, 3);
  EXPECT_LE(runs, 7);
  runs = 0;
  (void)time_candidates(1, 100, [&](std::size_t) { ++runs; });
  EXPECT_EQ(runs, 51);  // at most 50 rounds
}

}  // namespace
}  // namespace kerf::tactics
