// The vector sum over ranks has the bits of the definition: any number of ranks, any length, any values.
#include "kerf/numeric/rank_sum_row.h"

#include <gtest/gtest.h>

#include <vector>

#include "kerf/numeric/rank_sum.h"
#include "kerf/numeric/splitmix.h"

namespace kerf::numeric {
namespace {

TEST(RankSumRow, HasTheBitsOfTheDefinition) {
  const numeric::SplitMix random(3);
  std::uint64_t drawn = 0;
  for (const int ranks : {1, 2, 3, 8, 16, 17, 40})
    for (const std::size_t n : {0, 1, 7, 15, 16, 17, 33, 1000}) {
      constexpr std::size_t first = 5;
      std::vector<std::vector<std::uint16_t>> rows(static_cast<std::size_t>(ranks));
      std::vector<const std::uint16_t*> terms;
      for (auto& row : rows) {
        for (std::size_t i = 0; i < first + n; ++i) {
          const std::uint64_t r = random[drawn++];
          // Any bit pattern now and then: NaN, infinities, subnormals; else values that round often.
          const bool any = r % 64 == 0;
          row.push_back(static_cast<std::uint16_t>(any ? r >> 8 : 0x3F00 + (r >> 8) % 0x100 + (r & 0x8000)));
        }
        terms.push_back(row.data());
      }
      std::vector<std::uint16_t> sum(n + 1, 0xABCD);
      rank_sum_row(terms, first, std::span(sum).first(n));
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(sum[i],
                  rank_sum_bf16(ranks, [&](int r) { return terms[static_cast<std::size_t>(r)][first + i]; }))
            << ranks << " ranks, value " << i << " of " << n;
      ASSERT_EQ(sum[n], 0xABCD);
    }
}

TEST(RankSumRow, OfNegativeZerosIsZero) {
  const std::vector<std::uint16_t> zeros(40, 0x8000);
  const std::vector<const std::uint16_t*> terms(3, zeros.data());
  std::vector<std::uint16_t> sum(40, 1);
  rank_sum_row(terms, 0, sum);
  EXPECT_EQ(sum, std::vector<std::uint16_t>(40, 0));
}

}  // namespace
}  // namespace kerf::numeric
