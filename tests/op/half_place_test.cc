// Where the device's 16-bit bodies put values, and how they cut their work: what needs no device to be shown.
#include "kerf/op/sm90/half_place.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "kerf/op/sm90/half_work.h"

namespace kerf::op::sm90 {
namespace {

TEST(HalfPlace, EachThreadOfARowDecodesOneBlockInThePairsThatItsCodesComeIn) {
  std::set<int> places;
  for (int k = 0; k < 64; ++k) {
    const int place = decoded_place(k);
    places.insert(place);
    const int within = place % 16;
    EXPECT_EQ(within % 8 / 2, k / 16) << k;  // thread t has the block of 16 values t
    // Of a pair, codes n and n + 4 of a word, the first is the lower half of a register.
    if (k % 8 < 4) {
      EXPECT_EQ(decoded_place(k + 4), place + 1) << k;
    }
  }
  EXPECT_EQ(places.size(), 64U);
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), 63);
}

TEST(HalfPlace, SwizzledRowsAreWhatTheCopyEngineMakes) {
  std::set<int> at;
  for (int row = 0; row < 16; ++row)
    for (int place = 0; place < 64; ++place) {
      // Address bits 4 to 6 (of bytes) are those of the place, xor bits 7 to 9, the row's.
      const int bytes = 2 * (64 * row + place);
      EXPECT_EQ(2 * swizzled(row, place), bytes ^ ((bytes >> 7 & 7) << 4));
      at.insert(swizzled(row, place));
    }
  EXPECT_EQ(at.size(), 16U * 64);
}

TEST(HalfWork, UnitsCoverAllRowsOnceAndTheFirstGemmComesFirst) {
  for (const int split : splits)
    for (const int hidden : {64, 128, 192, 640})
      for (const int inter : {64, 320})
        for (const int live : {0, 1, 3}) {
          const HalfWork work(hidden, inter, live, split);
          std::set<std::tuple<bool, int, int>> seen;
          bool second = false;
          for (std::uint32_t i = 0; i < work.all; ++i) {
            const HalfUnit unit = work.unit(i);
            EXPECT_GE(unit.second, second);
            second = unit.second;
            EXPECT_LT(unit.tile, live);
            EXPECT_LT(unit.first_row, unit.second ? hidden : 2 * inter);
            for (int row = unit.first_row; row < unit.first_row + rows_of_unit(split); ++row)
              if (row < (unit.second ? hidden : 2 * inter)) {
                EXPECT_TRUE(seen.insert({unit.second, unit.tile, row}).second);
              }
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(live * (hidden + 2 * inter)));
        }
}

}  // namespace
}  // namespace kerf::op::sm90
