#include "kerf/numeric/splitmix.h"

#include <gtest/gtest.h>

namespace kerf::numeric {
namespace {

// The generator's published first outputs from the state 1234567.
TEST(SplitMix, IsSplitmix64) {
  constexpr SplitMix stream(1234567);
  static_assert(stream[0] == 6457827717110365317U);
  static_assert(stream[1] == 3203168211198807973U);
  static_assert(stream[2] == 9817491932198370423U);
  static_assert(stream[3] == 4593380528125082431U);
  static_assert(stream[4] == 16408922859458223821U);
}

TEST(Bell, IsCentredAndBounded) {
  static_assert(bell(0) == -131070);
  static_assert(bell(~std::uint64_t{0}) == 131070);
  static_assert(bell(0x0001'0002'0003'0004U) == 10 - 131070);
}

}  // namespace
}  // namespace kerf::numeric
