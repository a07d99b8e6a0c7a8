#include "kerf/numeric/block_scan.h"

#include <gtest/gtest.h>

#include <vector>

#include "kerf/base/error.h"

namespace kerf::numeric {
namespace {

using Bytes = std::vector<std::uint8_t>;

TEST(BlockScan, ABlockIsZeroByItsCodesOrItsScale) {
  Bytes codes(5 * 8, 0x00);
  Bytes scales = {0x38, 0x38, 0x00, 0x80, 0x38};
  codes[8 + 3] = 0x08;  // block 1: a lone -0
  for (int i = 16; i < 32; ++i)
    codes[static_cast<std::size_t>(i)] = 0x77;  // blocks 2, 3: sixes times 0 and -0
  codes[4 * 8 + 7] = 0x10;                      // block 4: a lone 0.5, the last of its values
  const BlockScan scan = scan_blocks(codes, scales);
  EXPECT_EQ(scan.blocks, 5);
  EXPECT_EQ(scan.zeros, 4);
  EXPECT_EQ(scan.least, 0x38);
  EXPECT_EQ(scan.most, 0x38);
}

// Every code in every place but 0 and -0 makes a block that is not zero.
TEST(BlockScan, EveryCodeEverywhere) {
  for (unsigned code = 0; code < 16; ++code)
    for (std::size_t k = 0; k < 16; ++k) {
      Bytes codes(8, 0x80);
      codes[k / 2] = static_cast<std::uint8_t>(k % 2 == 0 ? (codes[k / 2] & 0xF0U) | code
                                                          : (codes[k / 2] & 0x0FU) | (code << 4U));
      EXPECT_EQ(scan_blocks(codes, Bytes{0x20}).zeros, code % 8 == 0 ? 1 : 0) << code << " at " << k;
    }
}

TEST(BlockScan, TheRangeIsOfBlocksThatHoldSomething) {
  const Bytes live(8, 0x11);
  Bytes codes(8, 0x00);  // block 0 zero, under a scale of 448
  Bytes scales = {0x7E};
  for (const std::uint8_t scale : Bytes{0x10, 0x40, 0x7F, 0xFF, 0xB8, 0x01}) {
    codes.insert(codes.end(), live.begin(), live.end());
    scales.push_back(scale);
  }
  const BlockScan scan = scan_blocks(codes, scales);
  EXPECT_EQ(scan.blocks, 7);
  EXPECT_EQ(scan.zeros, 1);
  EXPECT_EQ(scan.least, 0x01);
  EXPECT_EQ(scan.most, 0x40);
}

TEST(BlockScan, NothingIsNothing) {
  const BlockScan none = scan_blocks({}, {});
  EXPECT_EQ(none.blocks + none.zeros + none.least + none.most, 0);
  const BlockScan zeros = scan_blocks(Bytes(16, 0), Bytes{0x38, 0x38});
  EXPECT_EQ(zeros.zeros, 2);
  EXPECT_EQ(zeros.most, 0);
  EXPECT_THROW((void)scan_blocks(Bytes(7, 0), Bytes{0x38}), Error);
}

}  // namespace
}  // namespace kerf::numeric
