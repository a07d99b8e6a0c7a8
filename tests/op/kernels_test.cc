// The tables of the vector instruction sets, each against the scalar one, bit for bit: kernels alone, with
// values that whole experts seldom hold. BF16 dots have an order of their own, spelled out here.
#include "kerf/op/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "tests/support/experts.h"

namespace kerf::op::cpu {

void PrintTo(const Kernels* table, std::ostream* out) { *out << table->isa; }

namespace {

constexpr std::int64_t kWidths[] = {64, 128, 192, 256, 512, 576, 4096};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class EveryTable : public ::testing::TestWithParam<const Kernels*> {};

std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }

// The same bits; of NaN, that both are one (processors differ in which).
void expect_same(float got, float want, const std::string& where) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << where;
  } else {
    EXPECT_EQ(bits(got), bits(want)) << where << ": " << got << ", wanted " << want;
  }
}

std::uint8_t byte(test::Random& random) { return static_cast<std::uint8_t>(random.below(256)); }

// Block scales that kernels take: any but NaN, of the negative ones -0. Zeros and subnormals often.
std::uint8_t regular_scale(test::Random& random) {
  switch (random.below(8)) {
    case 0:
      return 0x00;
    case 1:
      return 0x80;
    case 2:
      return static_cast<std::uint8_t>(1 + random.below(7));
    default:
      return static_cast<std::uint8_t>(random.below(0x7F));
  }
}

struct Tile {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  [[nodiscard]] Nvfp4Tile view(std::int64_t k) const { return {codes.data(), scales.data(), k}; }
};
Tile random_tile(std::int64_t k, test::Random& random) {
  Tile tile{std::vector<std::uint8_t>(static_cast<std::size_t>(tile_rows * k / 2)),
            std::vector<std::uint8_t>(static_cast<std::size_t>(k / 64 * 512))};
  for (auto& code : tile.codes) code = byte(random);
  for (auto& scale : tile.scales) scale = regular_scale(random);
  return tile;
}

// Rows of one kind of chunk, in one table's order of blocks.
template <typename X>
struct Rows {
  std::vector<std::vector<X>> chunks;
  std::vector<const X*> pointers;
};
template <typename X, typename Expand>
Rows<X> rows_of(std::int64_t k, Expand expand_row) {
  Rows<X> out;
  out.chunks.assign(most_rows_a_pass, std::vector<X>(static_cast<std::size_t>(chunks_of(k))));
  for (std::size_t t = 0; t < most_rows_a_pass; ++t) {
    expand_row(t, out.chunks[t].data());
    out.pointers.push_back(out.chunks[t].data());
  }
  return out;
}

// Dots of 1 to 8 rows in one table and in the other.
template <typename X, typename RowsFor, typename Dots>
void compare_dots(const Kernels& table, const Tile& tile, std::int64_t k, RowsFor rows_for, Dots dots) {
  const Rows<X> want_rows = rows_for(scalar_kernels().order);
  const Rows<X> got_rows = rows_for(table.order);
  std::vector<float> want(most_rows_a_pass * tile_rows);
  dots(scalar_kernels(), tile.view(k), want_rows.pointers.data(), most_rows_a_pass, want.data());
  for (int count = 1; count <= most_rows_a_pass; ++count) {
    std::vector<float> got(want.size(), -1.0F);
    dots(table, tile.view(k), got_rows.pointers.data(), count, got.data());
    for (int i = 0; i < count * tile_rows; ++i)
      expect_same(
          got[static_cast<std::size_t>(i)], want[static_cast<std::size_t>(i)],
          "K " + std::to_string(k) + ", " + std::to_string(count) + " rows, dot " + std::to_string(i));
  }
}

TEST_P(EveryTable, DotsOfQuantisedRowsHaveTheScalarBits) {
  test::Random random(1);
  for (const std::int64_t k : kWidths) {
    const Tile tile = random_tile(k, random);
    std::vector<std::vector<std::uint8_t>> codes(most_rows_a_pass);
    std::vector<std::vector<std::uint8_t>> scales(most_rows_a_pass);
    for (std::size_t t = 0; t < most_rows_a_pass; ++t) {
      for (std::int64_t i = 0; i < k / 2; ++i) codes[t].push_back(byte(random));
      for (std::int64_t i = 0; i < k / 16; ++i) scales[t].push_back(regular_scale(random));
    }
    scales[3][1] = 0x7F;  // NaN
    scales[5][0] = 0xB8;  // -1
    compare_dots<Chunk>(
        *GetParam(), tile, k,
        [&](const BlockOrder& order) {
          return rows_of<Chunk>(k, [&](std::size_t t, Chunk* out) {
            expand(codes[t].data(), scales[t].data(), k, order, out);
          });
        },
        [](const Kernels& table, const Nvfp4Tile& at, const Chunk* const* rows, int count, float* dots) {
          table.dots_nvfp4(at, at, rows, count, dots);
        });
  }
}

// Chunk by chunk in every byte, NaN scales and those below zero included.
TEST_P(EveryTable, ExpandsQuantisedRowsToTheBytesOfTheDefinition) {
  test::Random random(8);
  for (const std::int64_t k : kWidths) {
    std::vector<std::uint8_t> codes, scales;
    for (std::int64_t i = 0; i < k / 2; ++i) codes.push_back(byte(random));
    for (std::int64_t i = 0; i < k / 16; ++i) scales.push_back(byte(random));
    scales[0] = 0x7F;
    scales[1] = 0xFF;
    std::vector<Chunk> want(static_cast<std::size_t>(chunks_of(k)));
    std::vector<Chunk> got(want.size());
    std::memset(static_cast<void*>(got.data()), 0xAB, got.size() * sizeof(Chunk));
    expand(codes.data(), scales.data(), k, GetParam()->order, want.data());
    GetParam()->expand(codes.data(), scales.data(), k, got.data());
    EXPECT_EQ(std::memcmp(want.data(), got.data(), got.size() * sizeof(Chunk)), 0) << "K " << k;
  }
}

using Bf16Rows = std::vector<std::vector<std::uint16_t>>;  // [8, K]

void compare_wide(const Kernels& table, const Tile& tile, std::int64_t k, const Bf16Rows& x) {
  compare_dots<WideChunk>(
      table, tile, k,
      [&](const BlockOrder& order) {
        return rows_of<WideChunk>(k,
                                  [&](std::size_t t, WideChunk* out) { expand(x[t].data(), k, order, out); });
      },
      [](const Kernels& with, const Nvfp4Tile& at, const WideChunk* const* rows, int count, float* dots) {
        with.dots_wide(at, at, rows, count, dots);
      });
}

TEST_P(EveryTable, DotsOfBf16RowsHaveTheScalarBits) {
  test::Random random(2);
  for (const std::int64_t k : kWidths) {
    const Tile tile = random_tile(k, random);
    Bf16Rows x(most_rows_a_pass);
    for (auto& row : x)
      for (std::int64_t i = 0; i < k; ++i) row.push_back(numeric::f32_to_bf16(random.normal()));
    x[1].assign(x[1].size(), 0x3FFF);  // just below 2: high bytes of 127
    x[2].assign(x[2].size(), 0xBFFF);
    x[3][5] = numeric::f32_to_bf16(kInfinity);
    x[4][6] = numeric::f32_to_bf16(kNan);
    x[5][7] = 0x0001;  // subnormal
    x[6].assign(x[6].size(), 0x8000);
    compare_wide(*GetParam(), tile, k, x);
  }
}

// Block dots of 21 bits with scales of 4: where an fma and two roundings differ.
TEST_P(EveryTable, BlockDotsOfBf16RowsRoundOnce) {
  test::Random random(6);
  constexpr std::int64_t k = 512;
  Tile tile = random_tile(k, random);
  for (auto& code : tile.codes) code = static_cast<std::uint8_t>(7 | random.below(8) << 4);
  Bf16Rows x(most_rows_a_pass);
  for (auto& row : x) {
    for (std::int64_t i = 0; i < k; i += 2) {
      row.push_back(static_cast<std::uint16_t>(0x3F80 + random.below(128)));  // 1 to 2
      row.push_back(numeric::f32_to_bf16(random.normal() * 0x1p-8F));
    }
  }
  compare_wide(*GetParam(), tile, k, x);
}

// The largest sums that bytes can have: all weights 6 or -6, all bytes of x at their ends.
TEST_P(EveryTable, TheLargestBlockDotsFit) {
  constexpr std::int64_t k = 128;
  for (const int weight : {0x77, 0xFF}) {
    Tile tile{std::vector<std::uint8_t>(tile_rows * k / 2, static_cast<std::uint8_t>(weight)),
              std::vector<std::uint8_t>(k / 64 * 512, 0x7E)};
    for (const int low : {-128, 127}) {
      for (const int high : {-127, 127}) {
        const auto rows_for = [&](const BlockOrder&) {
          return rows_of<WideChunk>(k, [&](std::size_t, WideChunk* out) {
            for (auto& run : out->high) run.fill(static_cast<std::int8_t>(high));
            for (auto& run : out->low) run.fill(static_cast<std::int8_t>(low));
            out->bias.fill(-12 * 16 * (256 * high + low));
            out->scale.fill(1.0F);
          });
        };
        compare_dots<WideChunk>(*GetParam(), tile, k, rows_for,
                                [](const Kernels& table, const Nvfp4Tile& at, const WideChunk* const* rows,
                                   int count, float* dots) { table.dots_wide(at, at, rows, count, dots); });
      }
    }
  }
}

// Lane l of sixteen takes values 2l and 2l + 1 of every 32; the lanes are added by halves.
float bf16_dot(const std::uint16_t* tile, std::int64_t stride, std::int64_t k, std::int64_t row,
               const std::vector<float>& x) {
  std::array<float, 16> lanes{};
  for (std::int64_t i = 0; i < k; ++i) {
    float& lane = lanes[static_cast<std::size_t>(i % 32 / 2)];
    lane = std::fma(numeric::bf16_to_f32(tile[i / 64 * stride + row * 64 + i % 64]),
                    x[static_cast<std::size_t>(bf16_place(i))], lane);
  }
  for (std::size_t n = 8; n > 0; n /= 2)
    for (std::size_t i = 0; i < n; ++i) lanes[i] += lanes[i + n];
  return lanes[0];
}

TEST_P(EveryTable, Bf16DotsAddInTheirOrder) {
  test::Random random(3);
  for (const std::int64_t k : kWidths) {
    const std::int64_t stride = tile_rows * 64 + 128;
    std::vector<std::uint16_t> values(static_cast<std::size_t>(k / 64 * stride));
    for (auto& v : values) v = numeric::f32_to_bf16(random.normal());
    std::vector<std::vector<float>> x(most_rows_a_pass);
    std::vector<const float*> rows;
    for (auto& row : x) {
      for (std::int64_t i = 0; i < k; ++i) row.push_back(numeric::round_to_bf16(random.normal()));
      rows.push_back(row.data());
    }
    const Bf16Tile tile{values.data(), stride, k};
    for (int count = 1; count <= most_rows_a_pass; ++count) {
      std::vector<float> got(most_rows_a_pass * tile_rows);
      GetParam()->dots_bf16(tile, tile, rows.data(), count, got.data());
      for (std::int64_t t = 0; t < count; ++t)
        for (std::int64_t r = 0; r < tile_rows; ++r)
          expect_same(got[static_cast<std::size_t>(t * tile_rows + r)],
                      bf16_dot(values.data(), stride, k, r, x[static_cast<std::size_t>(t)]),
                      "K " + std::to_string(k) + ", row " + std::to_string(r));
    }
  }
}

// Tiles of dots from quiet ones to ones that overflow, each with some values that are not finite, or zero.
std::vector<std::vector<float>> tiles_of_dots(test::Random& random) {
  std::vector<std::vector<float>> out;
  for (const float size : {0x1p-140F, 0x1p-20F, 0.1F, 1.0F, 30.0F, 1e4F, 0x1p120F}) {
    for (int odd = 0; odd < 4; ++odd) {
      std::vector<float> dots(tile_rows);
      for (float& v : dots) v = random.normal() * size;
      for (const float v : {kNan, kInfinity, -kInfinity, 0.0F, -0.0F})
        for (int n = 0; n < odd; ++n) dots[random.below(tile_rows)] = v;
      out.push_back(std::move(dots));
    }
  }
  out.emplace_back(tile_rows, 0.0F);
  out.emplace_back(tile_rows, -0.0F);
  out.emplace_back(tile_rows, kNan);
  return out;
}
std::vector<internal::ExpertScalars> kinds_of_scalars() {
  internal::ExpertScalars clamped{0.5F, 3.0F, 1.0F, 1.702F, 1.0F, 7.0F, 7.0F};
  internal::ExpertScalars small{1e-3F, -1e-2F, 1.0F, 1.0F, 0.0F, kInfinity, kInfinity};
  return {{}, clamped, small};
}

TEST_P(EveryTable, RequantisesToTheScalarBits) {
  test::Random random(4);
  for (const auto& scalars : kinds_of_scalars()) {
    for (const auto& dots : tiles_of_dots(random)) {
      Chunk want;
      Chunk got;
      for (const int half : {0, 1}) {
        scalar_kernels().requantise(dots.data(), scalars, half, want);
        GetParam()->requantise(dots.data(), scalars, half, got);
      }
      for (std::size_t b = 0; b < 8; ++b) {
        const std::size_t from = scalar_kernels().order[b];
        const std::size_t to = GetParam()->order[b];
        expect_same(got.scale[to], want.scale[from], "scale of block " + std::to_string(b));
        EXPECT_EQ(got.bias[to], want.bias[from]) << b;
        for (std::size_t j = 0; j < 8; ++j) {
          for (const bool odd : {false, true}) {
            const Spot w = spot(from, j, odd);
            const Spot g = spot(to, j, odd);
            EXPECT_EQ(got.x[g.run][g.byte], want.x[w.run][w.byte]) << b << ", " << j << ", " << odd;
          }
        }
      }
    }
  }
}

TEST_P(EveryTable, ActivatesToTheScalarBits) {
  test::Random random(5);
  for (const auto& scalars : kinds_of_scalars()) {
    for (const auto& dots : tiles_of_dots(random)) {
      std::array<float, 64> want{};
      std::array<float, 64> got{};
      scalar_kernels().activate(dots.data(), scalars, want.data());
      GetParam()->activate(dots.data(), scalars, got.data());
      for (std::size_t i = 0; i < want.size(); ++i) expect_same(got[i], want[i], std::to_string(i));
    }
  }
}

std::vector<const Kernels*> tables() { return {vector_kernels().begin(), vector_kernels().end()}; }

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryTable);  // a CPU may have none of the instruction sets
INSTANTIATE_TEST_SUITE_P(Listed, EveryTable, ::testing::ValuesIn(tables()),
                         [](const auto& listed) { return std::string(listed.param->isa); });

}  // namespace
}  // namespace kerf::op::cpu
