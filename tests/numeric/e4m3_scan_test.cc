#include "kerf/numeric/e4m3_scan.h"

#include <gtest/gtest.h>

#include <cmath>
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

}  // namespace
}  // namespace kerf::numeric
