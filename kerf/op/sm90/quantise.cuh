// Rows of bf16 to NVFP4, by the vllm recipe: numeric::quantise_rows() on the device. Four threads share a
// block of 16 values.
#pragma once

#include <cstdint>

#include "kerf/numeric/nvfp4.h"

namespace kerf::op::sm90 {

struct Quantise {
  const uint2* x = nullptr;      // [rows, H] bf16, four values at a time
  const float* gs = nullptr;     // [1]
  std::uint16_t* a = nullptr;    // [rows, H/2] bytes, four codes at a time
  std::uint8_t* a_sf = nullptr;  // [rows, H/16]
  std::uint32_t quads = 0;       // rows * H / 4
};

// This thread's share, of `threads` (a multiple of 32).
__device__ inline void quantise(const Quantise& q, std::uint32_t thread, std::uint32_t threads) {
  if (thread >= q.quads) return;
  const float gs = *q.gs;
  const unsigned block_mask = 15U << (threadIdx.x & 28U);
  for (std::uint32_t i = thread; i < q.quads; i += threads) {
    const uint2 pair = q.x[i];
    const std::uint32_t bits[4] = {pair.x << 16, pair.x & 0xFFFF0000U, pair.y << 16, pair.y & 0xFFFF0000U};
    // The largest magnitude, compared by its bits: those of a NaN are above all others.
    std::uint32_t largest = 0;
    for (const std::uint32_t b : bits) largest = max(largest, b & 0x7FFFFFFFU);
    largest = max(largest, __shfl_xor_sync(block_mask, largest, 1));
    largest = max(largest, __shfl_xor_sync(block_mask, largest, 2));
    const std::uint8_t scale = numeric::detail::vllm_scale(__uint_as_float(largest), gs);
    const float factor = numeric::detail::vllm_factor(scale, gs);
    unsigned codes = 0;
    for (int j = 0; j < 4; ++j)
      codes |= unsigned{numeric::f32_to_e2m1(__uint_as_float(bits[j]) * factor)} << (4 * j);
    q.a[i] = static_cast<std::uint16_t>(codes);
    if (i % 4 == 0) q.a_sf[i / 4] = scale;
  }
}

}  // namespace kerf::op::sm90
