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

// Value by value, 2w * x of block b of row r.
template <typename At>
float block_dot(const std::uint8_t* codes, std::int64_t b, At at) {
  const auto place = static_cast<std::size_t>(b % 8);
  std::int32_t sum = 0;
  for (std::size_t j = 0; j < 8; ++j) {
    const unsigned byte = codes[8 * b + static_cast<std::int64_t>(j)];
    sum += numeric::e2m1_doubled[byte & 15U] * at(spot(place, j, false)) +
           numeric::e2m1_doubled[byte >> 4] * at(spot(place, j, true));
  }
  return static_cast<float>(sum);
}
float block_dot(const std::uint8_t* codes, std::int64_t b, const Chunk& x) {
  return block_dot(codes, b, [&](Spot s) { return x.x[s.run][s.byte]; });
}
float block_dot(const std::uint8_t* codes, std::int64_t b, const WideChunk& x) {
  return block_dot(codes, b, [&](Spot s) { return 256 * x.high[s.run][s.byte] + x.low[s.run][s.byte]; });
}

// X: Chunk or WideChunk. Block dots are multiples of the products' unit, weight scales 2^-8 of theirs, and
// the chunk's scale makes them meet.
template <typename X>
void dots_nvfp4(const Nvfp4Tile& tile, const Nvfp4Tile&, const X* const* rows, int count, float* dots) {
  for (int t = 0; t < count; ++t) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::uint8_t* codes = tile.codes + r * (tile.k / 2);
      dots[t * kRows + r] = numeric::canonical_dot(
          tile.k / 16, [&](std::int64_t b) { return block_dot(codes, b, rows[t][b / 8]); },
          [&](std::int64_t b) {
            return (weight_scale(tile, r, b) * 0x1p-8F) *
                   rows[t][b / 8].scale[static_cast<std::size_t>(b % 8)];
          });
    }
  }
}

void dots_bf16(const Bf16Tile& tile, const Bf16Tile&, const float* const* rows, int count, float* dots) {
  for (int t = 0; t < count; ++t) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      double sum = 0;
      for (std::int64_t k = 0; k < tile.k; ++k)
        sum += static_cast<double>(
                   numeric::bf16_to_f32(tile.values[(k / 64) * tile.block_stride + r * 64 + k % 64])) *
               rows[t][bf16_place(k)];
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
    std::array<std::int8_t, 8> even{};
    std::array<std::int8_t, 8> odd{};
    std::int32_t sum = 0;
    for (std::size_t j = 0; j < 8; ++j) {
      even[j] = numeric::e2m1_doubled[block.codes[j] & 15U];
      odd[j] = numeric::e2m1_doubled[block.codes[j] >> 4];
      sum += even[j] + odd[j];
    }
    put_block(even.data(), odd.data(), sum, numeric::e4m3_to_f32(block.scale),
              static_cast<std::size_t>(4 * half + g), out);
  }
}

void activate(const float* dots, const internal::ExpertScalars& s, float* h) {
  for (std::int64_t i = 0; i < 64; ++i)
    h[16 * (i / 16) + 8 * (i % 2) + (i % 16) / 2] = numeric::round_to_bf16(gated_at(dots, s, i));
}

void write_row(const float* dots, float scale, std::uint16_t* out) {
  for (std::int64_t r = 0; r < kRows; ++r) out[layout::w2_source(r)] = numeric::f32_to_bf16(scale * dots[r]);
}

constexpr BlockOrder natural = {0, 1, 2, 3, 4, 5, 6, 7};

void expand_row(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t k, Chunk* out) {
  expand(codes, scales, k, natural, out);
}

}  // namespace

const Kernels& scalar_kernels() {
  static constexpr Kernels table = {
      "scalar",  natural,    expand_row, dots_nvfp4<Chunk>, dots_nvfp4<WideChunk>,
      dots_bf16, requantise, activate,   write_row};
  return table;
}

}  // namespace kerf::op::cpu
