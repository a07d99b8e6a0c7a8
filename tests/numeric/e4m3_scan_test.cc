#include "kerf/numeric/e4m3_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kerf/numeric/e4m3.h"

namespace kerf::numeric {
namespace {

// Every byte at every position of a vector register, against the decoder.
TEST(RegularScales, EveryByteEverywhere) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = e4m3_to_f32(byte);
    const bool regular = !std::isnan(value) && value >= 0.0F;
    EXPECT_EQ(regular_scale(byte), regular) << code;
    for (const std::size_t size : {1U, 7U, 16U, 33U, 100U}) {
      for (std::size_t at = 0; at < size; ++at) {
        std::vector<std::uint8_t> codes(size, 0x38);
        codes[at] = byte;
        ASSERT_EQ(regular_scales(codes), regular) << code << " at " << at << " of " << size;
      }
    }
  }
  EXPECT_TRUE(regular_scales({}));
}

// Long runs are looked at as four streams of whole lines and a rest: one bad code anywhere in them is seen.
TEST(RegularScales, OneBadCodeAnywhereInALongRun) {
  for (const std::size_t size : {256U, 511U, 1027U}) {
    std::vector<std::uint8_t> codes(size, 0x7E);
    for (std::size_t at = 0; at < size; ++at) codes[at] = at % 3 == 0 ? 0x80 : 0x7E;
    EXPECT_TRUE(regular_scales(codes));
    for (std::size_t at = 0; at < size; ++at)
      for (const std::uint8_t bad : std::vector<std::uint8_t>{0x7F, 0x81, 0xFF}) {
        const std::uint8_t sound = std::exchange(codes[at], bad);
        ASSERT_FALSE(regular_scales(codes)) << at << " of " << size;
        codes[at] = sound;
      }
  }
}

}  // namespace
}  // namespace kerf::numeric
