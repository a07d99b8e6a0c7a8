// The quantiser, all three recipes, against the golden vectors bit for bit.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/f16.h"
#include "kerf/numeric/nvfp4.h"
#include "tests/support/npy.h"

namespace kerf::numeric {
namespace {

using test::golden;

std::vector<float> input_of(const std::string& name, const std::string& dtype) {
  if (dtype == "fp32") return golden<float>("quant_" + name + "_x");
  std::vector<float> out;
  for (const std::uint16_t v : golden<std::uint16_t>("quant_" + name + "_x"))
    out.push_back(dtype == "bf16" ? bf16_to_f32(v) : f16_to_f32(v));
  return out;
}

struct Case {
  std::string name;
  std::string dtype;
  std::int64_t width = 0;
  float gs = 0;
  bool exact_same = false;
  bool vllm_same = false;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto manifest = nlohmann::json::parse(test::golden_manifest());
  for (const auto& c : manifest["meta"]["quantisation"]["cases"])
    out.push_back({c["name"], c["dtype"], c["shape"][1],
                   std::bit_cast<float>(c["global_scale_bits"].get<std::uint32_t>()), c["exact_same_as_fast"],
                   c["vllm_same_as_fast"]});
  return out;
}

void expect_golden(const Case& c, Quantiser recipe, const std::string& suffix) {
  const auto x = input_of(c.name, c.dtype);
  std::vector<std::uint8_t> codes(x.size() / 2);
  std::vector<std::uint8_t> scales(x.size() / 16);
  quantise_rows(x, c.width, c.gs, codes, scales, recipe);
  EXPECT_EQ(codes, golden<std::uint8_t>("quant_" + c.name + "_codes" + suffix)) << c.name << suffix;
  EXPECT_EQ(scales, golden<std::uint8_t>("quant_" + c.name + "_sf" + suffix)) << c.name << suffix;
}

TEST(Quantiser, FastIsGolden) {
  ASSERT_EQ(cases().size(), 9U);
  for (const Case& c : cases()) expect_golden(c, Quantiser::fast, "");
}

TEST(Quantiser, ExactIsGolden) {
  for (const Case& c : cases()) expect_golden(c, Quantiser::exact, c.exact_same ? "" : "_exact");
}

TEST(Quantiser, VllmIsGolden) {
  for (const Case& c : cases()) expect_golden(c, Quantiser::vllm, c.vllm_same ? "" : "_vllm");
}

TEST(Quantiser, TheDefaultWritesZerosWhereTheScaleUnderflows) {
  std::array<float, 16> x{};
  x[0] = 0x1p-10F;  // amax / 6 is far below half of 2^-9
  x[1] = -0x1p-11F;
  const Nvfp4Block block = quantise_block(x, 1.0F);
  EXPECT_EQ(block.scale, 0);
  EXPECT_EQ(block.codes[0], 0x80);                                     // +0 and -0
  EXPECT_EQ(quantise_block(x, 1.0F, Quantiser::fast).codes[0], 0xF7);  // the fast recipe saturates instead
}

TEST(Quantiser, NanStaysVisible) {
  std::array<float, 16> x{};
  x.fill(1.0F);
  x[3] = std::nanf("");
  const Nvfp4Block block = quantise_block(x, 1.0F);
  EXPECT_EQ(block.scale, 0x7F);
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(dequantise(block, i))) << i;
}

// Rows of bf16 run on vectors: every bit pattern of bf16, as the largest of its block and beside larger ones,
// gives the bytes of quantise_block, for global scales of all sizes.
TEST(Quantiser, RowsOfBf16AreBlocksForEveryBitPattern) {
  constexpr std::array<std::uint16_t, 15> company = {0x0000, 0x8000, 0x3F80, 0xBF40, 0x0001,
                                                     0x8080, 0x4049, 0x7F7F, 0x3E99, 0xC2C8,
                                                     0x0080, 0x3F00, 0xBE80, 0x4110, 0x3DCC};
  std::vector<std::uint16_t> x;
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern)
    for (std::size_t i = 0; i < 16; ++i) {
      // Alone with small multiples of itself, or among others, in turns; at every place of the block.
      const auto own = static_cast<std::uint16_t>(pattern);
      const auto smaller = static_cast<std::uint16_t>(own >= 0x0400 ? (own - 0x20 * i) : own);
      x.push_back(i == pattern % 16 ? own : pattern % 2 == 0 ? smaller : company[i % company.size()]);
    }
  for (const float gs : {1.0F, 448.0F, 0x1p-20F, 0x1p60F, 3.7e-3F, std::numeric_limits<float>::infinity()}) {
    std::vector<std::uint8_t> codes(x.size() / 2);
    std::vector<std::uint8_t> scales(x.size() / 16);
    quantise_rows(x, 256, gs, codes, scales);
    for (std::size_t b = 0; b < scales.size(); ++b) {
      std::array<float, 16> block{};
      for (std::size_t i = 0; i < 16; ++i) block[i] = bf16_to_f32(x[16 * b + i]);
      const Nvfp4Block want = quantise_block(block, gs);
      ASSERT_EQ(scales[b], want.scale) << "pattern " << b << " gs " << gs;
      for (std::size_t i = 0; i < 8; ++i)
        ASSERT_EQ(codes[8 * b + i], want.codes[i]) << "pattern " << b << " gs " << gs << " byte " << i;
    }
  }
}

TEST(Quantiser, DequantisedBlocksAreNear) {
  // Half a step of e2m1 at the top is 1/6 of the block's largest value; the scale's own rounding adds at most
  // 1/16.
  std::vector<float> x(256);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7));
  std::vector<std::uint8_t> codes(128);
  std::vector<std::uint8_t> scales(16);
  const float gs = 2688.0F;
  quantise_rows(x, 256, gs, codes, scales);
  std::vector<float> back(256);
  dequantise_rows(codes, scales, 256, 1 / gs, back);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 1.0F / 6 + 1.0F / 16) << i;
}

TEST(Requantiser, MatchesTheGoldenIntermediate) {
  const auto inter = golden<double>("op_inter");  // [10, 128], global scale already inside
  const auto codes = golden<std::uint8_t>("op_h_codes");
  const auto scales = golden<std::uint8_t>("op_h_sf");
  for (std::size_t b = 0; b < scales.size(); ++b) {
    std::array<float, 16> h{};
    for (std::size_t i = 0; i < 16; ++i) h[i] = static_cast<float>(inter[b * 16 + i]);
    const Nvfp4Block block = requantise_block(h);
    EXPECT_EQ(block.scale, scales[b]) << b;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(block.codes[i], codes[b * 8 + i]) << b;
  }
}

}  // namespace
}  // namespace kerf::numeric
