// How many bytes of experts a step reads: what decides its speed at small batch.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/decode/layer.h"

namespace kerf::decode {

// Bytes of weights and block scales (not the scalars) that the busiest rank reads for one layer's step with
// these routes [T, K], each expert that is routed to counting once however many rows it serves. EP: whole
// experts, placed linearly over `ranks`, the most on any rank. Sliced: a slice of every distinct expert,
// equal for all ranks.
std::int64_t busiest_rank_bytes(const Layer& layer, Mode mode, std::span<const std::int32_t> ids, int ranks);

}  // namespace kerf::decode
