// The balanced sum and the canonical dot, against recursive statements of the same rules.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <set>
#include <utility>
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

// The tree drawn by the words of the rule: every node's [first, end).
using Nodes = std::set<std::pair<std::int64_t, std::int64_t>>;
void draw(Nodes& nodes, std::int64_t first, std::int64_t end) {
  nodes.insert({first, end});
  if (end - first < 2) return;
  std::int64_t left = 1;
  while (2 * left < end - first) left *= 2;
  draw(nodes, first, first + left);
  draw(nodes, first + left, end);
}

TEST(SegmentTree, KnowsItsNodes) {
  for (std::int64_t n = 1; n <= 40; ++n) {
    Nodes nodes;
    draw(nodes, 0, n);
    EXPECT_EQ(nodes.size(), static_cast<std::size_t>(2 * n - 1));
    for (std::int64_t first = 0; first < n; ++first)
      for (std::int64_t end = first + 1; end <= n; ++end)
        ASSERT_EQ(is_node(n, first, end - first), nodes.contains({first, end}))
            << n << ": " << first << " " << end;
  }
}

// Slices are nodes, one and all, just where their sums give the whole's bits by the rule for so many terms.
TEST(SegmentTree, SlicesThatAreNodesGiveTheBitsOfTheWhole) {
  std::mt19937 random(3);
  int legal = 0;
  for (std::int64_t n = 1; n <= 96; ++n) {
    Nodes nodes;
    draw(nodes, 0, n);
    for (std::int64_t slices = 1; slices <= n; ++slices) {
      if (n % slices != 0) continue;
      const std::int64_t width = n / slices;
      bool all = true;
      for (std::int64_t s = 0; s < slices; ++s) all = all && nodes.contains({s * width, (s + 1) * width});
      ASSERT_EQ(slices_are_nodes(512 * n, slices), all || slices == 1) << n << " in " << slices;
      legal += all ? 1 : 0;
      bool same = true;
      for (int round = 0; round < 200 && same; ++round) {
        BalancedSum whole;
        BalancedSum of_slices;
        for (std::int64_t s = 0; s < slices; ++s) {
          BalancedSum slice;
          for (std::int64_t i = 0; i < width; ++i) {
            const auto term = static_cast<float>(static_cast<std::int32_t>(random()));
            whole.add(term);
            slice.add(term);
          }
          of_slices.add(slice.sum());
        }
        same = whole.sum() == of_slices.sum();
      }
      EXPECT_EQ(same, all) << n << " in " << slices;
    }
  }
  EXPECT_GT(legal, 200);
}

TEST(SegmentTree, LegalSlicesOfTheWidthsThatModelsHave) {
  const auto legal = [](std::int64_t values) {
    std::vector<std::int64_t> out;
    for (std::int64_t slices = 1; slices <= 64; ++slices)
      if (slices_are_nodes(values, slices)) out.push_back(slices);
    return out;
  };
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(legal(4096), (List{1, 2, 4, 8}));
  EXPECT_EQ(legal(2048), (List{1, 2, 4}));
  EXPECT_EQ(legal(3072), (List{1, 3, 6}));
  EXPECT_EQ(legal(1536), (List{1, 3}));
  EXPECT_EQ(legal(512), (List{1}));
  EXPECT_EQ(legal(768), (List{1}));  // slices end inside a segment
  EXPECT_FALSE(slices_are_nodes(4096, 0));
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
