// e4m3 (fn): the 8-bit float of NVFP4 block scales (E4M3 of the OCP 8-bit Floating Point specification). 1
// sign, 4 exponent (bias 7), 3 mantissa bits. No infinities; 0x7F and 0xFF are NaN; the largest value is 448.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#pragma GCC visibility push(default)
namespace kerf::numeric {

inline constexpr std::uint8_t e4m3_nan = 0x7F;
inline constexpr std::uint8_t e4m3_max = 0x7E;  // 448

// The two codes of NaN, 0x7F and 0xFF.
constexpr bool e4m3_is_nan(std::uint8_t code) { return (code & 0x7FU) == 0x7FU; }

// Exact, subnormals (multiples of 2^-9) and -0 included. NaN needs its test: shifted into place like
// the others it would come out as 480.
constexpr float e4m3_to_f32(std::uint8_t code) {
  if (e4m3_is_nan(code)) return std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t exponent = (code >> 3) & 15U;
  const std::uint32_t mantissa = code & 7U;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9F
                                        : std::bit_cast<float>(((exponent + 120U) << 23) | (mantissa << 20));
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

// Round to nearest, ties to even, saturating at 448 (infinities too); subnormals kept; NaN gives 0x7F.
constexpr std::uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return e4m3_nan;
  if (magnitude > std::bit_cast<std::uint32_t>(448.0F)) return static_cast<std::uint8_t>(sign | e4m3_max);
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6F)) {
    // Below the normal range the step is 2^-9. Adding 2^14 leaves exactly that step in the f32's last bit, so
    // the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 15U));
  }
  const std::uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

}  // namespace kerf::numeric
#pragma GCC visibility pop
