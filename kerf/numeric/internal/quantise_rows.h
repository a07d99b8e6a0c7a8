// The bodies of quantise_rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kerf/numeric/nvfp4.h"

namespace kerf::numeric::internal {

// quantise_block over `blocks` blocks of 16 values, each taken through `to_float`: codes [blocks, 8], scales
// [blocks].
template <typename T, typename ToFloat>
void quantise_blocks(const T* x, std::size_t blocks, float gs, std::uint8_t* codes, std::uint8_t* scales,
                     Quantiser recipe, ToFloat to_float) {
  std::array<float, nvfp4_block> values{};
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t i = 0; i < nvfp4_block; ++i) values[i] = to_float(x[b * nvfp4_block + i]);
    const Nvfp4Block block = quantise_block(values, gs, recipe);
    scales[b] = block.scale;
    std::copy(block.codes.begin(), block.codes.end(), codes + b * block.codes.size());
  }
}

// The same with Quantiser::vllm and bf16 values, on vectors where the build has them.
void quantise_rows_vllm(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes,
                        std::uint8_t* scales);

}  // namespace kerf::numeric::internal
