// E(x): the one exponential of the project. Every backend and instruction set evaluates this very sequence of
// f32 operations (each rounded once, fma where fma is written), so all of them get the same bits. It
// calls no library and uses no instruction that approximates.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kerf::numeric {

// The constants, shared by the scalar form below and the vector forms of the CPU op.
namespace exp_constants {
inline constexpr float log2e = 0x1.715476p+0F;
inline constexpr float to_integer = 0x1.8p+23F;    // adding it rounds to an integer in the last bits
inline constexpr float ln2_high = 0x1.62e400p-1F;  // ln 2 in 15 bits: n * ln2_high is exact for |n| < 512
inline constexpr float ln2_low = 0x1.7f7d1cp-20F;
inline constexpr float highest = 0x1.62e42ep+6F;  // 88.72283: above it the result is +inf
inline constexpr float lowest = -0x1.9fe368p+6F;  // -103.97208: below it the result is 0
// exp(r) on |r| <= ln 2 / 2: 1 + r + r^2 (c2 + r (c3 + ...)), coefficients of the Taylor series adjusted to
// the interval (c6 and c7 keep the polynomial's own error below 2^-27).
inline constexpr float c2 = 0.5F;
inline constexpr float c3 = 0x1.555556p-3F;
inline constexpr float c4 = 0x1.555556p-5F;
inline constexpr float c5 = 0x1.111112p-7F;
inline constexpr float c6 = 0x1.6c16c2p-10F;
inline constexpr float c7 = 0x1.a01a02p-13F;
}  // namespace exp_constants

// exp(x) in f32: at most 2 ulp (of the subnormal step below 2^-126), +inf above 88.72, 0 below -103.97, NaN
// for NaN.
constexpr float exp_f32(float x) {
  using namespace exp_constants;
  if (x != x) return std::numeric_limits<float>::quiet_NaN();
  if (x > highest) return std::numeric_limits<float>::infinity();
  if (x < lowest) return 0.0F;
  const float shifted = std::fma(x, log2e, to_integer);
  const float n = shifted - to_integer;
  float r = std::fma(n, -ln2_high, x);
  r = std::fma(n, -ln2_low, r);
  float p = c7;
  p = std::fma(p, r, c6);
  p = std::fma(p, r, c5);
  p = std::fma(p, r, c4);
  p = std::fma(p, r, c3);
  p = std::fma(p, r, c2);
  p = std::fma(p, r * r, r);
  p = p + 1.0F;
  // 2^n in two halves: n reaches 128 and -150, which no single normal f32 holds. Only the last product can
  // round.
  const auto i = static_cast<std::int32_t>(n);
  const std::int32_t half = i >> 1;
  const auto power = [](std::int32_t e) { return std::bit_cast<float>((e + 127) << 23); };
  return (p * power(half)) * power(i - half);
}

// 1 / (1 + E(-x)), each step rounded.
constexpr float sigmoid_f32(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

}  // namespace kerf::numeric
