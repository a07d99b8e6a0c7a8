// The keys that say how many experts there are, how wide they are, and how many a token takes.
#pragma once

#include <span>
#include <string_view>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"

namespace kerf::checkpoint::internal {

// How many layers there are: num_hidden_layers. LongCat counts halves of its layers there, and layers in
// num_layers.
std::int64_t read_layers(const Keys& keys, const Family& family);

// Fills experts, top_k, model_hidden, hidden, intermediate and shared_experts of a config whose layers and
// mtp_layers are there. Error{checkpoint} for sizes that are missing, no numbers, or contradict each other;
// Error{unsupported} for those that are others in each layer, and for moe_hidden_size where the family is not
// known to have experts of another width than the model.
void read_sizes(const Keys& keys, const Family& family, ModelConfig& config);

// Those keys.
std::span<const std::string_view> size_key_names();
// Those of them that no tensor can be compared with.
std::span<const std::string_view> top_k_key_names();

}  // namespace kerf::checkpoint::internal
