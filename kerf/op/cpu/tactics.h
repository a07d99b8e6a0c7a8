// The CPU op's tactics: one table that says what runs, what is offered, tuned, cached, tested and shown. A
// tile's rows are one task's rows: small tiles spread an expert's rows over threads, large ones read its
// weights for more rows in one go. A config is how many of them share one pass over a weight tile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kerf/base/format.h"
#include "kerf/op/cpu/kernels.h"
#include "kerf/op/internal/tactic_table.h"
#include "kerf/op/op.h"

namespace kerf::op::cpu {

inline constexpr std::array<int, 3> rows_a_pass = {8, 4, 2};  // by config; the first is the default's
static_assert(std::ranges::all_of(rows_a_pass, [](int rows) { return rows <= most_rows_a_pass; }));

// All of them, best guess first.
inline constexpr auto tactic_table = internal::tactic_table<rows_a_pass.size()>();

// Rows a pass of a tactic; Error{unsupported} for a config that does not exist.
inline int pass_rows(Tactic tactic) {
  if (tactic.config < 0) return rows_a_pass[0];
  if (tactic.config >= static_cast<int>(rows_a_pass.size()))
    fail(ErrorKind::unsupported, "the cpu op has no config {}; there are 0 to {}", tactic.config,
         rows_a_pass.size() - 1);
  return rows_a_pass[static_cast<std::size_t>(tactic.config)];
}

}  // namespace kerf::op::cpu
