// What a backend's list of tactics is: every tile with every config, best guess first, and the answers that
// follow from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kerf/op/internal/bound.h"
#include "kerf/op/op.h"

namespace kerf::op::internal {

// Configs ascending, tiles ascending within each.
template <std::size_t configs>
constexpr auto tactic_table() {
  std::array<Tactic, tiles.size() * configs> table;
  std::size_t i = 0;
  for (std::size_t config = 0; config < configs; ++config)
    for (const int tile : tiles) table[i++] = {tile, static_cast<int>(config)};
  return table;
}

// Those of use for a number of tokens (-1: all).
inline std::vector<Tactic> tactics_of_use(std::span<const Tactic> table, std::int64_t tokens) {
  std::vector<Tactic> out;
  for (const Tactic tactic : table)
    if (tile_is_of_use(tactic.tile, tokens)) out.push_back(tactic);
  return out;
}

// Nothing for a tactic of the table, or one of its tiles with the default config.
Verdict no_body(std::span<const Tactic> table, std::string_view backend, Tactic tactic);

}  // namespace kerf::op::internal
