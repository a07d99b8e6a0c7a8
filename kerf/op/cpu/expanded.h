// The CPU op's forms of an activation row: what the kernels multiply weights by, made once per row and read
// once per weight row. A quantised row (W4A4) becomes signed bytes of twice its e2m1 values; a bf16 row
// (W4A16) becomes 16-bit integers with a power of two as the scale of each block of 16, in two bytes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/numeric/power_of_two.h"

namespace kerf::op::cpu {

// Where block b of a chunk stands in each array below: every instruction set has its own order of lanes.
using BlockOrder = std::array<std::uint8_t, 8>;

// A chunk is 128 values of K, 64 code bytes of a weight row. The eight code bytes of a block are looked up in
// four runs of four bytes: low nibbles (even k) and high nibbles (odd k) of its first four bytes, then of its
// last four. Each run is four bytes here, so that a 32-bit lane of each of four registers is one whole block.
using Runs = std::array<std::array<std::int8_t, 32>, 4>;

struct alignas(64) Chunk {
  Runs x{};
  // Weights are looked up as 12 + 2w >= 0; the 12 comes off again here: bias = -12 * (sum of the block's x).
  std::array<std::int32_t, 8> bias{};
  // Block scale times 2^6. Block dots come out times 4 (both sides doubled) and weight scales times 2^-8: the
  // powers of two cancel, and every product stays exact.
  std::array<float, 8> scale{};
};
inline constexpr float chunk_scale = 64.0F;

// The same with x = 256 * high + low. Block dots come out times 2, exact in f32: 16 products of at most
// 12 * 32,640.
struct alignas(64) WideChunk {
  Runs high{};
  Runs low{};
  std::array<std::int32_t, 8> bias{};
  std::array<float, 8> scale{};
};

constexpr std::int64_t chunks_of(std::int64_t k) { return (k + 127) / 128; }

// Value 2j (odd: 2j + 1) of the block at `place`, j < 8: its run, and its byte in the run.
struct Spot {
  std::size_t run;
  std::size_t byte;
};
constexpr Spot spot(std::size_t place, std::size_t j, bool odd) {
  return {2 * (j / 4) + (odd ? 1U : 0U), 4 * place + j % 4};
}

// A block's 8 even and 8 odd bytes, put where spot() says.
inline void put_bytes(const std::int8_t* even, const std::int8_t* odd, std::size_t place, Runs& out) {
  for (const std::size_t back : {0U, 4U}) {
    std::memcpy(&out[back / 2][4 * place], even + back, 4);
    std::memcpy(&out[back / 2 + 1][4 * place], odd + back, 4);
  }
}

// Puts one quantised block, as twice its values and the sum of these, at a place of a chunk.
inline void put_block(const std::int8_t* even, const std::int8_t* odd, std::int32_t sum, float scale,
                      std::size_t place, Chunk& out) {
  put_bytes(even, odd, place, out.x);
  out.bias[place] = -12 * sum;
  out.scale[place] = scale * chunk_scale;
}

// The exponent of a block whose largest magnitude has these bits (finite): 16 bits hold values below
// 2^(exponent + 1). Adding one unit of bf16 keeps the high byte in range where all bits are ones. Blocks that
// are all below 2^-100 lose bits rather than the scale's normality.
constexpr int wide_exponent(std::uint32_t largest) {
  const int exponent = static_cast<int>((largest + 0x10000U) >> 23) - 127;
  return exponent < -100 ? -100 : exponent;
}

// The same for bf16 values: exact where a value is not below 1/64 of the block's largest magnitude, and about
// 2^-15 of that off at most where it is. A block with infinity or NaN makes every dot with it NaN.
inline void put_block(const float* even, const float* odd, std::size_t place, WideChunk& out) {
  std::uint32_t bits = 0;
  for (std::size_t j = 0; j < 8; ++j) {
    const auto e = std::bit_cast<std::uint32_t>(even[j]) & 0x7FFFFFFFU;
    const auto o = std::bit_cast<std::uint32_t>(odd[j]) & 0x7FFFFFFFU;
    const auto more = e > o ? e : o;
    bits = more > bits ? more : bits;
  }
  const bool finite = bits < 0x7F800000U;
  // Up to 2^127, so 14 - exponent is at least -113: the factor is normal at both ends.
  const int exponent = finite ? wide_exponent(bits) : 0;
  const float factor = finite ? numeric::power_of_two(14 - exponent) : 0.0F;
  constexpr float nearest = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  std::array<std::array<std::int8_t, 8>, 2> high;
  std::array<std::array<std::int8_t, 8>, 2> low;
  std::int32_t sum = 0;
  for (std::size_t odd_one = 0; odd_one < 2; ++odd_one) {
    const float* values = odd_one != 0 ? odd : even;
    for (std::size_t j = 0; j < 8; ++j) {
      const auto q = static_cast<std::int32_t>(finite ? (values[j] * factor + nearest) - nearest : 0.0F);
      low[odd_one][j] = static_cast<std::int8_t>(q & 0xFF);
      high[odd_one][j] = static_cast<std::int8_t>((q + 128) >> 8);
      sum += q;
    }
  }
  put_bytes(high[0].data(), high[1].data(), place, out.high);
  put_bytes(low[0].data(), low[1].data(), place, out.low);
  out.bias[place] = -12 * sum;
  // Half for the doubled weights, and 2^8 for what their scales lack.
  out.scale[place] = finite ? numeric::power_of_two(exponent - 7) : std::numeric_limits<float>::quiet_NaN();
}

// Expands one row of K values; trailing blocks of the last chunk become zero.
// Quantised: codes [K/2], linear scales [K/16].
inline void expand(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t k,
                   const BlockOrder& order, Chunk* out) {
  for (std::int64_t c = 0; c < chunks_of(k); ++c) {
    out[c] = Chunk{};
    for (std::int64_t b = 0; b < 8 && 128 * c + 16 * b < k; ++b) {
      std::array<std::int8_t, 8> even;
      std::array<std::int8_t, 8> odd;
      std::int32_t sum = 0;
      for (std::size_t j = 0; j < 8; ++j) {
        const unsigned byte = codes[64 * c + 8 * b + static_cast<std::int64_t>(j)];
        even[j] = numeric::e2m1_doubled[byte & 15U];
        odd[j] = numeric::e2m1_doubled[byte >> 4];
        sum += even[j] + odd[j];
      }
      put_block(even.data(), odd.data(), sum, numeric::e4m3_to_f32(scales[8 * c + b]),
                order[static_cast<std::size_t>(b)], out[c]);
    }
  }
}
// bf16: x [K].
inline void expand(const std::uint16_t* x, std::int64_t k, const BlockOrder& order, WideChunk* out) {
  for (std::int64_t c = 0; c < chunks_of(k); ++c) {
    out[c] = WideChunk{};
    for (std::int64_t b = 0; b < 8 && 128 * c + 16 * b < k; ++b) {
      std::array<float, 8> even;
      std::array<float, 8> odd;
      for (std::size_t j = 0; j < 8; ++j) {
        const std::uint16_t* pair = x + 128 * c + 16 * b + 2 * static_cast<std::int64_t>(j);
        even[j] = numeric::bf16_to_f32(pair[0]);
        odd[j] = numeric::bf16_to_f32(pair[1]);
      }
      put_block(even.data(), odd.data(), order[static_cast<std::size_t>(b)], out[c]);
    }
  }
}

}  // namespace kerf::op::cpu
