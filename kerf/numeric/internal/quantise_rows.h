// The vector body of quantise_rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kerf::numeric::internal {

// quantise_block with Quantiser::vllm over `blocks` blocks of 16 bf16 values: codes [blocks, 8], scales
// [blocks].
void quantise_rows_vllm(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes,
                        std::uint8_t* scales);

}  // namespace kerf::numeric::internal
