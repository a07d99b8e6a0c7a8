#include "kerf/checkpoint/config.h"

#include <algorithm>
#include <array>
#include <string>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/json.h"
#include "kerf/base/text.h"
#include "kerf/checkpoint/export_facts.h"
#include "kerf/checkpoint/internal/dialect.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/keys.h"
#include "kerf/checkpoint/internal/known_keys.h"
#include "kerf/checkpoint/internal/layer_keys.h"
#include "kerf/checkpoint/internal/quantisation.h"
#include "kerf/checkpoint/internal/quantised_experts.h"
#include "kerf/checkpoint/internal/routing_keys.h"
#include "kerf/checkpoint/internal/size_keys.h"

namespace kerf::checkpoint {

namespace {

using internal::Family;
using internal::Keys;
using internal::most_config_bytes;
using nlohmann::json;

constexpr double kShiftedAlpha = 1.702;
constexpr double kShiftedLimit = 7.0;

// Not sizes, which tensors are compared with, but what else there is no second source for; besides
// router_key_names() and top_k_key_names().
constexpr auto kTold = std::to_array<std::string_view>({"hidden_act",
                                                        "hidden_activation",
                                                        "mlp_hidden_act",
                                                        "activation_function",
                                                        "swiglu_alpha",
                                                        "swiglu_beta",
                                                        "swiglu_limit",
                                                        "swiglu_limits",
                                                        "post_norm_eps",
                                                        "first_k_dense_replace",
                                                        "moe_layer_freq",
                                                        "is_moe_layer",
                                                        "decoder_sparse_step",
                                                        "mlp_only_layers",
                                                        "interleave_moe_layer_step",
                                                        "moe_layers",
                                                        "moe_layers_enum",
                                                        "mlp_layer_types",
                                                        "layers_block_type",
                                                        "hybrid_override_pattern",
                                                        "num_dense_layers",
                                                        "moe_layer_start_index",
                                                        "moe_layer_end_index",
                                                        "moe_layer_interval",
                                                        "expert_layer_period",
                                                        "expert_layer_offset",
                                                        "quantization_config"});

Family family_of(const Keys& keys) {
  const std::vector<std::string> architectures = keys.strings("architectures");
  const std::string model_type = keys.string("model_type").value_or("");
  const bool muse = model_type.starts_with("muse_spark") ||
                    std::any_of(architectures.begin(), architectures.end(), [](const std::string& a) {
                      return a.find("MuseSpark") != std::string::npos;
                    });
  const Family out = internal::family_of(muse ? "muse_spark" : model_type, architectures);
  if (!out.other_experts.empty())
    fail(ErrorKind::unsupported, "{}: {}: {} has {}, which kerf does not implement", keys.file(),
         keys.said(model_type.empty() ? "architectures" : "model_type"), out.name, out.other_experts);
  return out;
}

// What a refusal adds to the name of an activation.
std::string_view formula_of(std::string_view activation) {
  if (activation.starts_with("gelu")) return " (GeGLU)";
  if (activation == "relu2") return " (ReLU2, not gated)";
  return "";
}

// silu, or the name of SwiGLU in one of its spellings.
std::string activation_of(const Keys& keys, const Family& family) {
  std::string out;
  std::string_view from;
  const auto take = [&](std::string_view key, const std::string& value, const std::string& where) {
    if (value != "silu" && value != "swiglu" && value != "swigluoai")
      fail(ErrorKind::unsupported, "{}: {} is '{}'{}{}, kerf implements silu (SwiGLU)", keys.file(), key,
           shown(value), formula_of(value), where);
    return value == "swigluoai" ? value : "silu";
  };
  for (const std::string_view key :
       {"mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function"}) {
    const auto value = keys.string(key);
    if (!value) continue;
    const std::string own = take(key, *value, "");
    if (!from.empty() && own != out)
      fail(ErrorKind::checkpoint, "{}: {} but {}, wanted the same", keys.file(), keys.said(from),
           keys.said(key));
    out = own;
    from = key;
  }
  if (!from.empty()) return out;
  if (family.activation.empty()) fail(ErrorKind::checkpoint, "{}: no hidden_act, wanted silu", keys.file());
  return take("hidden_act", std::string(family.activation),
              fmt::format(" in {}'s code where the file has none", family.name));
}

// A key of SwiGLU that means nothing in a model of this family is refused: its own code may mean something.
void refuse_swiglu_key(const Keys& keys, std::string_view key, const Family& family) {
  if (const json* value = keys.find(key))
    fail(ErrorKind::unsupported, "{}: {} is {}, kerf does not know what it does in {} ({} have a meaning)",
         keys.file(), key, got(*value), family.name.empty() ? "a model that it does not know" : family.name,
         "swiglu_alpha and swiglu_limit of gpt-oss and MiniMax-M3, swiglu_limit of GLM-5-Next");
}

// Limits of each layer (Step-3.5): 0 and null are none, and others differ from layer to layer.
void refuse_swiglu_limits(const Keys& keys) {
  const json* limits = keys.find("swiglu_limits");
  if (limits == nullptr) return;
  const bool none = limits->is_array() && std::all_of(limits->begin(), limits->end(), [](const json& limit) {
                      return limit.is_null() || limit == 0;
                    });
  if (!none)
    fail(ErrorKind::unsupported, "{}: swiglu_limits is {}, kerf implements one limit for all layers, and 0",
         keys.file(), got(*limits));
}

SwigluConfig swiglu_of(const Keys& keys, const Family& family, bool by_name) {
  SwigluConfig out;
  const internal::Swiglu kind = by_name ? internal::Swiglu::shifted : family.swiglu;
  refuse_swiglu_limits(keys);
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

// Those that Muse Spark has around its experts.
void read_norms(const Keys& keys, const Family& family, ModelConfig& config) {
  const auto post_norm_eps = keys.number("post_norm_eps", false);
  if (post_norm_eps && !family.pools)
    fail(ErrorKind::unsupported, "{}: {}, kerf knows a norm after the experts in Muse Spark alone",
         keys.file(), keys.said("post_norm_eps"));
  if (!family.pools) return;
  config.pool = PoolConfig{};
  config.pool->norm_eps = keys.number("rms_norm_eps", false).value_or(config.pool->norm_eps);
  config.post_norm = PostNormConfig{};
  config.post_norm->eps = post_norm_eps.value_or(config.post_norm->eps);
  const auto take = [&](std::string_view key, double value) {
    if (keys.find(key) == nullptr)
      config.router.assumptions.push_back(fmt::format("no {}: {}, as in {}'s code", key, value, family.name));
  };
  take("rms_norm_eps", config.pool->norm_eps);
  take("post_norm_eps", config.post_norm->eps);
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
  const json top = parse_python_json(text, file.string());
  const Keys keys(file.string(), top);

  ModelConfig out;
  out.text_part = keys.parts().size() > 1;
  const std::vector<std::string> architectures = keys.strings("architectures");
  const Family family = family_of(keys);
  keys.same_in_all(kTold);
  keys.same_in_all(internal::router_key_names());
  keys.same_in_all(internal::top_k_key_names());
  out.family = family.name;
  out.architecture = architectures.empty() ? keys.string("model_type").value_or("") : architectures.front();
  out.layers = internal::read_layers(keys, family);
  out.mtp_layers = internal::read_mtp_layers(keys);
  out.expert_layers = internal::read_expert_layers(keys, family, out.layers, out.mtp_layers);
  internal::read_sizes(keys, family, out);
  out.activation = activation_of(keys, family);
  out.swiglu = swiglu_of(keys, family, out.activation == "swigluoai");
  out.activation = "silu";
  out.router = internal::read_router(keys, family, out.experts, out.top_k);
  out.unknown_keys = internal::judge_keys(keys, family, kTold);
  read_norms(keys, family, out);
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

namespace {

// Two files that both say what is quantised must say the same of every layer's experts.
void compare_quantisations(const ModelConfig& one, const ModelConfig& other) {
  const std::vector<std::string> a = internal::algos_of_layers(one);
  const std::vector<std::string> b = internal::algos_of_layers(other);
  const auto in_words = [](const std::string& algo) {
    return algo.empty() ? std::string("not quantised") : shown(algo);
  };
  for (std::size_t l = 0; l < a.size(); ++l)
    if (a[l] != b[l])
      fail(ErrorKind::checkpoint, "{}: layer {}: its experts are {}, but {} by {}: wanted the same in both",
           one.quant_said_in, l, in_words(a[l]), in_words(b[l]), other.quant_said_in);
}

}  // namespace

ModelConfig config_of(const ConfigTexts& texts, const std::filesystem::path& directory) {
  ModelConfig out = model_config_of(texts.config, directory / "config.json");
  if (!texts.quant) return out;
  const std::filesystem::path file = directory / "hf_quant_config.json";
  const json top = parse_python_json(*texts.quant, file.string());
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
  ModelConfig both = out;
  apply(std::move(quantisation), both);
  if (!out.quant_algo.empty()) compare_quantisations(both, out);
  return both;
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

std::vector<std::string> notes_of(const ModelConfig& config) {
  constexpr std::size_t most = 100;      // keys named
  constexpr std::size_t most_text = 60;  // bytes of each
  if (config.unknown_keys.empty()) return {};
  std::vector<std::string> named;
  for (const std::string& key : config.unknown_keys)
    if (named.size() < most) named.push_back(cut(key, most_text));
  const std::size_t all = config.unknown_keys.size();
  const std::size_t left = all - named.size();
  return {fmt::format(
      "config.json: {} key{} that kerf does not know, taken to say nothing of routed experts: "
      "{}{}",
      all, all == 1 ? "" : "s", fmt::join(named, ", "), left > 0 ? fmt::format(" and {} more", left) : "")};
}

std::int64_t routed_layers(const ModelConfig& config) {
  if (!config.expert_layers.told()) return config.layers;
  return std::count(config.expert_layers.routed.begin(), config.expert_layers.routed.end(), true);
}

namespace {

// Layers that may have routed experts, of those that the lists say this of.
std::int64_t layers_of(const ModelConfig& config, std::string_view algo) {
  const std::vector<std::string> algos = internal::algos_of_layers(config);
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    count += config.expert_layers.may_be_in(layer) && algos[static_cast<std::size_t>(layer)] == algo ? 1 : 0;
  return count;
}

}  // namespace

std::int64_t excluded_layers(const ModelConfig& config) { return layers_of(config, {}); }

std::int64_t weight_only_layers(const ModelConfig& config) { return layers_of(config, "W4A16_NVFP4"); }

}  // namespace kerf::checkpoint
