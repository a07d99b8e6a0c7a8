// NVFP4, NVIDIA's format: along K, each 16 values share one e4m3 scale; codes are e2m1, two to a byte, the
// low nibble first; an f32 global scale goes with the whole tensor. value = e2m1 * e4m3 * scale. Files store
// the scale itself (weight_scale_2, input_scale); the quantisers below take its reciprocal gs, so that value
// = e2m1 * e4m3 / gs.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kerf/numeric/e2m1.h"
#include "kerf/numeric/e4m3.h"

#pragma GCC visibility push(default)
namespace kerf::numeric {

inline constexpr int nvfp4_block = 16;  // values that share a scale

// One quantised block: the scale byte and 8 code bytes.
struct Nvfp4Block {
  std::uint8_t scale = 0;
  std::array<std::uint8_t, nvfp4_block / 2> codes{};

  friend bool operator==(const Nvfp4Block&, const Nvfp4Block&) = default;
};

// The recipes in use. They differ in how they treat subnormals and a block scale that rounds to zero.
//   fast   FlashInfer's default, built with fast maths: subnormal operands and results count as zero
//   exact  FlashInfer's exact-division switch (its other operations still flush subnormals)
//   vllm   vLLM's scaled_fp4_quant, and kerf's default: zeros where the block scale underflows
enum class Quantiser { fast, exact, vllm };

namespace detail {

constexpr float absolute(float x) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU);
}

// Subnormals become zero of the same sign.
constexpr float flushed(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : x;
}

// Largest magnitude; NaN where any value is NaN.
constexpr float largest_magnitude(std::span<const float> x) {
  float a = 0.0F;
  for (const float v : x) {
    const float m = absolute(v);
    if (m > a || m != m) a = m;
    if (a != a) return a;
  }
  return a;
}

constexpr Nvfp4Block encode(std::span<const float, nvfp4_block> x, std::uint8_t scale, float t, bool flush) {
  Nvfp4Block block;
  block.scale = scale;
  for (std::size_t i = 0; i < block.codes.size(); ++i) {
    const auto code = [&](float v) -> unsigned {
      return f32_to_e2m1(flush ? flushed(flushed(v) * t) : v * t);
    };
    block.codes[i] = static_cast<std::uint8_t>(code(x[2 * i]) | (code(x[2 * i + 1]) << 4));
  }
  return block;
}

// The vllm recipe: a block's scale from its largest magnitude, and what its values are multiplied by.
constexpr std::uint8_t vllm_scale(float largest, float gs) {
  return f32_to_e4m3(gs * (largest * (1.0F / 6.0F)));
}
constexpr float vllm_factor(std::uint8_t scale, float gs) {
  const float s = e4m3_to_f32(scale);
  return s != 0.0F ? 1.0F / (s * (1.0F / gs)) : 0.0F;
}

}  // namespace detail

// Quantises 16 values with the global scale gs (= 1 / input_scale; finite, above 0). By the vllm recipe:
// scale = e4m3(gs * (max |x| * 1/6)), codes = e2m1(x * t) with t = 1 / (scale * (1 / gs)), 0 where the scale
// is 0; each operation in f32, rounded once. NaN in the block gives scale 0x7F and codes of 7. The
// reciprocals are IEEE divisions; the recipes' own instruction (an approximate reciprocal) agrees wherever gs
// is a power of two, and elsewhere differs only for values within about 2^-22 of a rounding boundary.
constexpr Nvfp4Block quantise_block(std::span<const float, nvfp4_block> x, float gs,
                                    Quantiser recipe = Quantiser::vllm) {
  constexpr float sixth = 1.0F / 6.0F;
  const float a = detail::largest_magnitude(x);
  switch (recipe) {
    case Quantiser::fast: {
      const float amax = detail::flushed(a);
      const std::uint8_t s = f32_to_e4m3(detail::flushed(gs * detail::flushed(amax * sixth)));
      float t = 0.0F;
      if (amax != 0.0F) {
        const float product = detail::flushed(e4m3_to_f32(s) * detail::flushed(1.0F / gs));
        // The hardware's reciprocal of zero is infinity, and then 0 * inf = NaN -> code 7.
        t = product == 0.0F ? std::numeric_limits<float>::infinity() : detail::flushed(1.0F / product);
      }
      return detail::encode(x, s, t, true);
    }
    case Quantiser::exact: {
      const float amax = detail::flushed(a);
      const float s_real = amax == 0.0F ? 0.0F : detail::flushed(amax * detail::flushed(gs * sixth));
      const std::uint8_t s = f32_to_e4m3(s_real);
      float t = 0.0F;
      if (amax != 0.0F) {
        constexpr float most = std::numeric_limits<float>::max();
        const float product = detail::flushed(e4m3_to_f32(s) * detail::flushed(1.0F / gs));
        t = product == 0.0F ? most : std::min(1.0F / product, most);
      }
      return detail::encode(x, s, t, true);
    }
    case Quantiser::vllm:
      break;
  }
  const std::uint8_t s = detail::vllm_scale(a, gs);
  return detail::encode(x, s, detail::vllm_factor(s, gs), false);
}

// Quantises the intermediate between the two GEMMs: its global scale is already inside the values. scale =
// e4m3(max |h| * 1/6), codes = e2m1(h * t) with t = 1 / scale, 0 where the scale is 0.
constexpr Nvfp4Block requantise_block(std::span<const float, nvfp4_block> h) {
  const std::uint8_t s = f32_to_e4m3(detail::largest_magnitude(h) * (1.0F / 6.0F));
  const float scale = e4m3_to_f32(s);
  return detail::encode(h, s, scale != 0.0F ? 1.0F / scale : 0.0F, false);
}

// Value of element i (0 to 15) of a block, without the global scale. Exact; NaN where the scale is.
constexpr float dequantise(const Nvfp4Block& block, int i) {
  const unsigned byte = block.codes[static_cast<std::size_t>(i / 2)];
  return e2m1_to_f32(static_cast<std::uint8_t>((byte >> (4 * (i % 2))) & 15U)) * e4m3_to_f32(block.scale);
}

// Rows [rows, K] of bf16 (raw bits) or f32 -> codes [rows, K/2] (two e2m1 codes a byte, the low nibble first)
// and linear scales [rows, K/16] (e4m3), each block as by quantise_block(). Here and below:
// Error{unsupported} unless K is a positive multiple of 16, Error{usage} where the spans do not hold as many
// rows.
void quantise_rows(std::span<const std::uint16_t> x_bf16, std::int64_t k, float gs,
                   std::span<std::uint8_t> codes, std::span<std::uint8_t> scales,
                   Quantiser recipe = Quantiser::vllm);
void quantise_rows(std::span<const float> x, std::int64_t k, float gs, std::span<std::uint8_t> codes,
                   std::span<std::uint8_t> scales, Quantiser recipe = Quantiser::vllm);

// Codes [rows, K/2] and linear scales [rows, K/16] -> out [rows, K], f32: e2m1 * e4m3 * `factor` (the
// tensor's global scale, weight_scale_2 or input_scale), rounded once.
void dequantise_rows(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                     std::int64_t k, float factor, std::span<float> out);

}  // namespace kerf::numeric
#pragma GCC visibility pop
