// quantise_rows with kerf's own recipe, block by block.
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/internal/quantise_rows.h"

namespace kerf::numeric::internal {

void quantise_rows_vllm(const std::uint16_t* x, std::size_t blocks, float gs, std::uint8_t* codes,
                        std::uint8_t* scales) {
  quantise_blocks(x, blocks, gs, codes, scales, Quantiser::vllm, bf16_to_f32);
}

}  // namespace kerf::numeric::internal
