// Powers of two as f32.
#pragma once

#include <bit>
#include <cstdint>

namespace kerf::numeric {

// 2^exponent, for -126 to 127 (unchecked): the normal ones.
constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

}  // namespace kerf::numeric
