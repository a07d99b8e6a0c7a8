// The sm_90a op's tactics: one list that says what runs, what is offered, tuned, cached, tested and shown. A
// tile is what the metadata groups an expert's rows into; a config is a variant of the kernels (each file of
// kernels says what its configs are; all take all of them).
#pragma once

#include <array>
#include <vector>

#include "kerf/op/internal/bound.h"
#include "kerf/op/op.h"

namespace kerf::op::sm90 {

inline constexpr int configs = 2;

inline constexpr auto tactic_table = [] {
  std::array<Tactic, tiles.size() * configs> table;
  std::size_t i = 0;
  for (int config = 0; config < configs; ++config)
    for (const int tile : tiles) table[i++] = {tile, config};
  return table;
}();

// Those of use for a number of tokens (-1: all).
inline std::vector<Tactic> tactics_of_use(std::int64_t tokens) {
  std::vector<Tactic> out;
  for (const Tactic tactic : tactic_table)
    if (internal::tile_is_of_use(tactic.tile, tokens)) out.push_back(tactic);
  return out;
}

}  // namespace kerf::op::sm90
