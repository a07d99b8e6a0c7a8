#include "kerf/checkpoint/internal/size_keys.h"

#include <algorithm>
#include <array>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

using nlohmann::json;

// All names of one fact after another, so that parts of them are the names of each.
constexpr auto kNames = std::to_array<std::string_view>(
    {// experts
     "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
     // of a token
     "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k",
     "top_k_experts", "moe_k",
     // their inner width
     "moe_intermediate_size", "expert_ffn_hidden_size",
     // shared experts: how many, and how wide
     "num_shared_experts", "n_shared_experts", "moe_num_shared_experts", "num_shared_expert",
     "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
     "shared_experts_intermediate_size", "shared_intermediate_size", "share_expert_dim",
     "share_expert_dims"});
constexpr KeyNames kExperts = KeyNames(kNames).subspan(0, 4);
constexpr KeyNames kTopK = KeyNames(kNames).subspan(4, 7);
constexpr KeyNames kWidth = KeyNames(kNames).subspan(11, 2);
constexpr KeyNames kShared = KeyNames(kNames).subspan(13);
static_assert(kTopK.back() == "moe_k" && kWidth.front() == "moe_intermediate_size" &&
              kShared.front() == "num_shared_experts");

// How many experts every token takes besides its routed ones; of a list, in one layer. A model that only
// gives their width has one.
std::int64_t shared_experts_of(const Keys& keys) {
  std::int64_t count = 0;
  for (const std::string_view key : kShared) {
    const json* value = keys.find(key);
    if (value == nullptr) continue;
    const bool width = key.find("share_expert_dim") == 0 || key.ends_with("intermediate_size");
    std::int64_t most = 0;
    if (value->is_array()) {
      for (const json& entry : *value) {
        if (!entry.is_number_integer() || entry < 0 || entry > most_size)
          keys.wrong(key, entry, fmt::format("integers from 0 to {} in it", most_size));
        most = std::max(most, entry.get<std::int64_t>());
      }
    } else {
      most = keys.integer(key, 0).value_or(0);
    }
    count = std::max<std::int64_t>(count, width ? most > 0 : most);
  }
  return count;
}

}  // namespace

std::int64_t read_layers(const Keys& keys, const Family& family) {
  constexpr std::array<std::string_view, 1> names = {"num_hidden_layers"};
  const auto whole = keys.integer("num_hidden_layers", 1);
  const auto longcats = keys.integer("num_layers", 1);
  if (family.name == "longcat" && longcats) return *longcats;
  if (whole || longcats) return whole ? *whole : *longcats;
  // Transformers 5 writes one part a layer (Nemotron-H) and no number of them.
  const json* parts = keys.find("layers_block_type");
  if (parts == nullptr || !parts->is_array() || parts->empty()) keys.none_of(names);
  return std::min(static_cast<std::int64_t>(parts->size()), most_size);
}

void read_sizes(const Keys& keys, const Family& family, ModelConfig& config) {
  const auto size = [&](KeyNames names) {
    const auto out = keys.same_in_layers(names, config.layers, config.layers + config.mtp_layers);
    if (!out) keys.none_of(names);
    return *out;
  };
  config.experts = size(kExperts);
  config.top_k = size(kTopK);
  if (config.top_k > config.experts)
    fail(ErrorKind::checkpoint, "{}: {} experts per token, wanted at most the {} there are", keys.file(),
         config.top_k, config.experts);
  constexpr std::array<std::string_view, 1> hidden = {"hidden_size"};
  const auto model_hidden = keys.integer(hidden[0], 1);
  if (!model_hidden) keys.none_of(hidden);
  config.model_hidden = *model_hidden;
  const auto own_hidden = keys.integer("moe_hidden_size", 1);
  if (own_hidden && !family.pools)
    fail(ErrorKind::unsupported,
         "{}: {}, kerf knows it in Muse Spark alone (model_type muse_spark, or architectures of that name)",
         keys.file(), keys.said("moe_hidden_size"));
  config.hidden = own_hidden.value_or(config.model_hidden);
  // A dense model's key serves where every layer's feed-forward width is the experts'.
  const auto own_width = keys.same_in_layers(kWidth, config.layers, config.layers + config.mtp_layers);
  const auto width = own_width ? own_width : keys.integer("intermediate_size", 1);
  if (!width)
    fail(ErrorKind::checkpoint, "{}: no moe_intermediate_size or intermediate_size, wanted an integer",
         keys.file());
  config.intermediate = *width;
  config.shared_experts = shared_experts_of(keys);
}

std::span<const std::string_view> size_key_names() { return kNames; }
std::span<const std::string_view> top_k_key_names() { return kTopK; }

}  // namespace kerf::checkpoint::internal
