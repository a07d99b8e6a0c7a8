// Facts that must be equal on every rank before a collective may rely on them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kerf/base/error.h"
#include "kerf/comm/group.h"

namespace kerf::expert_tp::internal {

struct Fact {
  std::string_view name;
  std::int64_t value = 0;
};

// Collective. Nothing where all facts are equal on every rank; otherwise one reason, the same on every rank,
// with the name, the first rank that differs from rank 0, and both values.
Verdict differing(std::span<const Fact> facts, comm::Group& group, std::string_view what);

}  // namespace kerf::expert_tp::internal
