// bf16 (bfloat16: 1 sign, 8 exponent, 7 mantissa bits), the upper half of an f32. Stored as raw std::uint16_t
// everywhere.
#pragma once

#include <bit>
#include <cstdint>

#pragma GCC visibility push(default)
namespace kerf::numeric {

inline constexpr std::uint16_t bf16_nan = 0x7FC0;  // the only NaN that is ever stored

// The value. Exact, NaN bits kept.
constexpr float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Round to nearest, ties to even; overflow gives infinity; every NaN becomes bf16_nan.
constexpr std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return bf16_nan;
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// Neither infinite nor NaN.
constexpr bool bf16_is_finite(std::uint16_t bits) { return (bits & 0x7F80U) != 0x7F80U; }

// The nearest bf16 value, as f32: f32_to_bf16() and back.
constexpr float round_to_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

}  // namespace kerf::numeric
#pragma GCC visibility pop
