// Names of tensors: which layer they belong to, and which part of which routed expert they are. Two namings:
// "mlp.experts.7.up_proj.weight_scale" (per expert) and "mlp.experts.gate_up_proj_weight_scale" (fused).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kerf/checkpoint/config.h"

namespace kerf::checkpoint::internal {

enum class Projection : std::uint8_t { gate, up, down };
enum class Part : std::uint8_t { weight, block_scale, global_scale, input_scale };

inline constexpr std::array<Projection, 3> all_projections = {Projection::gate, Projection::up,
                                                              Projection::down};

// What names call them: "gate_proj", "weight_scale_2".
std::string_view name(Projection projection);
std::string_view name(Part part);

// "model.layers.3.mlp.gate.weight": prefix "model.layers.3.", layer 3, rest "mlp.gate.weight".
struct LayerName {
  std::string_view prefix;
  std::int64_t layer = 0;
  std::string_view rest;
};
// Nothing for a name under none of the prefixes that models in this dialect use.
std::optional<LayerName> parse_layer_name(std::string_view name);

// What a name's rest says about routed experts.
enum class ExpertNaming : std::uint8_t {
  none,        // not below mlp.experts.
  per_expert,  // a known tensor of one expert
  fused,       // a known tensor of all experts
  post_norm,   // the norm after the experts, shared by all
  unknown,     // below mlp.experts., but nothing that kerf knows
};
struct ExpertName {
  ExpertNaming naming = ExpertNaming::none;
  std::int64_t expert = -1;  // per_expert only
  std::string_view suffix;   // per_expert only: "up_proj.weight_scale"
};
ExpertName parse_expert_name(std::string_view rest);

using checkpoint::post_norm_name;
using checkpoint::selection_bias_name;

}  // namespace kerf::checkpoint::internal
