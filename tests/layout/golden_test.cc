// The converted layout against vectors made by the layout's own tools, bit for bit.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kerf/layout/convert.h"
#include "kerf/layout/rows.h"
#include "tests/support/npy.h"

namespace kerf::layout {
namespace {

using test::golden;
using test::golden_bytes;

using Bytes = std::vector<std::byte>;

// Expert e of a tensor of `experts` experts.
std::span<const std::byte> expert(const Bytes& all, std::int64_t experts, std::int64_t e) {
  const std::size_t size = all.size() / static_cast<std::size_t>(experts);
  return {all.data() + static_cast<std::size_t>(e) * size, size};
}
std::span<const std::byte> half(std::span<const std::byte> w13, int which) {
  return w13.subspan(static_cast<std::size_t>(which) * (w13.size() / 2), w13.size() / 2);
}
bool same(const Bytes& a, std::span<const std::byte> b) { return Bytes(b.begin(), b.end()) == a; }

struct Nvfp4Case {
  const char* name;
  std::int64_t hidden, intermediate;
};

class Nvfp4Golden : public testing::TestWithParam<Nvfp4Case> {};

TEST_P(Nvfp4Golden, EveryExpertConvertsAndComesBack) {
  const auto [name, hidden, intermediate] = GetParam();
  const auto load = [&, base = std::string(name)](const std::string& what) {
    return golden_bytes(base + what, 1);
  };
  const Bytes w13 = load("_w13"), w13_sf = load("_w13_sf"), w2 = load("_w2"), w2_sf = load("_w2_sf");
  const Bytes w13_conv = load("_w13_conv"), w13_sf_conv = load("_w13_sf_conv"), w2_conv = load("_w2_conv"),
              w2_sf_conv = load("_w2_sf_conv");
  for (std::int64_t e = 0; e < 2; ++e) {
    SCOPED_TRACE(e);
    // The vectors keep up in the first half of the rows, gate in the second.
    const LogicalNvfp4<const std::byte> from{half(expert(w13, 2, e), 1), half(expert(w13_sf, 2, e), 1),
                                             half(expert(w13, 2, e), 0), half(expert(w13_sf, 2, e), 0),
                                             expert(w2, 2, e),           expert(w2_sf, 2, e)};
    Bytes c13(w13.size() / 2), c13_sf(w13_sf.size() / 2), c2(w2.size() / 2), c2_sf(w2_sf.size() / 2);
    convert(from, hidden, intermediate, {c13, c13_sf, c2, c2_sf});
    EXPECT_TRUE(same(c13, expert(w13_conv, 2, e)));
    EXPECT_TRUE(same(c13_sf, expert(w13_sf_conv, 2, e)));
    EXPECT_TRUE(same(c2, expert(w2_conv, 2, e)));
    EXPECT_TRUE(same(c2_sf, expert(w2_sf_conv, 2, e)));

    Bytes gate(w2.size() / 2), gate_sf(w2_sf.size() / 2), up = gate, up_sf = gate_sf, down = gate,
                                                          down_sf = gate_sf;
    restore(ConvertedNvfp4<const std::byte>{c13, c13_sf, c2, c2_sf}, hidden, intermediate,
            {gate, gate_sf, up, up_sf, down, down_sf});
    EXPECT_TRUE(same(gate, from.gate) && same(up, from.up) && same(down, from.down));
    EXPECT_TRUE(same(gate_sf, from.gate_sf) && same(up_sf, from.up_sf) && same(down_sf, from.down_sf));
  }
}
INSTANTIATE_TEST_SUITE_P(Vectors, Nvfp4Golden,
                         testing::Values(Nvfp4Case{"layout_e2_h256_i256", 256, 256},
                                         Nvfp4Case{"layout_e2_h512_i384", 512, 384}),
                         [](const auto& p) { return std::string(p.param.name); });

TEST(Bf16Golden, EveryExpertConvertsAndComesBack) {
  const std::string base = "layout_bf16_e2_h256_i128";
  const Bytes w13 = golden_bytes(base + "_w13", 2), w2 = golden_bytes(base + "_w2", 2);
  const Bytes w13_conv = golden_bytes(base + "_w13_conv", 2), w2_conv = golden_bytes(base + "_w2_conv", 2);
  for (std::int64_t e = 0; e < 2; ++e) {
    const LogicalBf16<const std::byte> from{half(expert(w13, 2, e), 1), half(expert(w13, 2, e), 0),
                                            expert(w2, 2, e)};
    Bytes c13(w13.size() / 2), c2(w2.size() / 2);
    convert(from, 256, 128, ConvertedBf16<std::byte>{c13, c2});
    EXPECT_TRUE(same(c13, expert(w13_conv, 2, e))) << e;
    EXPECT_TRUE(same(c2, expert(w2_conv, 2, e))) << e;
    Bytes gate(w2.size() / 2), up = gate, down = gate;
    restore(ConvertedBf16<const std::byte>{c13, c2}, 256, 128, LogicalBf16<std::byte>{gate, up, down});
    EXPECT_TRUE(same(gate, from.gate) && same(up, from.up) && same(down, from.down)) << e;
  }
}

TEST(RowsGolden, W13) {
  const auto perm = golden<std::int32_t>("perm_w13_i256");
  ASSERT_EQ(perm.size(), 512U);
  for (std::int64_t r = 0; r < 512; ++r) {
    const W13Row s = w13_source(r);
    EXPECT_EQ((s.half == Half::gate ? 256 : 0) + s.row, perm[static_cast<std::size_t>(r)]) << r;
    EXPECT_EQ(w13_converted(s.half, s.row), r);
  }
}

TEST(RowsGolden, W2) {
  const auto perm = golden<std::int32_t>("perm_w2_h256");
  ASSERT_EQ(perm.size(), 256U);
  for (std::int64_t r = 0; r < 256; ++r) {
    EXPECT_EQ(w2_source(r), perm[static_cast<std::size_t>(r)]) << r;
    EXPECT_EQ(w2_converted(w2_source(r)), r);
  }
}

TEST(ScaleOffsetsGolden, BothMatrices) {
  const auto w13 = golden<std::int32_t>("sf_offset_w13_i256_c20");
  ASSERT_EQ(w13.size(), 512U * 20U);
  for (std::int64_t row = 0; row < 512; ++row)
    for (std::int64_t k = 0; k < 20; ++k)
      EXPECT_EQ(scale_offset_128x4(w13_converted(row < 256 ? Half::up : Half::gate, row % 256), k, 20),
                w13[static_cast<std::size_t>(row * 20 + k)]);
  const auto w2 = golden<std::int32_t>("sf_offset_w2_h256_c20");
  ASSERT_EQ(w2.size(), 256U * 20U);
  for (std::int64_t row = 0; row < 256; ++row)
    for (std::int64_t k = 0; k < 20; ++k)
      EXPECT_EQ(scale_offset_128x4(w2_converted(row), k, 20), w2[static_cast<std::size_t>(row * 20 + k)]);
}

class InterleaveGolden : public testing::TestWithParam<const char*> {};

TEST_P(InterleaveGolden, BothTileHeightsWithPadding) {
  const std::string name = std::string("quant_") + GetParam() + "_sf";
  const auto shape = test::golden_shape(name);
  ASSERT_EQ(shape.size(), 2U);
  const Bytes from = golden_bytes(name, 1);
  const Bytes tall = golden_bytes(name + "_128x4", 1), flat = golden_bytes(name + "_8x4", 1);
  // A pattern that is not the padding's zero must be gone afterwards.
  Bytes to(tall.size(), std::byte{0xA5});
  interleave_128x4(from, shape[0], shape[1], to);
  EXPECT_EQ(to, tall);
  to.assign(flat.size(), std::byte{0xA5});
  interleave_8x4(from, shape[0], shape[1], to);
  EXPECT_EQ(to, flat);
}
INSTANTIATE_TEST_SUITE_P(Vectors, InterleaveGolden,
                         testing::Values("edge_gs1", "edge_gs64", "normal", "wide_padded", "near_midpoints",
                                         "all_scales", "fp16", "fp32", "big"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace kerf::layout
