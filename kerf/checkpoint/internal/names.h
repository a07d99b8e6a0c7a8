// Names of tensors: which layer they belong to, and what they can be of its routed experts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kerf/checkpoint/config.h"
#include "kerf/checkpoint/internal/dialect.h"

namespace kerf::checkpoint::internal {

// "model.layers.3.mlp.gate.weight": prefix "model.layers.3.", layer 3, rest "mlp.gate.weight".
struct LayerName {
  std::string_view prefix;
  std::int64_t layer = 0;
  std::string_view rest;
};
// Nothing for a name under none of the prefixes that models use, or without a number of a layer (at most nine
// digits, and no zeros before it).
std::optional<LayerName> parse_layer_name(std::string_view name);
// Of a name under one of those prefixes and without such a number, what stands in its place and what follows:
// "4294967296" and "mlp.gate.weight".
struct OddLayerName {
  std::string_view number;
  std::string_view rest;
};
std::optional<OddLayerName> parse_odd_layer_name(std::string_view name);

// What a name's rest says about routed experts.
enum class ExpertNaming : std::uint8_t {
  none,        // below none of the experts' roots
  per_expert,  // a known tensor of one expert
  stacked,     // a known tensor of all experts
  post_norm,   // the norm after the experts, shared by all
  unknown,     // below a root, but nothing that kerf knows
};
struct ExpertName {
  ExpertNaming naming = ExpertNaming::none;
  std::int64_t expert = -1;  // per_expert only
  std::string_view suffix;   // per_expert only: "up_proj.weight_scale"
  std::string_view root;     // "mlp.experts."
  Dialects dialects = 0;     // in which it is one
};
ExpertName parse_expert_name(std::string_view rest);

// The names under which models keep a tensor beside the experts, kerf's own (config.h) first: the router's
// weight and its selection bias have several.
std::span<const std::string_view> spellings(std::string_view name);

// Of a name's rest: what it says the layer has that the block around the experts does not compute ("a bias of
// the router's logits", "shared experts"; "this tensor" for whatever else stands where models keep their
// experts). Empty for what the block computes, and for everything elsewhere.
std::string_view beyond_block(std::string_view rest);

using checkpoint::post_norm_name;
using checkpoint::selection_bias_name;

}  // namespace kerf::checkpoint::internal
