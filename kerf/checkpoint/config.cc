#include "kerf/checkpoint/config.h"

#include <algorithm>
#include <array>
#include <string>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/internal/dialect.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"
#include "kerf/checkpoint/internal/known_keys.h"
#include "kerf/checkpoint/internal/layer_keys.h"
#include "kerf/checkpoint/internal/quantisation.h"
#include "kerf/checkpoint/internal/quantised_experts.h"
#include "kerf/checkpoint/internal/routing_keys.h"

namespace kerf::checkpoint {

namespace {

using internal::Family;
using internal::Keys;
using internal::most_config_bytes;
using nlohmann::json;

constexpr double kShiftedAlpha = 1.702;
constexpr double kShiftedLimit = 7.0;

// Not sizes, which tensors are compared with, but what else there is no second source for.
constexpr internal::KeyNames kTold = {"num_experts_per_tok",
                                      "num_experts_per_token",
                                      "experts_per_token",
                                      "moe_topk",
                                      "moe_top_k",
                                      "top_k_experts",
                                      "hidden_act",
                                      "hidden_activation",
                                      "mlp_hidden_act",
                                      "swiglu_alpha",
                                      "swiglu_beta",
                                      "swiglu_limit",
                                      "scoring_func",
                                      "moe_router_activation_func",
                                      "score_function",
                                      "norm_topk_prob",
                                      "moe_renormalize",
                                      "routed_scaling_factor",
                                      "n_group",
                                      "num_expert_group",
                                      "topk_group",
                                      "topk_method",
                                      "use_routing_bias",
                                      "use_grouped_topk",
                                      "output_multiplier",
                                      "post_norm_eps",
                                      "moe_apply_router_weight_on_input",
                                      "first_k_dense_replace",
                                      "moe_layer_freq",
                                      "decoder_sparse_step",
                                      "mlp_only_layers",
                                      "interleave_moe_layer_step",
                                      "moe_layers",
                                      "moe_layers_enum",
                                      "mlp_layer_types",
                                      "layers_block_type",
                                      "hybrid_override_pattern",
                                      "num_dense_layers",
                                      "quantization_config"};

bool is_muse_spark(const Keys& keys, const std::vector<std::string>& architectures) {
  return keys.find("moe_hidden_size") != nullptr ||
         keys.string("model_type").value_or("").starts_with("muse_spark") ||
         std::any_of(architectures.begin(), architectures.end(),
                     [](const std::string& a) { return a.find("MuseSpark") != std::string::npos; });
}

// What a refusal adds to the name of an activation.
std::string_view formula_of(std::string_view activation) {
  if (activation.starts_with("gelu")) return " (GeGLU)";
  if (activation == "relu2") return " (ReLU2, not gated)";
  return "";
}

// silu, or the name of SwiGLU in one of its spellings.
std::string activation_of(const Keys& keys) {
  std::string out;
  const char* from = nullptr;
  for (const char* key : {"mlp_hidden_act", "hidden_act", "hidden_activation"}) {
    const auto value = keys.string(key);
    if (!value) continue;
    if (*value != "silu" && *value != "swiglu" && *value != "swigluoai")
      fail(ErrorKind::unsupported, "{}: {} is '{}'{}, kerf implements silu (SwiGLU)", keys.file(), key,
           shown(*value), formula_of(*value));
    const std::string own = *value == "swigluoai" ? *value : "silu";
    if (from != nullptr && own != out)
      fail(ErrorKind::checkpoint, "{}: {} but {}, wanted the same", keys.file(), keys.said({from}),
           keys.said({key}));
    out = own;
    from = key;
  }
  if (from == nullptr) fail(ErrorKind::checkpoint, "{}: no hidden_act, wanted silu", keys.file());
  return out;
}

// A key of SwiGLU that means nothing in a model of this family is refused: its own code may mean something.
void refuse_swiglu_key(const Keys& keys, const char* key, const Family& family) {
  if (const json* value = keys.find(key))
    fail(ErrorKind::unsupported, "{}: {} is {}, kerf does not know what it does in {} ({} have a meaning)",
         keys.file(), key, got(*value), family.name.empty() ? "a model that it does not know" : family.name,
         "swiglu_alpha and swiglu_limit of gpt-oss and MiniMax-M3, swiglu_limit of GLM-5-Next");
}

SwigluConfig swiglu_of(const Keys& keys, const Family& family, bool by_name) {
  SwigluConfig out;
  const internal::Swiglu kind = by_name ? internal::Swiglu::shifted : family.swiglu;
  refuse_swiglu_key(keys, "swiglu_beta", family);
  if (kind != internal::Swiglu::shifted) refuse_swiglu_key(keys, "swiglu_alpha", family);
  if (kind == internal::Swiglu::plain) refuse_swiglu_key(keys, "swiglu_limit", family);
  if (kind == internal::Swiglu::plain) return out;
  out.limit = keys.number("swiglu_limit", true);
  if (!out.limit && family.swiglu_limit > 0) out.limit = family.swiglu_limit;
  if (kind == internal::Swiglu::clamped) return out;
  if (!out.limit) out.limit = kShiftedLimit;
  out.alpha = keys.number("swiglu_alpha", true).value_or(kShiftedAlpha);
  out.beta = 1.0;
  return out;
}

// How many experts every token takes besides its routed ones. A model that only gives their width has one.
std::int64_t shared_experts_of(const Keys& keys) {
  const std::int64_t count = std::max(keys.integer("num_shared_experts", 0).value_or(0),
                                      keys.integer("n_shared_experts", 0).value_or(0));
  std::int64_t width = 0;
  for (const char* key : {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                          "shared_experts_intermediate_size", "shared_intermediate_size"})
    width = std::max(width, keys.integer(key, 0).value_or(0));
  return std::max<std::int64_t>(count, width > 0 ? 1 : 0);
}

void apply(internal::Quantisation quantisation, ModelConfig& config) {
  config.quant_algo = std::move(quantisation.algo);
  config.quant_said_in = std::move(quantisation.said_in);
  config.quant_tool = std::move(quantisation.tool);
  config.group_size = quantisation.group_size;
  config.excluded_by = std::move(quantisation.excluded_by);
  config.excluded_modules = std::move(quantisation.excluded);
  config.quantised_modules = std::move(quantisation.modules);
}

}  // namespace

namespace {

ModelConfig model_config_of(const std::string& text, const std::filesystem::path& file) {
  const json top = parse_json(text, file.string());
  const Keys keys(file.string(), top);

  ModelConfig out;
  const std::vector<std::string> architectures = keys.strings("architectures");
  const std::string model_type = keys.string("model_type").value_or("");
  const bool muse = is_muse_spark(keys, architectures);
  const Family family =
      muse ? internal::family_named("muse-spark") : internal::family_of(model_type, architectures);
  keys.same_in_both(kTold);
  out.family = family.name;
  out.architecture = architectures.empty() ? model_type : architectures.front();
  out.layers = keys.size({"num_hidden_layers"});
  out.mtp_layers = internal::read_mtp_layers(keys);
  out.expert_layers = internal::read_expert_layers(keys, family, out.layers, out.mtp_layers);
  out.experts = keys.size({"num_experts", "num_local_experts", "n_routed_experts"});
  out.top_k = keys.size({"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk",
                         "moe_top_k", "top_k_experts"});
  if (out.top_k > out.experts)
    fail(ErrorKind::checkpoint, "{}: {} experts per token, wanted at most the {} there are", keys.file(),
         out.top_k, out.experts);
  out.model_hidden = keys.size({"hidden_size"});
  out.hidden = keys.integer("moe_hidden_size", 1).value_or(out.model_hidden);
  // A dense model's key serves where every layer's feed-forward width is the experts'.
  const auto own_width = keys.integer("moe_intermediate_size", 1);
  const auto width = own_width ? own_width : keys.integer("intermediate_size", 1);
  if (!width)
    fail(ErrorKind::checkpoint, "{}: no moe_intermediate_size or intermediate_size, wanted an integer",
         keys.file());
  out.intermediate = *width;
  out.activation = activation_of(keys);
  out.swiglu = swiglu_of(keys, family, out.activation == "swigluoai");
  out.activation = "silu";
  out.router = internal::read_router(keys, family, muse, out.experts, out.top_k);
  out.shared_experts = shared_experts_of(keys);
  internal::refuse_unknown_keys(keys);
  if (muse) {
    out.pool = PoolConfig{};
    out.pool->norm_eps = keys.number("rms_norm_eps", false).value_or(out.pool->norm_eps);
    out.post_norm = PostNormConfig{};
    out.post_norm->eps = keys.number("post_norm_eps", false).value_or(out.post_norm->eps);
  }
  apply(internal::read_quantisation_config(keys), out);
  return out;
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(path, ignored);
  if (directory) refuse_stopped_export(path);
  const std::filesystem::path file = directory ? path / "config.json" : path;
  return model_config_of(read_text(file, most_config_bytes), file);
}

ConfigTexts read_config_texts(const std::filesystem::path& directory) {
  refuse_stopped_export(directory);
  ConfigTexts out{read_text(directory / "config.json", most_config_bytes), std::nullopt};
  const std::filesystem::path file = directory / "hf_quant_config.json";
  std::error_code ignored;
  // A link to nowhere counts as a file: reading it then fails with its name.
  if (std::filesystem::exists(std::filesystem::symlink_status(file, ignored)))
    out.quant = read_text(file, most_config_bytes);
  return out;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  return config_of(read_config_texts(directory), directory);
}

ModelConfig config_of(const ConfigTexts& texts, const std::filesystem::path& directory) {
  ModelConfig out = model_config_of(texts.config, directory / "config.json");
  if (!texts.quant) return out;
  const std::filesystem::path file = directory / "hf_quant_config.json";
  const json top = parse_json(*texts.quant, file.string());
  const Keys keys(file.string(), top);
  const json* inner = keys.find("quantization");
  if (inner == nullptr) fail(ErrorKind::checkpoint, "{}: no quantization, wanted an object", file.string());
  internal::Quantisation quantisation =
      internal::read_modelopt(Keys(file.string() + ": quantization", *inner));
  if (quantisation.algo.empty()) return out;
  if (!out.quant_algo.empty() && out.quant_algo != quantisation.algo)
    fail(ErrorKind::checkpoint, "{}: quant_algo is {}, but config.json's quantization_config says {}",
         file.string(), quantisation.algo, out.quant_algo);
  if (!out.quant_tool.empty() && out.quant_tool != quantisation.tool)
    fail(ErrorKind::checkpoint, "{}: is {}'s, but config.json's quantization_config is {}'s: wanted one",
         file.string(), quantisation.tool, out.quant_tool);
  apply(std::move(quantisation), out);
  return out;
}

ModelConfig read_config_at(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path directory =
      std::filesystem::is_directory(path, ignored) ? path : path.parent_path();
  const bool standard = directory == path || path.filename() == "config.json";
  const std::filesystem::path quantised = directory / "hf_quant_config.json";
  if (standard && std::filesystem::exists(std::filesystem::symlink_status(quantised, ignored)))
    return read_config(directory.empty() ? "." : directory);
  return read_model_config(path);
}

std::int64_t routed_layers(const ModelConfig& config) {
  if (!config.expert_layers.told()) return config.layers;
  return std::count(config.expert_layers.routed.begin(), config.expert_layers.routed.end(), true);
}

std::int64_t excluded_layers(const ModelConfig& config) {
  ModelConfig asked = config;
  if (asked.quant_algo.empty()) asked.quant_algo = "NVFP4";  // the lists alone are asked about
  internal::QuantisedExperts quantised(asked);
  const bool quantised_elsewhere = !quantised.elsewhere().empty();
  // Whether the lists leave out the layer's experts, whatever the model calls itself and them.
  const auto excluded = [&](std::int64_t layer) {
    bool named = quantised_elsewhere;
    for (const std::string_view base : internal::layer_bases) {
      const std::string prefix = fmt::format("{}layers.{}.", base, layer);
      if (!quantised.may_name(prefix)) continue;
      for (const std::string_view root : internal::expert_roots) {
        const std::string experts = fmt::format("{}{}", prefix, root.substr(0, root.size() - 1));
        const std::array<std::string, 3> parts = {experts + ".0.gate_proj", experts + ".0.w1",
                                                  experts + ".gate_up_proj"};
        if (quantised.excludes(layer, experts, parts)) return true;
        named = named || !quantised.algo(layer, experts, parts).empty();
      }
    }
    return !named;
  };
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    count += config.expert_layers.may_be_in(layer) && excluded(layer) ? 1 : 0;
  return count;
}

}  // namespace kerf::checkpoint
