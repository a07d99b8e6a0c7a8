// config.json and hf_quant_config.json of a model directory: the facts that the routed experts need.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/checkpoint/expert_layers.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Tensors beside the experts, below a layer's prefix: the weight of the norm after them, and the bias of the
// router's selection.
inline constexpr std::string_view post_norm_name = "mlp.experts.post_expert_norm.weight";
inline constexpr std::string_view selection_bias_name = "mlp.gate.e_score_correction_bias";
// Those of the block around them: the router's weight, and Muse Spark's projection to the experts' width,
// norm after it, and projection back.
inline constexpr std::string_view gate_name = "mlp.gate.weight";
inline constexpr std::string_view pre_proj_name = "mlp.pre_expert_proj.weight";
inline constexpr std::string_view pre_norm_name = "mlp.pre_expert_norm.weight";
inline constexpr std::string_view post_proj_name = "mlp.post_expert_proj.weight";

// All of those.
inline constexpr std::array<std::string_view, 6> beside_experts = {
    post_norm_name, selection_bias_name, gate_name, pre_proj_name, pre_norm_name, post_proj_name};

// How the model chooses experts, in the checkpoint's own terms.
struct RouterConfig {
  std::string scoring = "softmax";  // "softmax" or "sigmoid"
  bool norm_topk_prob = true;       // a token's weights are divided by their sum
  double routed_scaling = 1.0;      // what weights are multiplied by then
  double logit_multiplier = 1.0;    // what logits are multiplied by first
  double sum_epsilon = 1e-20;       // added to that sum
  std::int64_t n_group = 0;         // groups of experts; up to 1: none
  std::int64_t topk_group = 0;      // groups that a token chooses from
  bool selection_bias = false;      // e_score_correction_bias takes part in the selection
  // The weights multiply the experts' input, not their output (Llama-4). kerf has no such step.
  bool weights_on_input = false;
  // Why kerf routes nothing for this model, where it computes nothing of the kind: file, and key and value or
  // what the family's code does. Routes that come with their weights are another matter. Empty elsewhere.
  std::string not_computed;
  // Where the file says that there is no selection bias, what says so; empty elsewhere.
  std::string no_bias_by;
  // What is taken for granted where the file leaves keys out: of a family, what its code does then; of a
  // model that kerf does not know, the usual.
  std::vector<std::string> assumptions;
};

// The per-route RMSNorm after the experts, x / sqrt(mean(x^2) + eps), where the model has one (Muse Spark).
// Its gain is gain_center + the stored weight, and multiplies x before or after.
struct PostNormConfig {
  double eps = 1e-8;
  double gain_center = 1.0;
  bool gain_before_norm = true;
};

// The way from the model's width to the experts' and back, where the model has one (Muse Spark): a
// projection, an RMSNorm of its result (then the gain, gain_center + the stored weight), and another
// projection after the experts.
struct PoolConfig {
  double norm_eps = 1e-5;
  double gain_center = 1.0;
};

// SwiGLU as the model computes it, on real values (not on raw accumulators): h = (clamp(up, -limit, limit) +
// beta) * g * sigmoid(alpha * g), g = min(gate, limit), as in gpt-oss.
struct SwigluConfig {
  double alpha = 1.0;
  double beta = 0.0;
  std::optional<double> limit;

  // Plain SwiGLU, silu(gate) * up.
  [[nodiscard]] bool plain() const { return alpha == 1.0 && beta == 0.0 && !limit; }
};

// Modules that a pattern names, and their algorithm: "NVFP4", "W4A16_NVFP4", or what else the file says
// ("FP8", "8-bit float").
struct QuantisedModules {
  std::string pattern;  // a name, a glob, "re:..." or a class ("Linear")
  std::string algo;
  std::string by = {};  // the key that says so
};

// The model as far as its routed experts go, from its configuration.
struct ModelConfig {
  std::string architecture;
  bool text_part = false;  // the file has other parts, and the text's under a key of its own
  std::string family;  // "qwen3-moe", ...: what is taken from model_type or the architecture; empty: unknown
  std::int64_t layers = 0;
  std::int64_t mtp_layers = 0;    // for predicting further tokens, which may stand behind those
  ExpertLayers expert_layers;     // which of them have routed experts
  std::int64_t experts = 0;       // E
  std::int64_t hidden = 0;        // H: the experts' own input and output width
  std::int64_t model_hidden = 0;  // the model's width (differs from H where experts are pooled)
  std::int64_t intermediate = 0;  // I
  std::int64_t top_k = 0;         // K
  std::string activation;         // "silu" always
  SwigluConfig swiglu;
  RouterConfig router;
  std::optional<PostNormConfig> post_norm;
  std::optional<PoolConfig> pool;
  std::int64_t shared_experts = 0;  // experts that every token takes; kerf computes none of them
  // Keys of config.json that kerf knows nothing about and reads nothing from, each as "key is value".
  std::vector<std::string> unknown_keys;
  // "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION" (quantised_modules says more), or empty where nothing is
  // quantised.
  std::string quant_algo;
  std::string quant_said_in;                        // file and key of what follows, for messages
  std::string quant_tool;                           // whose form it is: "ModelOpt", "compressed-tensors"
  std::int64_t group_size = 16;                     // values that share a block scale
  std::string excluded_by;                          // the key that the next are of
  std::vector<std::string> excluded_modules;        // names, globs, "re:..."
  std::vector<QuantisedModules> quantised_modules;  // empty: all that are not excluded
};

// Reads and checks the two files (hf_quant_config.json may be absent; config.json's quantization_config
// serves then). Error{checkpoint} for a missing, unreadable or inconsistent file, naming file, key, got and
// wanted; Error{unsupported} for a parameter that kerf does not implement (an activation, a quantisation
// algorithm), naming it and its value.
ModelConfig read_config(const std::filesystem::path& directory);

// The two files as they are, for who keeps them beside something that was made of the model.
struct ConfigTexts {
  std::string config;                // config.json
  std::optional<std::string> quant;  // hf_quant_config.json, where there is one
};
// Error{checkpoint} where config.json is missing, one of them cannot be read, or a stopped export left the
// directory.
ConfigTexts read_config_texts(const std::filesystem::path& directory);
// read_config() of them, with its errors; `directory` is for messages.
ModelConfig config_of(const ConfigTexts& texts, const std::filesystem::path& directory);

// The same from a config.json alone (`kerf plan` without weights): `path` is the file or its directory.
// Errors as of read_config().
ModelConfig read_model_config(const std::filesystem::path& path);

// The one or the other: both files where `path` is a directory, or a config.json beside a
// hf_quant_config.json; else the file alone. Errors as of read_config().
ModelConfig read_config_at(const std::filesystem::path& path);

// What is worth saying about a configuration that is read: its unknown keys, as one line.
std::vector<std::string> notes_of(const ModelConfig& config);

// How many layers have routed experts by the config: all of them where it does not say.
std::int64_t routed_layers(const ModelConfig& config);

// How many of those have experts that the quantisation leaves out (BF16), by excluded_modules and
// quantised_modules. Error{checkpoint} where those contradict each other, Error{unsupported} for a pattern
// that kerf cannot read or too many of them.
std::int64_t excluded_layers(const ModelConfig& config);
// The same, whose experts are weight-only (W4A16_NVFP4).
std::int64_t weight_only_layers(const ModelConfig& config);

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
