// Commands that load experts ask first whether this machine has room for them.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/ranks.h"

namespace kerf::cli {

// What is about to be loaded and run.
struct Load {
  std::vector<std::int64_t> layers;
  std::int64_t tokens = 1;  // of the largest step
  bool expert_tp = false;
  bool exact = false;           // tails
  bool block = false;           // the blocks around the experts, too
  bool layer_by_layer = false;  // one layer is there at a time
};

// Error{memory} with the sum, term by term, where it has not.
void require_room(const checkpoint::Checkpoint& from, const RankOptions& options, const Load& load);

}  // namespace kerf::cli
