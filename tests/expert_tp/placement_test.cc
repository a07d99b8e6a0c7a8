// Linear placement, and what is said where experts lie elsewhere.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/expert_tp/expert_tp.h"

namespace kerf::expert_tp {
namespace {

using Lists = std::vector<std::vector<std::int64_t>>;

bool contains(const Verdict& verdict, const std::string& part) {
  return verdict && verdict->text.find(part) != std::string::npos;
}

TEST(MisplacedExperts, LinearPlacementIsRight) {
  EXPECT_FALSE(misplaced_experts(Lists{{0, 1}, {2, 3}}, 4));
  EXPECT_FALSE(misplaced_experts(Lists{{0, 1, 2, 3}}, 4));
  EXPECT_FALSE(misplaced_experts(Lists{{0}, {1}, {2}, {3}}, 4));
  for (int rank = 0; rank < 8; ++rank) {
    std::vector<std::int64_t> held;
    for (std::int64_t e = 0; e < 20; ++e) held.push_back(20 * rank + e);
    EXPECT_FALSE(misplaced_experts(held, rank, 8, 160));
  }
}

TEST(MisplacedExperts, NamesRankAndExperts) {
  const Verdict interleaved = misplaced_experts(Lists{{0, 2}, {1, 3}}, 4);
  EXPECT_TRUE(contains(interleaved, "rank 0 holds expert 2 where linear placement has 1"))
      << interleaved->text;
  EXPECT_TRUE(contains(interleaved, "rank 0 experts 0 to 1")) << "what would be right: " << interleaved->text;
  const Verdict swapped = misplaced_experts(Lists{{2, 3}, {0, 1}}, 4);
  EXPECT_TRUE(contains(swapped, "rank 0 holds expert 2 where linear placement has 0")) << swapped->text;
  const Verdict twice = misplaced_experts(Lists{{0, 1}, {1, 2}}, 4);
  EXPECT_TRUE(contains(twice, "rank 1 holds expert 1 where linear placement has 2")) << twice->text;
  EXPECT_TRUE(contains(twice, "expert 1 twice, expert 3 absent")) << twice->text;
  for (const Verdict& verdict : {interleaved, swapped, twice})
    EXPECT_EQ(verdict->kind, ErrorKind::unsupported);
  EXPECT_FALSE(contains(swapped, "absent"));
  // One rank's own list gives the same sentence, without the other ranks' part.
  EXPECT_EQ(misplaced_experts(std::vector<std::int64_t>{2, 3}, 0, 2, 4), swapped);
  EXPECT_TRUE(contains(misplaced_experts(std::vector<std::int64_t>{1, 2}, 1, 2, 4),
                       "rank 1 holds expert 1 where linear placement has 2"));
  EXPECT_FALSE(misplaced_experts(std::vector<std::int64_t>{0, 1}, 0, 2, 4));
}

TEST(MisplacedExperts, CountsAndStrangers) {
  EXPECT_TRUE(contains(misplaced_experts(Lists{{0, 1}, {2}}, 4), "rank 1 holds 1 experts"));
  EXPECT_TRUE(contains(misplaced_experts(Lists{{0, 1}, {2}}, 4), "expert 3 absent"));
  EXPECT_TRUE(contains(misplaced_experts(Lists{{}, {0, 1}}, 4), "rank 0 holds 0 experts"));
  EXPECT_TRUE(contains(misplaced_experts(Lists{{0, 1}, {2, 7}}, 4), "expert 7 is not one of 4"));
  EXPECT_TRUE(contains(misplaced_experts(Lists{{0, 1}, {2, -1}}, 4), "expert -1 is not one of 4"));
  EXPECT_TRUE(contains(misplaced_experts(Lists{{0, 0}, {0, 3}}, 4), "expert 0 3 times"));
  const Verdict many = misplaced_experts(Lists{std::vector<std::int64_t>(256, 0)}, 256);
  EXPECT_TRUE(contains(many, "expert 0 256 times"));
  EXPECT_TRUE(contains(many, "and more"));
  EXPECT_LT(many->text.size(), 400U);
}

TEST(MisplacedExperts, NumbersThatDoNotDivide) {
  const Verdict verdict = misplaced_experts(Lists(8, std::vector<std::int64_t>(7, 0)), 60);
  EXPECT_TRUE(contains(verdict, "60 experts over 8 ranks")) << verdict->text;
  EXPECT_TRUE(contains(verdict, "legal ep: 1, 2, 3, 4, 5, 6")) << verdict->text;
}

TEST(Misplaced, ByFirstExpertAndCount) {
  tensor::HostMemory memory;
  const layout::Nvfp4Experts stock(memory, {2, 128, 64}, 2);
  EXPECT_FALSE(misplaced(stock.view(), 1, 2, 4));
  EXPECT_FALSE(misplaced(stock.view(), 1, 4, 8));
  EXPECT_TRUE(
      contains(misplaced(stock.view(), 0, 2, 4), "rank 0 holds expert 2 where linear placement has 0"));
  EXPECT_TRUE(contains(misplaced(stock.view(), 1, 2, 8), "2 ranks x 2 is not 8 experts"));
  EXPECT_TRUE(contains(misplaced(stock.view(), 1, 3, 4), "4 experts over 3 ranks"));
  EXPECT_TRUE(misplaced(layout::Nvfp4View{}, 0, 2, 4)) << "no w13 at all";
}

}  // namespace
}  // namespace kerf::expert_tp
