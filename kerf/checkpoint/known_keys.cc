#include "kerf/checkpoint/internal/known_keys.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/other_keys.h"
#include "kerf/checkpoint/internal/routing_keys.h"
#include "kerf/checkpoint/internal/size_keys.h"

namespace kerf::checkpoint::internal {

namespace {

using nlohmann::json;

// What a key's name has in it where it may be about routed experts.
constexpr auto kWords = std::to_array<std::string_view>(
    {"expert", "moe",        "router",     "routed",   "routing",    "topk",     "swiglu",
     "geglu",  "scoring",    "score_func", "renorm",   "hidden_act", "act_fn",   "glu_",
     "_glu",   "activation", "route_",     "mlp_bias", "n_group",    "gate_act", "gating"});

// The same, but for what sounds of other parts ("attn_output_gate_type").
constexpr auto kVagueWords = std::to_array<std::string_view>(
    {"clamp", "sigmoid", "mlp_type", "gate_type", "ffn_type", "mlp_act", "ffn_act"});

// Read by the readers of sizes, with a meaning or a refusal of its own; besides those that judge_keys() is
// told of, router_key_names() and size_key_names().
constexpr auto kRead = std::to_array<std::string_view>({"moe_hidden_size"});

// About training, about shared experts (which kerf does not compute, and says so), about attention or other
// parts, or about the precision of a router's logits and of sums with shared experts.
constexpr auto kBeside = std::to_array<std::string_view>(
    {// training
     "output_router_logits", "router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise",
     "moe_jitter_eps", "moe_loss_weight", "moe_aux_loss_coef", "moe_aux_loss_coeff", "moe_z_loss_coeff",
     "moe_aux_loss_lambda", "moe_z_loss_lambda", "moe_orthogonal_loss_lambda", "moe_dropout_prob",
     "moe_all_to_all_dropout", "moe_capacity", "moe_router_load_balancing_type", "num_experts_per_group",
     // shared experts
     "shared_moe_mode", "shared_expert_combination_strategy", "moe_shared_expert_overlap",
     "use_mixed_mlp_moe", "swiglu_limits_shared", "enable_moe_fp32_combine",
     // attention, other parts
     "index_topk", "index_topk_freq", "index_topk_pattern", "index_topk_blocks", "mamba_hidden_act",
     "n_groups", "mamba_n_groups", "vision_hidden_act", "projector_hidden_act",
     // logits come in f32
     "router_dtype", "moe_router_dtype", "moe_gate_dtype",
     // ERNIE's router, which kerf does not compute; LongCat's experts that compute nothing, where there are
     // any
     "moe_norm_min", "moe_use_aux_free", "zero_expert_type"});

// Keys of one family about something else than routed experts.
struct OfFamily {
  std::string_view family;
  std::string_view key;
};
constexpr auto kOfFamily = std::to_array<OfFamily>({{"laguna", "gating"}});  // of attention

// Change the result, but not at this value. Looked for whatever words their names have.
struct Neutral {
  std::string_view key;
  const char* value;  // JSON
};
constexpr auto kNeutral = std::to_array<Neutral>({{"mlp_bias", "false"},
                                                  {"router_bias", "false"},
                                                  {"moe_router_bias", "false"},
                                                  {"expert_bias", "false"},
                                                  {"moe_router_logit_softcapping", "0"},
                                                  {"router_logit_softcapping", "0"},
                                                  {"zero_expert_num", "0"},
                                                  {"expert_capacity", "0"},
                                                  {"moe_latent_size", "0"},
                                                  {"moe_every_n_layer", "1"},
                                                  {"moe_layer_offset", "0"},
                                                  {"moe_layer_num_skipped", "0"},
                                                  {"moe_drop_tokens", "false"},
                                                  {"moe_random_routing_dropped_token", "false"},
                                                  {"group_limited_greedy", "false"},
                                                  {"multi_gate", "false"},
                                                  {"router_type", "\"topN\""},
                                                  {"moe_gate", "\"topk\""},
                                                  {"enable_moe_block", "true"},
                                                  {"is_moe", "true"},
                                                  {"use_moe", "true"},
                                                  {"add_bias_linear", "false"},
                                                  {"use_bias", "false"},
                                                  {"use_mlp_bias", "false"},
                                                  {"gated_linear_unit", "true"},
                                                  {"num_hash_routed_layers", "0"}});

// Only what is about the experts' own mathematics: the bare word is in other keys' names, too.
bool concerns_experts(std::string_view name) {
  std::string key(name);
  std::transform(key.begin(), key.end(), key.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  // Other parts' and tools' own, but for what calls itself the experts'.
  if (key.ends_with("_config") && !key.starts_with("moe") && !key.starts_with("router") &&
      !key.starts_with("expert") && !key.starts_with("ffn"))
    return false;
  if (key == "ffn_config") return true;
  const auto has = [&](std::string_view word) { return key.find(word) != std::string::npos; };
  if (!sounds_of_other_parts(key) && std::any_of(kVagueWords.begin(), kVagueWords.end(), has)) return true;
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    const std::size_t at = key.find(word);
    // num_attention_groups has n_group in it, and prenorm renorm.
    const bool inside =
        (word == "n_group" || word == "renorm") && at != 0 && at != std::string::npos && key[at - 1] != '_';
    return at != std::string::npos && !inside;
  });
}

template <typename List>
bool holds(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

// Whether it is a key that kerf does not know, and that may say anything.
bool unknown(const Keys& keys, const Family& family, KeyNames read, const std::string& key,
             const json& value) {
  if (value.is_null() || holds(read, key) || holds(kRead, key) || holds(kBeside, key) || of_other_parts(key))
    return false;
  if (holds(router_key_names(), key) || holds(size_key_names(), key)) return false;
  if (std::any_of(kOfFamily.begin(), kOfFamily.end(),
                  [&](const OfFamily& o) { return o.family == family.name && o.key == key; }))
    return false;
  const auto* const neutral =
      std::find_if(kNeutral.begin(), kNeutral.end(), [&](const Neutral& n) { return n.key == key; });
  if (neutral != kNeutral.end()) {
    if (value != json::parse(neutral->value))
      fail(ErrorKind::unsupported, "{}: {} is {}, kerf implements {}", keys.file(), key, got(value),
           neutral->value);
    return false;
  }
  if (concerns_experts(key))
    fail(ErrorKind::unsupported,
         "{}: {} is {}: kerf does not know this key, which may change the routed experts", keys.file(),
         shown(key), got(value));
  return !sounds_of_other_parts(key);
}

}  // namespace

std::vector<std::string> judge_keys(const Keys& keys, const Family& family, KeyNames read) {
  std::vector<std::string> out;
  for (const Keys::Part& part : keys.parts())
    for (const auto& entry : part.object->items())
      if (unknown(keys, family, read, entry.key(), entry.value()))
        out.push_back(fmt::format("{}{} is {}", part.path, shown(entry.key()), got(entry.value())));
  return out;
}

}  // namespace kerf::checkpoint::internal
