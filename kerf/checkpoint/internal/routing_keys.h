// The keys that say how experts are chosen and weighed, and what a family's code does where they are silent.
#pragma once

#include <cstdint>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"

namespace kerf::checkpoint::internal {

// Of E experts, top_k of them a token; `muse`: Muse Spark's. Error{checkpoint} for keys that contradict each
// other or the number of experts, Error{unsupported} for values that kerf does not know: each names file,
// key, value and what is wanted. Values that kerf knows and has no routing method for are told of in
// not_computed: routes may come from elsewhere.
RouterConfig read_router(const Keys& keys, const Family& family, bool muse, std::int64_t experts,
                         std::int64_t top_k);

}  // namespace kerf::checkpoint::internal
