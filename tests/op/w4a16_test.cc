// bf16 rows against NVFP4 weights: how exact the 16-bit blocks are, that every instruction set has the same
// bits, and how far dots and rows are from f64.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/op/cpu/kernels.h"
#include "tests/support/experts.h"

namespace kerf::op::cpu {
namespace {

constexpr BlockOrder natural = {0, 1, 2, 3, 4, 5, 6, 7};

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> out = {&scalar_kernels()};
  for (const Kernels* k : vector_kernels()) out.push_back(k);
  return out;
}

// What a chunk says value k of its 128 is: with the factor of two and 2^-8 that weights bring, once more.
double value_of(const WideChunk& chunk, std::size_t k, std::size_t place) {
  const Spot s = spot(place, k % 16 / 2, k % 2 != 0);
  return (256.0 * chunk.high[s.run][s.byte] + chunk.low[s.run][s.byte]) * chunk.scale[place] * 0x1p-7;
}

TEST(WideChunk, KeepsWhatIsNotFarBelowTheBlocksLargest) {
  test::Random random(1);
  for (int round = 0; round < 200; ++round) {
    std::array<std::uint16_t, 128> x{};
    const int spread = 1 + round % 12;  // powers of two between the largest and the smallest, about
    for (std::uint16_t& v : x)
      v = numeric::f32_to_bf16(random.normal() * std::ldexp(1.0F, -static_cast<int>(random.below(
                                                                      static_cast<std::uint64_t>(spread)))));
    WideChunk chunk;
    expand(x.data(), 128, natural, &chunk);
    for (std::size_t b = 0; b < 8; ++b) {
      double largest = 0;
      std::int64_t sum = 0;
      for (std::size_t k = 16 * b; k < 16 * b + 16; ++k)
        largest = std::max(largest, std::abs(static_cast<double>(numeric::bf16_to_f32(x[k]))));
      for (std::size_t k = 16 * b; k < 16 * b + 16; ++k) {
        const double want = numeric::bf16_to_f32(x[k]);
        const double got = value_of(chunk, k, b);
        if (std::abs(want) * 64 >= largest)
          ASSERT_EQ(got, want) << "round " << round << " value " << k;
        else
          ASSERT_NEAR(got, want, 0x1.02p-15 * largest) << "round " << round << " value " << k;
        sum += std::llround(got / (chunk.scale[b] * 0x1p-7));
      }
      ASSERT_EQ(chunk.bias[b], -12 * sum);
    }
  }
}

TEST(WideChunk, TakesTheWholeRangeOfBf16) {
  const float highest = numeric::bf16_to_f32(0x7F7F);
  for (const float v : {highest, -highest, numeric::bf16_to_f32(0x3FFF), 0x1p-100F, -0x1p-99F, 0.0F}) {
    std::array<std::uint16_t, 128> x{};
    x[5] = numeric::f32_to_bf16(v);
    WideChunk chunk;
    expand(x.data(), 128, natural, &chunk);
    EXPECT_EQ(value_of(chunk, 5, 0), v);
    EXPECT_EQ(value_of(chunk, 4, 0), 0);
  }
  for (const float v : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::array<std::uint16_t, 128> x{};
    x[40] = numeric::f32_to_bf16(v);
    WideChunk chunk;
    expand(x.data(), 128, natural, &chunk);
    EXPECT_TRUE(std::isnan(chunk.scale[2]));
    EXPECT_EQ(chunk.scale[1], chunk.scale[0]);
  }
}

// A tile of any codes and positive scales, and rows of bf16.
struct Made {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  std::vector<std::vector<std::uint16_t>> rows;
  std::int64_t k;

  Made(std::int64_t k_in, double outlier, std::uint64_t seed)
      : codes(static_cast<std::size_t>(128 * k_in / 2)), scales(static_cast<std::size_t>(k_in * 8)), k(k_in) {
    test::Random random(seed);
    for (std::uint8_t& c : codes) c = static_cast<std::uint8_t>(random.next());
    for (std::uint8_t& s : scales) s = static_cast<std::uint8_t>(0x28 + random.below(0x20));
    for (int t = 0; t < most_rows_a_pass; ++t) {
      std::vector<std::uint16_t> row;
      for (std::int64_t i = 0; i < k; ++i)
        row.push_back(numeric::f32_to_bf16(random.normal() *
                                           static_cast<float>(random.below(100) == 0 ? outlier : 1.0)));
      rows.push_back(row);
    }
  }
  [[nodiscard]] Nvfp4Tile tile() const { return {codes.data(), scales.data(), k}; }
  [[nodiscard]] double exact(std::int64_t r, std::size_t t) const {
    double sum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      const std::uint8_t byte = codes[static_cast<std::size_t>(r * (k / 2) + i / 2)];
      const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15U : byte >> 4);
      sum += static_cast<double>(numeric::e2m1_to_f32(code)) *
             numeric::e4m3_to_f32(
                 scales[static_cast<std::size_t>(layout::scale_offset_128x4(r, i / 16, k / 16))]) *
             numeric::bf16_to_f32(rows[t][static_cast<std::size_t>(i)]);
    }
    return sum;
  }
  [[nodiscard]] std::vector<float> dots(const Kernels& table, int count) const {
    std::vector<std::vector<WideChunk>> expanded;
    std::array<const WideChunk*, most_rows_a_pass> x{};
    for (int t = 0; t < count; ++t) {
      expanded.emplace_back(static_cast<std::size_t>(chunks_of(k)));
      expand(rows[static_cast<std::size_t>(t)].data(), k, table.order, expanded.back().data());
    }
    for (int t = 0; t < count; ++t)
      x[static_cast<std::size_t>(t)] = expanded[static_cast<std::size_t>(t)].data();
    std::vector<float> out(static_cast<std::size_t>(count * tile_rows));
    table.dots_wide(tile(), tile(), x.data(), count, out.data());
    return out;
  }
};

TEST(WideDots, HaveTheSameBitsOnEveryInstructionSetForAnyCount) {
  for (const std::int64_t k : {64, 128, 192, 512, 576, 1024, 1600, 4096}) {
    const Made made(k, 50, static_cast<std::uint64_t>(k));
    const auto want = made.dots(scalar_kernels(), most_rows_a_pass);
    for (const Kernels* table : tables())
      for (int count = 1; count <= most_rows_a_pass; ++count) {
        const auto got = made.dots(*table, count);
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_EQ(got[i], want[i]) << table->isa << " K " << k << " count " << count << " at " << i;
      }
  }
}

// The relative L2 error of the dots, also where one value in a hundred is far larger than its block.
TEST(WideDots, AreNearF64) {
  for (const double outlier : {1.0, 30.0, 1000.0}) {
    const Made made(4096, outlier, 7);
    const auto got = made.dots(*tables().back(), 2);
    double error = 0;
    double norm = 0;
    for (std::size_t t = 0; t < 2; ++t)
      for (std::int64_t r = 0; r < tile_rows; ++r) {
        const double want = made.exact(r, t);
        const double d = got[t * tile_rows + static_cast<std::size_t>(r)] - want;
        error += d * d;
        norm += want * want;
      }
    EXPECT_LE(std::sqrt(error / norm), outlier > 1 ? 1e-4 : 1e-5) << "outliers of " << outlier;
  }
}

}  // namespace
}  // namespace kerf::op::cpu
