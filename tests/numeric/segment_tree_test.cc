// The balanced sum and the canonical dot, against recursive statements of the same rules.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kerf/numeric/rank_sum.h"
#include "kerf/numeric/segment_tree.h"
#include "tests/support/npy.h"

namespace kerf::numeric {
namespace {

float recursive(const std::vector<float>& v, std::size_t first, std::size_t n) {
  if (n == 1) return v[first];
  std::size_t p = 1;
  while (p * 2 < n) p *= 2;
  return recursive(v, first, p) + recursive(v, first + p, n - p);
}

float term(std::size_t i) { return static_cast<float>((i * 2654435761U) % 1000003) * 1e-3F - 400.0F; }

TEST(BalancedSum, IsTheTreeByPosition) {
  for (std::size_t n = 1; n <= 70; ++n) {
    std::vector<float> v;
    BalancedSum sum;
    for (std::size_t i = 0; i < n; ++i) {
      v.push_back(term(i));
      sum.add(v.back());
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum.sum()), std::bit_cast<std::uint32_t>(recursive(v, 0, n))) << n;
  }
  EXPECT_EQ(BalancedSum().sum(), 0.0F);
}

TEST(CanonicalDot, SlicesOfWholeNodesAddUpToTheWhole) {
  // 4 ranks of 2 segments each: a slice sums to one node, so the rule applied to those nodes gives the whole.
  const auto d = [](std::int64_t b) { return static_cast<float>((b * 37) % 1153 - 576) / 4; };
  const auto s = [](std::int64_t b) { return 0.001F * static_cast<float>(1 + (b * 11) % 17); };
  constexpr std::int64_t kBlocks = 8 * blocks_per_segment;
  BalancedSum sum;
  for (std::int64_t r = 0; r < 4; ++r) {
    const std::int64_t first = r * kBlocks / 4;
    sum.add(canonical_dot(
        kBlocks / 4, [&](std::int64_t b) { return d(b + first); },
        [&](std::int64_t b) { return s(b + first); }));
  }
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum.sum()),
            std::bit_cast<std::uint32_t>(canonical_dot(kBlocks, d, s)));
}

TEST(CanonicalDot, PaddingKWithZerosChangesNothing) {
  const auto d = [](std::int64_t b) { return b < 45 ? static_cast<float>((b * 37) % 1153 - 576) / 4 : 0.0F; };
  const auto s = [](std::int64_t b) { return 0.001F * static_cast<float>(1 + (b * 11) % 17); };
  const float want = canonical_dot(45, d, s);
  for (std::int64_t n = 46; n < 300; n += 13) EXPECT_EQ(canonical_dot(n, d, s), want) << n;
}

TEST(CanonicalDot, NothingIsZero) {
  EXPECT_EQ(canonical_dot(
                0, [](std::int64_t) { return 1.0F; }, [](std::int64_t) { return 1.0F; }),
            0.0F);
}

TEST(RankSum, IsGolden) {
  for (const int ranks : {4, 8, 16}) {
    const std::string name = "ar_w" + std::to_string(ranks);
    const auto x = test::golden<std::uint16_t>(name + "_x");
    const auto want = test::golden<std::uint16_t>(name + "_fp32");
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(rank_sum_bf16(ranks, [&](int r) { return x[static_cast<std::size_t>(r) * want.size() + i]; }),
                want[i]);
  }
}

TEST(RankSum, TellsOrdersAndRoundingsApart) {
  const auto sum = [](std::vector<float> v) {
    return bf16_to_f32(rank_sum_bf16(static_cast<int>(v.size()),
                                     [&](int r) { return f32_to_bf16(v[static_cast<std::size_t>(r)]); }));
  };
  EXPECT_EQ(sum({0x1p24F, 1, -0x1p24F}), 0.0F);  // ranks ascending: the 1 is lost
  EXPECT_EQ(sum({0x1p24F, -0x1p24F, 1}), 1.0F);
  EXPECT_EQ(sum({256, 1, 1, 1}), 260.0F);  // one rounding at the end; rounding at every add stays at 256
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum({-0.0F, -0.0F})), 0U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(sum({-0.0F})), 0U);  // at one rank too
  EXPECT_EQ(sum({-0x1p-130F, -0x1p-130F}), -0x1p-129F);       // subnormals are kept
}

}  // namespace
}  // namespace kerf::numeric
