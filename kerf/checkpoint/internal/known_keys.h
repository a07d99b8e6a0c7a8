// Keys of config.json that concern routed experts: those that kerf reads, those that change nothing in what
// it computes, and those that do but may hold a value at which they change nothing.
#pragma once

#include <string>
#include <vector>

#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"

namespace kerf::checkpoint::internal {

// Error{unsupported} that names key and value where a key sounds like routed experts (its name has "expert",
// "moe", "router", "topk", "swiglu" or the like in it) and is not in the list, or is and holds a value that
// would change the result. Returned are keys that kerf does not know at all, each as "key is value": most
// likely other parts', but nobody can tell by a name. null is no value. Sub-objects are not looked into, but
// for those that Keys looks into.
// `read`: keys that the caller's readers have a meaning or a refusal for.
std::vector<std::string> judge_keys(const Keys& keys, const Family& family, KeyNames read);

}  // namespace kerf::checkpoint::internal
