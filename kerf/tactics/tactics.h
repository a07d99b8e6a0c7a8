// Tiles and tactics as the op's launcher resolves them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kerf/op/op.h"

namespace kerf::tactics {

// Tiles (token rows) that NVFP4 experts run at, ascending.
inline constexpr std::array<int, 4> tiles = {8, 16, 32, 64};

// The tile that an untuned call runs at: the smallest candidate that covers the average routes a local expert
// (tokens * top_k / local), one step down, at least the first. Where candidates are no powers of two (192),
// the average is rounded up to one first, as the launcher does. Candidates ascend; tokens 0 gives the first.
// Error{bug} for no candidates or no local experts.
int default_tile(std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts,
                 std::span<const int> candidates = tiles);

// -1 in either part means (default tile, -1); anything else is itself.
op::Tactic tactic_key(op::Tactic tactic, std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts);

}  // namespace kerf::tactics
