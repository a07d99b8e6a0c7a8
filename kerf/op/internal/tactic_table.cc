#include "kerf/op/internal/tactic_table.h"

#include <algorithm>

#include "kerf/base/format.h"

namespace kerf::op::internal {

Verdict no_body(std::span<const Tactic> table, std::string_view backend, Tactic tactic) {
  const bool known = std::ranges::any_of(table, [&](Tactic t) {
    return t.tile == tactic.tile && (t.config == tactic.config || tactic.config == -1);
  });
  if (known) return std::nullopt;
  return because(ErrorKind::unsupported,
                 "the {} op has no tactic of tile {}, config {}; tiles are {}, configs 0 to {}", backend,
                 tactic.tile, tactic.config, fmt::join(tiles, ", "), table.back().config);
}

}  // namespace kerf::op::internal
