// Tiles and tactics as the op's launcher resolves them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kerf/op/op.h"

#pragma GCC visibility push(default)
namespace kerf::tactics {

// The tile that an untuned call runs at. A local expert has tokens * top_k / local routes on average, which
// is rounded up to a power of two first, as in the launcher (it matters for candidates like 192). The first
// candidate no smaller than that, or the last if all are smaller, marks a place in the list: the result is
// the candidate before it, or the first where none is. Candidates ascend; tokens 0 gives the first.
// Here and below: Error{bug} for no candidates, no local experts and numbers below 0.
int default_tile(std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts,
                 std::span<const int> candidates = op::tiles);

// What a tactic resolves to: -1 in either part means (default tile, -1); anything else is itself.
op::Tactic tactic_key(op::Tactic tactic, std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts);

// The keys that a step of some tokens can come to: the default's first, then those of `valid`, each once.
// Tiles above `largest_tile` are left out, the default's too: no metadata is kept for them.
std::vector<op::Tactic> tactic_keys(std::span<const op::Tactic> valid, std::int64_t tokens,
                                    std::int64_t top_k, std::int64_t local_experts, int largest_tile);

}  // namespace kerf::tactics
#pragma GCC visibility pop
