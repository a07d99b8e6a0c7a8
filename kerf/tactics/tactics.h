// Tiles and tactics as the op's launcher resolves them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kerf/op/op.h"

namespace kerf::tactics {

// Tiles (token rows) that NVFP4 experts run at, ascending.
inline constexpr std::array<int, 4> tiles = {8, 16, 32, 64};

// The tile that an untuned call runs at. A local expert has tokens * top_k / local routes on average, which
// is rounded up to a power of two first, as in the launcher (it matters for candidates like 192). The first
// candidate no smaller than that, or the last if all are smaller, marks a place in the list: the result is
// the candidate before it, or the first where none is. Candidates ascend; tokens 0 gives the first.
// Error{bug} for no candidates or no local experts.
int default_tile(std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts,
                 std::span<const int> candidates = tiles);

// -1 in either part means (default tile, -1); anything else is itself.
op::Tactic tactic_key(op::Tactic tactic, std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts);

}  // namespace kerf::tactics
