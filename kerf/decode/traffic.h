// How many bytes of experts a step reads: what decides its speed at small batch.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Bytes of weights and block scales (not the scalars) that the busiest of all ranks reads for one layer's
// step with these routes [T, K], each expert that is routed to counting once however many rows it serves. EP:
// whole experts, placed linearly over the ranks. Sliced: slices of the experts of a row, the widest of them.
// The same on every rank.
std::int64_t busiest_rank_bytes(const Layer& layer, Mode mode, std::span<const std::int32_t> ids,
                                const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
