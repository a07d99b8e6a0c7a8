// How many rows the op's row buffer has: the padded rows of a step, and no less than 128 KiB of them.
#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/op/op.h"

namespace kerf::op {
namespace {

std::int64_t rows(std::int64_t tokens, std::int64_t top_k, std::int64_t experts, std::int64_t tile,
                  std::int64_t hidden) {
  return gemm2_rows({tokens, top_k, experts, 0, experts, tile}, hidden);
}

// By hand. Tiles: one for each expert that a route can be alone at, and one for every `tile` routes beyond.
TEST(Gemm2Rows, AreThePaddedRows) {
  EXPECT_EQ(rows(8, 8, 256, 8, 8192), 64 * 8);            // 64 routes at 64 experts
  EXPECT_EQ(rows(64, 8, 256, 8, 8192), (256 + 32) * 8);   // 512 routes: 256 beyond
  EXPECT_EQ(rows(64, 8, 256, 64, 8192), (256 + 4) * 64);  // in larger tiles
  EXPECT_EQ(rows(33, 8, 256, 16, 8192), (256 + 0) * 16);  // 8 beyond do not fill a tile
  EXPECT_EQ(rows(100, 2, 4, 32, 4096), (4 + 6) * 32);     // 196 beyond
}

// 128 KiB are 65,536 values of bf16.
TEST(Gemm2Rows, FillAtLeast128KiB) {
  EXPECT_EQ(rows(0, 8, 256, 8, 8192), 8);
  EXPECT_EQ(rows(1, 1, 4, 8, 256), 256);
  EXPECT_EQ(rows(1, 1, 4, 8, 8192), 8);
  EXPECT_EQ(rows(1, 1, 4, 8, 4096), 16);
  EXPECT_EQ(rows(1, 1, 4, 8, 384), 171);  // 170.67
  for (const std::int64_t hidden : {64, 128, 320, 640, 2880, 7168})
    for (const std::int64_t tokens : {0, 1, 3}) {
      const std::int64_t got = rows(tokens, 2, 8, 8, hidden);
      EXPECT_GE(got * hidden * 2, 128 * 1024) << hidden;
      const std::int64_t padded = std::min<std::int64_t>(8, 2 * tokens) * 8;
      EXPECT_TRUE(got == padded || (got - 1) * hidden * 2 < 128 * 1024) << hidden;
    }
}

}  // namespace
}  // namespace kerf::op
