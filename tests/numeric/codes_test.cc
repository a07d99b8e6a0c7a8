// The scalar truth of every format: all codes, and the golden conversions bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/f16.h"
#include "tests/support/npy.h"

namespace kerf::numeric {
namespace {

using test::golden;

static_assert(e2m1_to_f32(7) == 6.0F && f32_to_e2m1(-5.0F) == 0xE && f32_to_e2m1(5.1F) == 7);
static_assert(e4m3_to_f32(0x7E) == 448.0F && f32_to_e4m3(1.0F) == 0x38);
static_assert(f32_to_bf16(1.0F) == 0x3F80);

TEST(E2m1, ValuesAreGolden) {
  const auto want = golden<float>("e2m1_values");
  for (int c = 0; c < 16; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(e2m1_to_f32(code)), std::bit_cast<std::uint32_t>(want[c])) << c;
    EXPECT_EQ(e2m1_doubled[code], 2 * want[c]) << c;
    EXPECT_EQ(f32_to_e2m1(want[c]), code) << c;
  }
}

TEST(E2m1, RoundsAsGolden) {
  const auto x = golden<float>("e2m1_round_x");
  const auto want = golden<std::uint8_t>("e2m1_round_code");
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(f32_to_e2m1(x[i]), want[i]) << x[i];
}

// The nearest code by exhaustive search in f64, ties to even: an independent statement of the same rule.
TEST(E2m1, RoundsToTheNearestCode) {
  for (int i = 0; i <= 7 * 1024; ++i) {
    const double v = i / 1024.0;
    int best = 0;
    for (int c = 1; c < 8; ++c) {
      const double was = std::abs(v - e2m1_to_f32(static_cast<std::uint8_t>(best)));
      const double now = std::abs(v - e2m1_to_f32(static_cast<std::uint8_t>(c)));
      if (now < was || (now == was && c % 2 == 0)) best = c;
    }
    EXPECT_EQ(f32_to_e2m1(static_cast<float>(v)), best) << v;
    EXPECT_EQ(f32_to_e2m1(static_cast<float>(-v)), best | 8) << v;
  }
  EXPECT_EQ(f32_to_e2m1(std::numeric_limits<float>::infinity()), 7);
  EXPECT_EQ(f32_to_e2m1(-std::numeric_limits<float>::infinity()), 15);
  EXPECT_EQ(f32_to_e2m1(std::numeric_limits<float>::quiet_NaN()), 7);
  EXPECT_EQ(f32_to_e2m1(-std::numeric_limits<float>::quiet_NaN()), 7);
}

TEST(E4m3, ValuesAreGolden) {
  const auto want = golden<double>("e4m3_values");
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<std::uint8_t>(c);
    const double got = e4m3_to_f32(code);
    if (std::isnan(want[c])) {
      EXPECT_TRUE(std::isnan(got)) << c;
      continue;
    }
    EXPECT_EQ(got, want[c]) << c;
    EXPECT_EQ(std::signbit(got), std::signbit(want[c])) << c;
    EXPECT_EQ(f32_to_e4m3(static_cast<float>(got)), code) << c;
  }
}

TEST(E4m3, RoundsAsGolden) {
  const auto x = golden<float>("e4m3_round_x");
  const auto want = golden<std::uint8_t>("e4m3_round_code");
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(f32_to_e4m3(x[i]), want[i]) << x[i];
    const int negative = x[i] == x[i] ? want[i] | 0x80 : 0x7F;
    EXPECT_EQ(f32_to_e4m3(-x[i]), negative) << x[i];
  }
}

TEST(E4m3, EveryMidpointGoesToTheEvenCode) {
  for (int c = 0; c < 0x7E; ++c) {
    const float low = e4m3_to_f32(static_cast<std::uint8_t>(c));
    const float high = e4m3_to_f32(static_cast<std::uint8_t>(c + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(f32_to_e4m3(middle), c % 2 == 0 ? c : c + 1) << c;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 0.0F)), c) << c;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 500.0F)), c + 1) << c;
  }
  EXPECT_EQ(f32_to_e4m3(1e30F), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7F);
}

TEST(Bf16, EveryCodeSurvives) {
  for (std::uint32_t c = 0; c < 65536; ++c) {
    const auto code = static_cast<std::uint16_t>(c);
    const float value = bf16_to_f32(code);
    EXPECT_EQ(f32_to_bf16(value), value != value ? bf16_nan : code) << c;
  }
}

TEST(Bf16, RoundsToNearestEven) {
  for (std::uint32_t c = 0; c < 0x7F80; ++c) {
    const std::uint32_t base = c << 16;
    const auto at = [&](std::uint32_t low) { return f32_to_bf16(std::bit_cast<float>(base | low)); };
    EXPECT_EQ(at(0x7FFF), c);
    EXPECT_EQ(at(0x8000), c % 2 == 0 ? c : c + 1);
    EXPECT_EQ(at(0x8001), c + 1);
  }
}

TEST(F16, KnownValues) {
  EXPECT_EQ(f16_to_f32(0x3C00), 1.0F);
  EXPECT_EQ(f16_to_f32(0xC000), -2.0F);
  EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0F);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24F);
  EXPECT_EQ(f16_to_f32(0x03FF), 1023 * 0x1p-24F);
  EXPECT_EQ(f16_to_f32(0x0400), 0x1p-14F);
  EXPECT_TRUE(std::signbit(f16_to_f32(0x8000)));
  EXPECT_TRUE(std::isinf(f16_to_f32(0x7C00)));
  EXPECT_TRUE(std::isnan(f16_to_f32(0x7E00)));
}

}  // namespace
}  // namespace kerf::numeric
