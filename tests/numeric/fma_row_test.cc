// The fused row sum, against std::fma for any length and for values where two roundings would show.
#include "kerf/numeric/fma_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kerf/numeric/splitmix.h"

namespace kerf::numeric {
namespace {

TEST(FmaRow, IsOneRoundingEach) {
  const SplitMix random(5);
  int fused_only = 0;
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<float> row(n);
    std::vector<float> sum(n);
    for (std::size_t i = 0; i < n; ++i) {
      row[i] = 1.0F + static_cast<float>(random[2 * (70 * n + i)] % 8388608) * 0x1p-23F;
      // Near minus the product, so that what a first rounding drops is what is left.
      sum[i] = -1.25F * row[i] + static_cast<float>(random[2 * (70 * n + i) + 1] % 3) * 0x1p-30F;
    }
    const float factor = 1.25F + 0x1p-23F;
    std::vector<float> want(n);
    for (std::size_t i = 0; i < n; ++i) {
      want[i] = std::fma(factor, row[i], sum[i]);
      const volatile float product = factor * row[i];
      fused_only += product + sum[i] != want[i] ? 1 : 0;
    }
    fma_row(factor, row, sum);
    EXPECT_EQ(sum, want) << n;
  }
  EXPECT_GT(fused_only, 1000);  // the values tell
}

TEST(FmaRow, KeepsNanAndInfinity) {
  std::vector<float> row(20, std::numeric_limits<float>::infinity());
  std::vector<float> sum(20, 1.0F);
  fma_row(0.5F, row, sum);
  for (const float v : sum) EXPECT_EQ(v, std::numeric_limits<float>::infinity());
  fma_row(-1.0F, row, sum);
  for (const float v : sum) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace kerf::numeric
