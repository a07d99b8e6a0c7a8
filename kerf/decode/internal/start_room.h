// Whether there is room for what a runtime is about to load.
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/runtime.h"

namespace kerf::decode::internal {

// Local. Asked before anything is loaded, on every rank: nothing where there is room for these layers or
// nobody says how much there is; otherwise memory, with the sum. `used`: bytes of the options' room that the
// ranks have taken already.
Verdict no_room_for(const checkpoint::Checkpoint& from, const std::vector<std::int64_t>& layers,
                    const RuntimeOptions& options, const Rank& rank, std::int64_t used = 0);

// Collective: bytes of host memory that all ranks have taken of the options' room; 0 where the options name
// none, and what is free is asked of the machine.
std::int64_t in_use_of_all(const RuntimeOptions& options, const Rank& rank);

}  // namespace kerf::decode::internal
