// The scalar body: plain code with std::fma, for CPUs without fused multiply-add vectors, and for tiles whose
// block scales the vector kernels do not take (NaN, negative).
#include <algorithm>

#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/op/cpu/kernels.h"

namespace kerf::op::cpu {

namespace {

constexpr std::int64_t kRows = tile_rows;

float weight_scale(const Nvfp4Tile& tile, std::int64_t row, std::int64_t block) {
  return numeric::e4m3_to_f32(tile.scales[layout::scale_offset_128x4(row, block, tile.k / 16)]);
}

void dots_nvfp4(const Nvfp4Tile& tile, const Chunk* const* rows, int count, float* dots) {
  for (int t = 0; t < count; ++t) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::uint8_t* codes = tile.codes + r * (tile.k / 2);
      dots[t * kRows + r] = numeric::canonical_dot(
          tile.k / 16,
          [&](std::int64_t b) {
            const Chunk& chunk = rows[t][b / 8];
            std::int32_t sum = 0;
            for (std::int64_t j = 0; j < 8; ++j) {
              const unsigned byte = codes[8 * b + j];
              const auto at = static_cast<std::size_t>(8 * (b % 8) + j);
              sum += numeric::e2m1_doubled[byte & 15U] * chunk.even[at] +
                     numeric::e2m1_doubled[byte >> 4] * chunk.odd[at];
            }
            return static_cast<float>(sum);
          },
          // d is four times the block dot; the chunk's scale carries 2^6: 2^-8 makes them meet.
          [&](std::int64_t b) {
            return (weight_scale(tile, r, b) * 0x1p-8F) *
                   rows[t][b / 8].scale[static_cast<std::size_t>(b % 8)];
          });
    }
  }
}

void dots_w4a16(const Nvfp4Tile& tile, const float* const* rows, int count, float* dots) {
  for (int t = 0; t < count; ++t) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::uint8_t* codes = tile.codes + r * (tile.k / 2);
      double sum = 0;
      for (std::int64_t b = 0; b < tile.k / 16; ++b) {
        double block = 0;
        for (std::int64_t j = 0; j < 8; ++j) {
          const unsigned byte = codes[8 * b + j];
          block += 0.5 * numeric::e2m1_doubled[byte & 15U] * static_cast<double>(rows[t][16 * b + j]);
          block += 0.5 * numeric::e2m1_doubled[byte >> 4] * static_cast<double>(rows[t][16 * b + 8 + j]);
        }
        sum += block * weight_scale(tile, r, b);
      }
      dots[t * kRows + r] = static_cast<float>(sum);
    }
  }
}

void dots_bf16(const Bf16Tile& tile, const float* const* rows, int count, float* dots) {
  for (int t = 0; t < count; ++t) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      double sum = 0;
      for (std::int64_t k = 0; k < tile.k; ++k)
        sum += static_cast<double>(
                   numeric::bf16_to_f32(tile.values[(k / 64) * tile.block_stride + r * 64 + k % 64])) *
               rows[t][k];
      dots[t * kRows + r] = static_cast<float>(sum);
    }
  }
}

// Value i (0..63) of a w13 tile.
float gated_at(const float* dots, const internal::ExpertScalars& s, std::int64_t i) {
  return internal::gated(dots[layout::w13_converted(layout::Half::up, i)],
                         dots[layout::w13_converted(layout::Half::gate, i)], s);
}

void requantise(const float* dots, const internal::ExpertScalars& s, int half, Chunk& out) {
  for (std::int64_t g = 0; g < 4; ++g) {
    std::array<float, 16> h{};
    for (std::int64_t i = 0; i < 16; ++i) h[static_cast<std::size_t>(i)] = gated_at(dots, s, 16 * g + i);
    const numeric::Nvfp4Block block = numeric::requantise_block(h);
    const auto b = static_cast<std::size_t>(4 * half + g);
    std::int32_t sum = 0;
    for (std::size_t j = 0; j < 8; ++j) {
      out.even[8 * b + j] = numeric::e2m1_doubled[block.codes[j] & 15U];
      out.odd[8 * b + j] = numeric::e2m1_doubled[block.codes[j] >> 4];
      sum += out.even[8 * b + j] + out.odd[8 * b + j];
    }
    out.bias[b] = -12 * sum;
    out.scale[b] = numeric::e4m3_to_f32(block.scale) * chunk_scale;
  }
}

void activate(const float* dots, const internal::ExpertScalars& s, float* h) {
  for (std::int64_t i = 0; i < 64; ++i)
    h[16 * (i / 16) + 8 * (i % 2) + (i % 16) / 2] = numeric::round_to_bf16(gated_at(dots, s, i));
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels table = {
      "scalar", {0, 1, 2, 3, 4, 5, 6, 7}, dots_nvfp4, dots_w4a16, dots_bf16, requantise, activate};
  return table;
}

}  // namespace kerf::op::cpu
