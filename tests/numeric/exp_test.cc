// E(x) against f64, over every 61st f32 in its range and all the edges.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kerf/numeric/exp.h"

namespace kerf::numeric {
namespace {

double ulps(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent, -125) - 24);  // 2^-149 below the normal range
  return std::abs(static_cast<double>(got) - want) / step;
}

TEST(Exp, IsWithinTwoUlp) {
  double worst = 0;
  const auto check = [&](float x) {
    const double want = std::exp(static_cast<double>(x));
    if (want > std::numeric_limits<float>::max()) return;
    worst = std::max(worst, ulps(exp_f32(x), want));
  };
  for (std::uint32_t bits = 0; bits < 0x42B20000U; bits += 61) check(std::bit_cast<float>(bits));
  for (std::uint32_t bits = 0x80000000U; bits < 0xC2D00000U; bits += 61) check(std::bit_cast<float>(bits));
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Exp, SaturatesCleanly) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(inf), inf);
  EXPECT_EQ(exp_f32(89.0F), inf);
  EXPECT_EQ(exp_f32(-inf), 0.0F);
  EXPECT_EQ(exp_f32(-104.0F), 0.0F);
  EXPECT_GT(exp_f32(-103.0F), 0.0F);
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
  EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
  // The last finite result and the first infinite one are neighbours.
  const float top = exp_constants::highest;
  EXPECT_TRUE(std::isfinite(exp_f32(top)));
  EXPECT_EQ(exp_f32(std::nextafter(top, inf)), inf);
}

TEST(Exp, SigmoidHasItsLimits) {
  EXPECT_EQ(sigmoid_f32(0.0F), 0.5F);
  EXPECT_EQ(sigmoid_f32(200.0F), 1.0F);
  EXPECT_EQ(sigmoid_f32(-200.0F), 0.0F);
  for (float x = -30; x < 30; x += 0.37F)
    EXPECT_NEAR(sigmoid_f32(x), 1 / (1 + std::exp(-static_cast<double>(x))), 4e-7 * sigmoid_f32(x) + 1e-30)
        << x;
}

}  // namespace
}  // namespace kerf::numeric
