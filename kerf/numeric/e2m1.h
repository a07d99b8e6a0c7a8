// e2m1, the 4-bit float of NVFP4 (FP4 E2M1 of the OCP Microscaling Formats specification): bit 3 is the sign,
// codes 0..7 stand for 0, 0.5, 1, 1.5, 2, 3, 4, 6.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#pragma GCC visibility push(default)
namespace kerf::numeric {

// Value of a code, times two: the integers that block dots are made of.
inline constexpr std::array<std::int8_t, 16> e2m1_doubled = {0, 1,  2,  3,  4,  6,  8,  12,
                                                             0, -1, -2, -3, -4, -6, -8, -12};

// Exact; 0x8 is -0. Only the low four bits of `code` count.
constexpr float e2m1_to_f32(std::uint8_t code) {
  const float magnitude = static_cast<float>(e2m1_doubled[code & 7U]) * 0.5F;
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// Gives the code of the nearest value, half-way the even code; above 6, infinity included, the code of 6; -0
// for -0; and 7 for a NaN of either sign (as CUDA's own conversion does).
constexpr std::uint8_t f32_to_e2m1(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFU);
  if (magnitude != magnitude) return 7;
  // Midpoints between neighbours. One that belongs to the lower (even) code is passed only by something above
  // it.
  std::uint8_t code = 0;
  if (magnitude > 0.25F) code = 1;
  if (magnitude >= 0.75F) code = 2;
  if (magnitude > 1.25F) code = 3;
  if (magnitude >= 1.75F) code = 4;
  if (magnitude > 2.5F) code = 5;
  if (magnitude >= 3.5F) code = 6;
  if (magnitude > 5.0F) code = 7;
  return static_cast<std::uint8_t>(code | ((bits >> 28) & 8U));
}

}  // namespace kerf::numeric
#pragma GCC visibility pop
