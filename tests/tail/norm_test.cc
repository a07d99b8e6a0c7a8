// The per-route norm: bits against a plain statement of the same formulas, values against f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/tail/tail.h"
#include "tests/tail/plain.h"

namespace kerf::tail {
namespace {

using test::bf16;
using test::f32;

constexpr std::array<std::size_t, 9> kWidths = {1, 16, 64, 255, 256, 257, 320, 2816, 4096};
constexpr double kHalfUlp = 0x1p-24;  // relative error of one f32 rounding

std::vector<std::uint16_t> random_row(std::size_t hidden, int exponent, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> row(hidden);
  for (auto& v : row)
    v = bf16(std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), exponent - 31));
  return row;
}

// Magnitudes spread over the whole range below 2^exponent, with zeros of both signs.
std::vector<std::uint16_t> wide_row(std::size_t hidden, int exponent, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint16_t> row(hidden);
  for (auto& v : row) {
    const float m = 1.0F + static_cast<float>(random() % 128) / 128.0F;
    v = bf16(std::ldexp(random() % 2 == 0 ? m : -m, exponent - 1 - static_cast<int>(random() % 200)));
    if (random() % 16 == 0) v = random() % 2 == 0 ? 0x0000 : 0x8000;
  }
  return row;
}

std::vector<RouteNorm> norms(std::size_t hidden) {
  std::vector<RouteNorm> all;
  const auto gain = effective_gain(random_row(hidden, -1, 77), 1.0F);
  for (const float eps : {1e-8F, 1e-5F}) {
    all.push_back({{}, true, eps});
    all.push_back({{}, false, eps});
    all.push_back({gain, true, eps});
    all.push_back({gain, false, eps});
  }
  return all;
}

void expect_plain_bits(const std::vector<std::uint16_t>& row, const RouteNorm& norm) {
  std::vector<float> got(row.size());
  norm_row(row, norm, got);
  const auto want = test::plain_norm(row, norm);
  for (std::size_t h = 0; h < row.size(); ++h) {
    if (std::isnan(want[h])) {
      ASSERT_TRUE(std::isnan(got[h])) << h;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[h]), std::bit_cast<std::uint32_t>(want[h]))
          << "h " << h << " of " << row.size() << ", row " << f32(row[h]) << ", eps " << norm.eps;
    }
  }
}

TEST(NormRow, HasTheBitsOfThePlainFormulas) {
  unsigned seed = 0;
  for (const std::size_t hidden : kWidths)
    for (const RouteNorm& norm : norms(hidden))
      for (const int exponent : {-130, -126, -100, -60, -59, -13, -1, 0, 1, 7, 60, 100, 126, 127}) {
        expect_plain_bits(random_row(hidden, exponent, ++seed), norm);
        expect_plain_bits(wide_row(hidden, exponent, ++seed), norm);
      }
}

TEST(NormRow, EveryMagnitudeBesideALargeOne) {
  // All 2^15 magnitudes, alone and in rows that end in 1.0: squares on both sides of where f32 holds them
  // exactly. Without eps a row of tiny values shows every bit of their sum.
  for (std::uint32_t first = 0; first < 0x7F80; first += 64) {
    std::vector<std::uint16_t> row(512, 0);
    for (std::uint32_t i = 0; i < 64; ++i) {
      row[i] = static_cast<std::uint16_t>(first + i);
      row[256 + i] = static_cast<std::uint16_t>(0x8000 + first + (i * 7) % 64);
    }
    for (const float eps : {1e-8F, 0.0F}) {
      row[511] = 0;
      expect_plain_bits(row, {{}, true, eps});
      row[511] = 0x3F80;
      expect_plain_bits(row, {{}, true, eps});
    }
  }
}

TEST(NormRow, TinyRowsWithoutEps) {
  for (unsigned seed = 0; seed < 400; ++seed)
    expect_plain_bits(random_row(700, -140 + static_cast<int>(seed) % 20, seed), {{}, true, 0.0F});
}

// Values of at most 8 significant bits whose squares add up, in order and without rounding, to n *
// 2^exponent.
std::vector<float> roots(std::uint64_t n, int exponent) {
  if (exponent % 2 != 0) {
    n *= 2;
    --exponent;
  }
  std::vector<float> out;
  while (n > 0) {
    auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
    int cut = 0;
    while ((root >> cut) > 255) ++cut;
    root = root >> cut << cut;
    out.push_back(std::ldexp(static_cast<float>(root), exponent / 2));
    n -= root * root;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

TEST(NormRow, SquaresThatOnlyAFusedChainKeeps) {
  // Chain 0 ends with half of f32's least value: fused, that breaks a tie upwards; a square rounded on its
  // own is lost. Each sum of the halving then meets a chain which makes the last bit of what came before
  // decide a tie again, up to a last bit of the whole sum, from 2^-149 to 1.
  constexpr std::uint64_t kFull = (1U << 24) - 1;
  std::vector<std::vector<float>> chains(256);
  chains[0] = roots((1U << 23) - 1, -148);
  chains[0].push_back(0x3p-76F);  // 1.125 * 2^-149: rounds to 2^-149 either way
  chains[0].push_back(0x1p-75F);  // 0.5 * 2^-149, added to an odd sum
  chains[128] = roots(kFull, -124);
  chains[64] = roots(kFull, -99);
  chains[32] = roots(kFull, -74);
  chains[16] = roots((1U << 24) - (1U << 12) - 1, -49);
  chains[8] = roots((1U << 24) - (1U << 12) - (1U << 11), -36);
  std::size_t longest = 0;
  for (const auto& chain : chains) longest = std::max(longest, chain.size());

  int told_apart = 0;  // by a normed value, not only by the sum
  for (const float top : {1.0F, 1.125F, 1.25F, 1.375F}) {
    chains[4] = {top};
    std::vector<std::uint16_t> row(256 * longest, 0);
    for (std::size_t m = 0; m < chains.size(); ++m)
      for (std::size_t i = 0; i < chains[m].size(); ++i) row[256 * i + m] = bf16(chains[m][i]);
    std::vector<float> values;
    for (const std::uint16_t v : row) values.push_back(f32(v));
    std::vector<float> p(256, 0.0F);  // what separate roundings give
    for (std::size_t h = 0; h < values.size(); ++h) {
      const volatile float square = values[h] * values[h];
      p[h % 256] += square;
    }
    for (std::size_t width = 128; width > 0; width /= 2)
      for (std::size_t m = 0; m < width; ++m) p[m] += p[m + width];
    EXPECT_NE(p[0], test::plain_square_sum(values)) << "the row was built to tell them apart";
    const RouteNorm norm{{}, true, 0.0F};
    expect_plain_bits(row, norm);
    const float inv = 1.0F / std::sqrt(p[0] / static_cast<float>(row.size()));
    if (top * inv != test::plain_norm(row, norm)[4]) ++told_apart;
  }
  EXPECT_GT(told_apart, 0);
}

// Relative error of a finished value before it is rounded to bf16, from the formulas. With n = ceil(H / 256)
// terms a chain, and positive terms only: a chain adds n roundings, the halving 8, / H, + eps 2 more; the
// square root halves what came before and adds one, the reciprocal one, the product one, a last gain one. The
// eps term's own scalings are exact wherever it matters.
double derived_bound(std::size_t hidden) {
  const double inside = std::ceil(static_cast<double>(hidden) / 256) + 8 + 2;
  return (inside / 2 + 4) * kHalfUlp * 1.001;  // 1.001: products of the errors
}

double worst_error(const std::vector<std::uint16_t>& row, const RouteNorm& norm) {
  std::vector<float> got(row.size());
  norm_row(row, norm, got);
  std::vector<double> t;
  double sum = 0;
  for (std::size_t h = 0; h < row.size(); ++h) {
    t.push_back(f32(row[h]));
    if (norm.gain_before_norm && !norm.gain.empty()) t.back() = f32(bf16(f32(row[h]) * f32(norm.gain[h])));
    sum += t.back() * t.back();
  }
  const double inv = 1 / std::sqrt(sum / static_cast<double>(row.size()) + static_cast<double>(norm.eps));
  double worst = 0;
  for (std::size_t h = 0; h < row.size(); ++h) {
    double want = t[h] * inv;
    if (!norm.gain_before_norm && !norm.gain.empty()) want *= static_cast<double>(f32(norm.gain[h]));
    // Where a value (scaled, or finished) is subnormal in f32 it has an absolute error instead: 2^-150 of the
    // scaled value, times at most sqrt(H) * 2, and 2^-150 of the result; gains are below 2.
    const double absolute = 0x1p-150 * (4 * std::sqrt(static_cast<double>(row.size())) + 2);
    const double error = std::abs(static_cast<double>(got[h]) - want);
    if (error > absolute) worst = std::max(worst, error / std::abs(want));
  }
  return worst;
}

TEST(NormRow, IsCloseToFloat64) {
  unsigned seed = 1000;
  double most = 0;
  for (const std::size_t hidden : kWidths)
    for (const RouteNorm& norm : norms(hidden))
      for (const float magnitude :
           {1e-38F, 1e-35F, 1e-25F, 1e-18F, 1e-9F, 1e-4F, 1e-2F, 1.0F, 300.0F, 1e9F, 1e19F, 1e30F, 1.4e38F}) {
        const int exponent = std::ilogb(magnitude) + 1;
        const double worst = worst_error(random_row(hidden, exponent, ++seed), norm);
        EXPECT_LE(worst, derived_bound(hidden)) << "H " << hidden << ", magnitude " << magnitude;
        most = std::max(most, worst);
      }
  // What these rows really show: 1e-7 from the sum of squares, and the roundings of the root, the reciprocal,
  // the product and the gain.
  EXPECT_LE(most, 1e-7 + 4 * kHalfUlp);
}

TEST(NormRow, RowsOfEqualValues) {
  // A row of +-v normed without gain is +-1 where eps does not matter.
  for (const float v : {3e38F, 1.0F, 1e-3F, 1e20F}) {
    std::vector<std::uint16_t> row(1024, bf16(v));
    for (std::size_t h = 0; h < row.size(); h += 3) row[h] = bf16(-v);
    std::vector<float> got(row.size());
    norm_row(row, {{}, true, v < 0.1F ? 0.0F : 1e-8F}, got);
    for (std::size_t h = 0; h < row.size(); ++h) ASSERT_NEAR(got[h], h % 3 == 0 ? -1.0F : 1.0F, 2e-7) << v;
  }
}

TEST(NormRow, AZeroRowStaysZero) {
  for (const float eps : {1e-8F, 1e-5F})
    for (const bool before : {true, false}) {
      const std::vector<std::uint16_t> row = {0x0000, 0x8000, 0x0000, 0x8000};
      std::vector<float> got(4, 7.0F);
      norm_row(row, {{0x3F80, 0x3F80, 0x4000, 0x4000}, before, eps}, got);
      for (std::size_t h = 0; h < 4; ++h)
        EXPECT_EQ(std::bit_cast<std::uint32_t>(got[h]), h % 2 == 0 ? 0U : 0x80000000U);
    }
}

TEST(NormRow, NanReachesTheWholeRow) {
  for (const std::size_t hidden : kWidths)
    for (const RouteNorm& norm : norms(hidden))
      for (const std::size_t at : {std::size_t{0}, hidden / 2, hidden - 1}) {
        auto row = random_row(hidden, 3, 5);
        row[at] = 0xFFC1;
        std::vector<float> got(hidden);
        norm_row(row, norm, got);
        EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float v) { return std::isnan(v); }));
        expect_plain_bits(row, norm);
      }
}

TEST(NormRow, InfinityFollowsTheFormulas) {
  auto row = random_row(300, 3, 5);
  row[17] = 0x7F80;
  for (const RouteNorm& norm : norms(300)) expect_plain_bits(row, norm);
  // A gain that overflows bf16 does the same.
  auto large = random_row(300, 127, 6);
  expect_plain_bits(large, {std::vector<std::uint16_t>(300, bf16(64)), true, 1e-8F});
}

TEST(NormRow, SizesMustAgree) {
  const std::vector<std::uint16_t> row(8, 0x3F80);
  std::vector<float> out(8);
  EXPECT_THROW(norm_row(row, {}, std::span(out).first(7)), Error);
  EXPECT_THROW(norm_row(row, {std::vector<std::uint16_t>(7), true, 1e-8F}, out), Error);
}

TEST(EffectiveGain, RoundsOnce) {
  const std::vector<std::uint16_t> w = {0x0000, 0x3F80, bf16(0.00390625F), bf16(-1.0F), 0x7FC1, bf16(0.01F)};
  EXPECT_EQ(effective_gain(w, 1.0F), (std::vector<std::uint16_t>{0x3F80, 0x4000, bf16(1.00390625F), 0x0000,
                                                                 0x7FC0, bf16(1.0F + f32(bf16(0.01F)))}));
  EXPECT_EQ(effective_gain(w, 0.0F)[1], 0x3F80);
}

}  // namespace
}  // namespace kerf::tail
