// The keys that say how experts are chosen and weighed, and what a family's code does where they are silent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"

namespace kerf::checkpoint::internal {

// Of E experts, top_k of them a token. Error{checkpoint} for keys that contradict each other or the number of
// experts, Error{unsupported} for values that kerf does not know, and for keys that the family's code does
// not read with another value than what it does: each names file, key, value and what is wanted. Values that
// kerf knows and has no routing method for are told of in not_computed: routes may come from elsewhere.
RouterConfig read_router(const Keys& keys, const Family& family, std::int64_t experts, std::int64_t top_k);

// The keys that it reads: two of them in different parts of one file must say the same.
std::span<const std::string_view> router_key_names();

}  // namespace kerf::checkpoint::internal
