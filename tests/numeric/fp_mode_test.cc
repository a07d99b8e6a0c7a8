// Rows have the same bytes whatever floating point mode the caller runs in.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "tests/support/flushing.h"

namespace kerf::numeric {
namespace {

// Two blocks of subnormal f32 (and bf16) values, all multiples of 2^-133, the least bf16.
std::vector<float> subnormals() {
  std::vector<float> x(32);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 7 % 25) - 12) * 0x1p-131F;
  return x;
}

struct Rows {
  std::vector<std::uint8_t> codes = std::vector<std::uint8_t>(16);
  std::vector<std::uint8_t> scales = std::vector<std::uint8_t>(2);
  friend bool operator==(const Rows&, const Rows&) = default;
};

template <typename T>
Rows rows_of(const std::vector<T>& x) {
  Rows rows;
  quantise_rows(std::span<const T>(x), 32, 0x1p127F, rows.codes, rows.scales);
  return rows;
}

TEST(FpMode, RowsAreTheSameWhereTheCallerFlushes) {
  const std::vector<float> x = subnormals();
  std::vector<std::uint16_t> half;
  for (const float v : x) half.push_back(f32_to_bf16(v));
  const Rows wanted = rows_of(x);
  EXPECT_NE(wanted.scales[0], 0);
  EXPECT_NE(wanted.codes, std::vector<std::uint8_t>(16));
  EXPECT_EQ(rows_of(half), wanted);
  Rows got, got_half;
  bool flushed = false;
  {
    const test::Flushing mode;
    got = rows_of(x);
    got_half = rows_of(half);
    flushed = test::Flushing::now();
  }
  EXPECT_TRUE(flushed) << "the caller's mode is put back";
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(got_half, wanted);
}

TEST(FpMode, ValuesAreTheSameWhereTheCallerFlushes) {
  const Rows rows = rows_of(subnormals());
  std::vector<float> wanted(32);
  dequantise_rows(rows.codes, rows.scales, 32, 0x1p-127F, wanted);
  EXPECT_NE(wanted, std::vector<float>(32));
  std::vector<float> got(32);
  {
    const test::Flushing mode;
    dequantise_rows(rows.codes, rows.scales, 32, 0x1p-127F, got);
  }
  EXPECT_EQ(got, wanted);
}

}  // namespace
}  // namespace kerf::numeric
