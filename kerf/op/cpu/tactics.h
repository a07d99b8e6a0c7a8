// The CPU op's tactics: one table that says what runs, what is offered, tuned, cached, tested and shown. A
// tile's rows are one task's rows: small tiles spread an expert's rows over threads, large ones read its
// weights for more rows in one go. A config is how many of them share one pass over a weight tile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/op/cpu/kernels.h"
#include "kerf/op/internal/bound.h"
#include "kerf/op/op.h"

namespace kerf::op::cpu {

inline constexpr std::array<int, 3> rows_a_pass = {8, 4, 2};  // by config; the first is the default's
static_assert(std::ranges::all_of(rows_a_pass, [](int rows) { return rows <= most_rows_a_pass; }));

// All of them, best guess first.
inline constexpr auto tactic_table = [] {
  std::array<Tactic, tiles.size() * rows_a_pass.size()> table;
  std::size_t i = 0;
  for (std::size_t config = 0; config < rows_a_pass.size(); ++config)
    for (const int tile : tiles) table[i++] = {tile, static_cast<int>(config)};
  return table;
}();

// Those of use for a number of tokens (-1: all).
inline std::vector<Tactic> tactics_of_use(std::int64_t tokens) {
  std::vector<Tactic> out;
  for (const Tactic tactic : tactic_table)
    if (internal::tile_is_of_use(tactic.tile, tokens)) out.push_back(tactic);
  return out;
}

// Nothing for a tactic of the table, or one of its tiles with the default config.
inline Verdict no_body(Tactic tactic) {
  const bool known = std::ranges::any_of(tactic_table, [&](Tactic t) {
    return t.tile == tactic.tile && (t.config == tactic.config || tactic.config == -1);
  });
  if (known) return std::nullopt;
  return because(ErrorKind::unsupported,
                 "the cpu op has no tactic of tile {}, config {}; tiles are {}, configs 0 to {}", tactic.tile,
                 tactic.config, fmt::join(tiles, ", "), rows_a_pass.size() - 1);
}

// Rows a pass of a tactic; Error{unsupported} for a config that does not exist.
inline int pass_rows(Tactic tactic) {
  if (tactic.config < 0) return rows_a_pass[0];
  if (tactic.config >= static_cast<int>(rows_a_pass.size()))
    fail(ErrorKind::unsupported, "the cpu op has no config {}; there are 0 to {}", tactic.config,
         rows_a_pass.size() - 1);
  return rows_a_pass[static_cast<std::size_t>(tactic.config)];
}

}  // namespace kerf::op::cpu
