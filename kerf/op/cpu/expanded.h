// The CPU op's form of a quantised row: codes as signed bytes of twice their value, block scales as f32, and
// per block the correction that lets weights be looked up as unsigned bytes. Made once per row, read once per
// weight row.
#pragma once

#include <array>
#include <cstdint>

#include "kerf/numeric/nvfp4.h"

namespace kerf::op::cpu {

// 128 values of K: the 64 code bytes that a weight row has for them, low nibbles (even k) and high nibbles
// (odd k) apart.
struct alignas(64) Chunk {
  std::array<std::int8_t, 64> even{};
  std::array<std::int8_t, 64> odd{};
  // Weights are looked up as 12 + 2w >= 0; sum over a block of 12 * 2a is subtracted again: bias = -12 *
  // sum(2a).
  std::array<std::int32_t, 8> bias{};
  // Block scale times 2^6. Block dots come out times 4 (both sides doubled) and weight scales times 2^-8: the
  // powers of two cancel, and every product stays exact.
  std::array<float, 8> scale{};
};
inline constexpr float chunk_scale = 64.0F;

constexpr std::int64_t chunks_of(std::int64_t k) { return (k + 127) / 128; }

// Where block b of a chunk stands in bias and scale: each instruction set has its own order of lanes.
using BlockOrder = std::array<std::uint8_t, 8>;

// Expands one row of K values (codes [K/2], linear scales [K/16]); trailing blocks of the last chunk become
// zero.
inline void expand(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t k,
                   const BlockOrder& order, Chunk* out) {
  for (std::int64_t c = 0; c < chunks_of(k); ++c) {
    Chunk& chunk = out[c];
    chunk = Chunk{};
    for (std::int64_t b = 0; b < 8 && 128 * c + 16 * b < k; ++b) {
      std::int32_t sum = 0;
      for (std::int64_t j = 0; j < 8; ++j) {
        const unsigned byte = codes[64 * c + 8 * b + j];
        const std::int8_t even = numeric::e2m1_doubled[byte & 15U];
        const std::int8_t odd = numeric::e2m1_doubled[byte >> 4];
        chunk.even[static_cast<std::size_t>(8 * b + j)] = even;
        chunk.odd[static_cast<std::size_t>(8 * b + j)] = odd;
        sum += even + odd;
      }
      chunk.bias[order[static_cast<std::size_t>(b)]] = -12 * sum;
      chunk.scale[order[static_cast<std::size_t>(b)]] = numeric::e4m3_to_f32(scales[8 * c + b]) * chunk_scale;
    }
  }
}

}  // namespace kerf::op::cpu
