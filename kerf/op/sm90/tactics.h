// The sm_90a op's tactics: one list that says what runs, what is offered, tuned, cached, tested and shown. A
// tile is what the metadata groups an expert's rows into; a config is a variant of the kernels (each file of
// kernels says what its configs are; all take all of them).
#pragma once

#include "kerf/op/internal/tactic_table.h"

namespace kerf::op::sm90 {

inline constexpr int configs = 2;

inline constexpr auto tactic_table = internal::tactic_table<configs>();

}  // namespace kerf::op::sm90
