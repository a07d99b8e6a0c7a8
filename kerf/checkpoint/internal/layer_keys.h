// The keys that say which layers have routed experts. Every family has its own; where a file has several,
// they must say the same.
#pragma once

#include <cstdint>

#include "kerf/checkpoint/expert_layers.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"

namespace kerf::checkpoint::internal {

// Layers for predicting further tokens (MTP) that may stand behind the model's own; 0 where the file names
// none.
std::int64_t read_mtp_layers(const Keys& keys);

// Of `layers` layers. Lists may go on over `mtp` more. Where no key says it: every layer in families whose
// code knows no other, else not told. Error{checkpoint} for a key that makes no sense, two that say different
// things (both are named), and where no layer is left; Error{unsupported} for a kind of layer that kerf does
// not know.
ExpertLayers read_expert_layers(const Keys& keys, const Family& family, std::int64_t layers,
                                std::int64_t mtp);

}  // namespace kerf::checkpoint::internal
