// Padding: what is converted at a greater width is what the checkpoint would give if it had the zeros itself.
#include <gtest/gtest.h>

#include <string>

#include "kerf/base/error.h"
#include "kerf/layout/convert.h"
#include "tests/layout/layout_oracle.h"

namespace kerf::layout {
namespace {

using namespace test_support;

struct Widths {
  std::int64_t hidden, intermediate, width;
};
constexpr Widths kNvfp4[] = {{128, 16, 64},   {128, 80, 128},    {256, 96, 128},
                             {384, 96, 384},  {640, 208, 256},   {128, 192, 256},
                             {256, 320, 512}, {128, 1040, 1088}, {256, 64, 64}};

// Filled with ones first: every byte of the target must be written.
Nvfp4Converted padded(const Nvfp4Expert& x, const Widths& w) {
  const auto ones = [](std::int64_t size) { return Bytes(static_cast<std::size_t>(size), std::byte{0xFF}); };
  const std::int64_t codes = w.width * w.hidden / 2;
  Nvfp4Converted out{ones(2 * codes), ones(codes / 4), ones(codes), ones(codes / 8)};
  convert_padded(x.view(), w.hidden, w.intermediate, w.width, {out.w13, out.w13_sf, out.w2, out.w2_sf});
  return out;
}

TEST(Padding, IsTheConversionOfTheWidenedExpert) {
  for (const Widths& w : kNvfp4) {
    SCOPED_TRACE(std::to_string(w.intermediate) + " to " + std::to_string(w.width));
    const Nvfp4Expert expert(w.hidden, w.intermediate, 31);
    const Nvfp4Converted got = padded(expert, w);
    const Nvfp4Converted wanted =
        converted_by_definition(widened(expert, w.hidden, w.width), w.hidden, w.width);
    EXPECT_TRUE(got.w13 == wanted.w13);
    EXPECT_TRUE(got.w13_sf == wanted.w13_sf);
    EXPECT_TRUE(got.w2 == wanted.w2);
    EXPECT_TRUE(got.w2_sf == wanted.w2_sf);
  }
}

// Where zeros are behind the last real index, and that there are as many as there should be.
TEST(Padding, LeavesTheZerosWhereTheFormulasSay) {
  const Widths w{128, 80, 128};
  Nvfp4Expert expert(w.hidden, w.intermediate);
  for (Bytes* b : {&expert.gate, &expert.gate_sf, &expert.up, &expert.up_sf, &expert.down, &expert.down_sf})
    std::fill(b->begin(), b->end(), std::byte{0x77});
  const Nvfp4Converted got = padded(expert, w);
  const auto zeros = [](const Bytes& b) { return std::count(b.begin(), b.end(), std::byte{0}); };
  EXPECT_EQ(zeros(got.w13), 2 * 48 * 64);
  EXPECT_EQ(zeros(got.w13_sf), 2 * 48 * 8);
  EXPECT_EQ(zeros(got.w2), 128 * 24);
  EXPECT_EQ(zeros(got.w2_sf), 128 * 3);
  EXPECT_EQ(got.w13[static_cast<std::size_t>(w13_converted(Half::gate, 79) * 64)], std::byte{0x77});
  EXPECT_EQ(got.w13[static_cast<std::size_t>(w13_converted(Half::gate, 80) * 64)], std::byte{0});
  EXPECT_EQ(got.w2_sf[static_cast<std::size_t>(scale_offset_128x4(5, 4, 8))], std::byte{0x77});
  EXPECT_EQ(got.w2_sf[static_cast<std::size_t>(scale_offset_128x4(5, 5, 8))], std::byte{0});
}

// BF16 experts have no scale groups: any width can be padded.
TEST(Padding, OfBf16ExpertsTakesAnyWidth) {
  for (const Widths& w : {Widths{64, 1, 64}, Widths{128, 80, 128}, Widths{192, 100, 192},
                          Widths{64, 129, 320}, Widths{64, 64, 64}}) {
    SCOPED_TRACE(std::to_string(w.intermediate) + " to " + std::to_string(w.width));
    const Bf16Expert expert(w.hidden, w.intermediate, 32);
    const auto size = static_cast<std::size_t>(w.width * w.hidden * 2);
    Bf16Converted got{Bytes(2 * size, std::byte{0xFF}), Bytes(size, std::byte{0xFF})};
    convert_padded(LogicalBf16<const std::byte>{expert.gate, expert.up, expert.down}, w.hidden,
                   w.intermediate, w.width, ConvertedBf16<std::byte>{got.w13, got.w2});
    EXPECT_TRUE(got == converted_by_definition(widened(expert, w.hidden, w.width), w.hidden, w.width));
  }
}

ErrorKind kind_of(std::int64_t hidden, std::int64_t intermediate, std::int64_t width) {
  const Nvfp4Expert expert(hidden, intermediate, 1);
  Nvfp4Expert room(hidden, width);
  Bytes w13(2 * room.up.size());
  Bytes w13_sf(2 * room.up_sf.size());
  try {
    convert_padded(expert.view(), hidden, intermediate, width, {w13, w13_sf, room.down, room.down_sf});
  } catch (const Error& e) {
    return e.kind();
  }
  return ErrorKind::checkpoint;  // none
}

TEST(Padding, RefusesWhatCannotBePadded) {
  EXPECT_EQ(kind_of(128, 96, 128), ErrorKind::checkpoint);
  EXPECT_EQ(kind_of(128, 40, 64), ErrorKind::unsupported);   // half a scale group
  EXPECT_EQ(kind_of(128, 96, 112), ErrorKind::unsupported);  // no width of the layout
  EXPECT_EQ(kind_of(128, 128, 64), ErrorKind::bug);
  EXPECT_EQ(kind_of(192, 96, 128), ErrorKind::unsupported);
}

}  // namespace
}  // namespace kerf::layout
