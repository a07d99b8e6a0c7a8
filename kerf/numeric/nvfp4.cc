#include "kerf/numeric/nvfp4.h"

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/internal/quantise_rows.h"

namespace kerf::numeric {

namespace {

void check(std::size_t values, std::int64_t k, std::size_t codes, std::size_t scales) {
  if (k <= 0 || k % nvfp4_block != 0) fail(ErrorKind::unsupported, "row width {} is not a multiple of 16", k);
  if (values % static_cast<std::size_t>(k) != 0 || codes * 2 != values || scales * nvfp4_block != values)
    fail(ErrorKind::usage, "{} values of width {} do not fit {} code bytes and {} scale bytes", values, k,
         codes, scales);
}

template <typename T, typename ToFloat>
void quantise(std::span<const T> x, std::int64_t k, float gs, std::span<std::uint8_t> codes,
              std::span<std::uint8_t> scales, Quantiser recipe, ToFloat to_float) {
  check(x.size(), k, codes.size(), scales.size());
  const FpGuard guard;  // with subnormals flushed, small blocks would have other codes
  internal::quantise_blocks(x.data(), scales.size(), gs, codes.data(), scales.data(), recipe, to_float);
}

}  // namespace

void quantise_rows(std::span<const std::uint16_t> x_bf16, std::int64_t k, float gs,
                   std::span<std::uint8_t> codes, std::span<std::uint8_t> scales, Quantiser recipe) {
  if (recipe == Quantiser::vllm) {
    check(x_bf16.size(), k, codes.size(), scales.size());
    const FpGuard guard;
    internal::quantise_rows_vllm(x_bf16.data(), scales.size(), gs, codes.data(), scales.data());
    return;
  }
  quantise(x_bf16, k, gs, codes, scales, recipe, [](std::uint16_t v) { return bf16_to_f32(v); });
}

void quantise_rows(std::span<const float> x, std::int64_t k, float gs, std::span<std::uint8_t> codes,
                   std::span<std::uint8_t> scales, Quantiser recipe) {
  quantise(x, k, gs, codes, scales, recipe, [](float v) { return v; });
}

void dequantise_rows(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                     std::int64_t k, float factor, std::span<float> out) {
  check(out.size(), k, codes.size(), scales.size());
  const FpGuard guard;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const unsigned code = (codes[i / 2] >> (4 * (i % 2))) & 15U;
    out[i] = e2m1_to_f32(static_cast<std::uint8_t>(code)) * e4m3_to_f32(scales[i / nvfp4_block]) * factor;
  }
}

}  // namespace kerf::numeric
