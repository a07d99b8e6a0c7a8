#include "kerf/tools/internal/synth_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kerf/numeric/splitmix.h"

namespace kerf::tools::internal {

namespace {

using Json = nlohmann::ordered_json;
using tensor::Dtype;
using tensor::Shape;

bool is_bf16(const SynthOptions& o, std::int64_t layer) {
  return std::binary_search(o.bf16_layers.begin(), o.bf16_layers.end(), layer);
}

std::string layer_prefix(const SynthOptions& o, std::int64_t layer) {
  return fmt::format("model.{}layers.{}.", o.model == SynthModel::muse_spark ? "language_model." : "", layer);
}

float reciprocal_root(std::int64_t width) { return 1.0F / std::sqrt(static_cast<float>(width)); }

// The global scales of one expert. They depend on (seed, layer, expert) alone, so that every dialect has the
// same ones.
struct ExpertScales {
  float gate, up, down, input, intermediate;
};
ExpertScales expert_scales(const SynthOptions& o, std::int64_t layer, std::int64_t expert) {
  const std::uint64_t word = numeric::SplitMix(
      stream_of(o.seed, fmt::format("scales {}", layer)))[static_cast<std::uint64_t>(expert)];
  const float unit = code_rms() * scale_rms();  // RMS of codes times block scales
  // Gate and up share a scale in three experts of four, as fused quantisation gives it; in the others the up
  // matrix was quantised on its own.
  const bool apart = (word & 3U) == 0;
  const float eighths = static_cast<float>((word >> 8) & 7U) / 8.0F;
  ExpertScales s{};
  s.gate = reciprocal_root(o.hidden) / unit;
  s.up = apart ? s.gate * (1.125F + eighths) : s.gate;
  s.down = reciprocal_root(o.intermediate) / unit;
  // Largest magnitudes seen while calibrating, over 6 * 448: 4 to 5 at the input, 8 to 12 between the GEMMs.
  s.input = (4.0F + static_cast<float>((word >> 16) & 0xFFU) / 256.0F) / 2688.0F;
  s.intermediate = (8.0F + static_cast<float>((word >> 24) & 0xFFU) / 64.0F) / 2688.0F;
  return s;
}

// Collects a layer's tensors.
class Builder {
 public:
  Builder(const SynthOptions& options, std::int64_t layer)
      : options_(options), prefix_(layer_prefix(options, layer)) {}

  void add(std::string_view suffix, Dtype dtype, Shape shape, Fill fill, float deviation = 1.0F) {
    std::string name = prefix_ + std::string(suffix);
    Source source{fill, stream_of(options_.seed, name), deviation, {}};
    tensors_.push_back({{std::move(name), dtype, shape}, std::move(source)});
  }
  void add_values(std::string_view suffix, Shape shape, std::vector<float> values) {
    tensors_.push_back(
        {{prefix_ + std::string(suffix), Dtype::f32, shape}, {Fill::f32_values, 0, 1.0F, std::move(values)}});
  }
  std::vector<SynthTensor> take() { return std::move(tensors_); }

 private:
  const SynthOptions& options_;
  std::string prefix_;
  std::vector<SynthTensor> tensors_;
};

void add_fused(Builder& to, const SynthOptions& o, std::int64_t layer) {
  const auto [e, h, i] = std::array{o.experts, o.hidden, o.intermediate};
  const std::string base = "mlp.experts.";
  if (is_bf16(o, layer)) {
    to.add(base + "gate_up_proj", Dtype::bf16, {e, 2 * i, h}, Fill::bf16_normal, reciprocal_root(h));
    to.add(base + "down_proj", Dtype::bf16, {e, h, i}, Fill::bf16_normal, reciprocal_root(i));
    return;
  }
  std::vector<float> scale13, input13, scale2, input2;
  for (std::int64_t x = 0; x < e; ++x) {
    const ExpertScales s = expert_scales(o, layer, x);
    scale13.insert(scale13.end(), {s.gate, s.up});
    input13.insert(input13.end(), {s.input, s.input});
    scale2.push_back(s.down);
    input2.push_back(s.intermediate);
  }
  to.add(base + "gate_up_proj", Dtype::u8, {e, 2 * i, h / 2}, Fill::codes);
  to.add(base + "gate_up_proj_weight_scale", Dtype::f8_e4m3, {e, 2 * i, h / 16}, Fill::block_scales);
  to.add_values(base + "gate_up_proj_weight_scale_2", {e, 2}, std::move(scale13));
  to.add_values(base + "gate_up_proj_input_scale", {e, 2}, std::move(input13));
  to.add(base + "down_proj", Dtype::u8, {e, h, i / 2}, Fill::codes);
  to.add(base + "down_proj_weight_scale", Dtype::f8_e4m3, {e, h, i / 16}, Fill::block_scales);
  to.add_values(base + "down_proj_weight_scale_2", {e}, std::move(scale2));
  to.add_values(base + "down_proj_input_scale", {e}, std::move(input2));
}

void add_per_expert(Builder& to, const SynthOptions& o, std::int64_t layer) {
  for (std::int64_t x = 0; x < o.experts; ++x) {
    const ExpertScales s = expert_scales(o, layer, x);
    struct Matrix {
      const char* name;
      std::int64_t rows, columns;
      float scale, input;
    };
    const std::array<Matrix, 3> matrices = {
        {{"gate_proj", o.intermediate, o.hidden, s.gate, s.input},
         {"up_proj", o.intermediate, o.hidden, s.up, s.input},
         {"down_proj", o.hidden, o.intermediate, s.down, s.intermediate}}};
    for (const Matrix& m : matrices) {
      const std::string base = fmt::format("mlp.experts.{}.{}.", x, m.name);
      if (is_bf16(o, layer)) {
        to.add(base + "weight", Dtype::bf16, {m.rows, m.columns}, Fill::bf16_normal,
               reciprocal_root(m.columns));
        continue;
      }
      to.add(base + "weight", Dtype::u8, {m.rows, m.columns / 2}, Fill::codes);
      to.add(base + "weight_scale", Dtype::f8_e4m3, {m.rows, m.columns / 16}, Fill::block_scales);
      to.add_values(base + "weight_scale_2", {}, {m.scale});
      to.add_values(base + "input_scale", {}, {m.input});
    }
  }
}

std::vector<std::string> excluded(const SynthOptions& o) {
  std::vector<std::string> names = {"lm_head"};
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    names.push_back(layer_prefix(o, layer) + "mlp.gate");
    if (o.model == SynthModel::muse_spark)
      for (const char* projection : {"mlp.pre_expert_proj", "mlp.post_expert_proj"})
        names.push_back(layer_prefix(o, layer) + projection);
    if (is_bf16(o, layer)) names.push_back(layer_prefix(o, layer) + "mlp.experts*");
  }
  return names;
}

}  // namespace

std::vector<SynthTensor> layer_tensors(const SynthOptions& o, std::int64_t layer) {
  Builder to(o, layer);
  const std::int64_t width = model_width(o);
  if (o.model == SynthModel::muse_spark) {
    // Logits of unit-RMS rows, multiplied by 2^-2.5, spread over about one unit.
    to.add("mlp.gate.weight", Dtype::f32, {o.experts, width}, Fill::f32_normal,
           5.0F * reciprocal_root(width));
    to.add("mlp.gate.e_score_correction_bias", Dtype::f32, {o.experts}, Fill::f32_normal, 0.02F);
    to.add("mlp.pre_expert_proj.weight", Dtype::bf16, {o.hidden, width}, Fill::bf16_normal,
           reciprocal_root(width));
    to.add("mlp.pre_expert_norm.weight", Dtype::bf16, {o.hidden}, Fill::bf16_normal, 0.125F);
    add_fused(to, o, layer);
    to.add("mlp.experts.post_expert_norm.weight", Dtype::bf16, {o.hidden}, Fill::bf16_normal, 0.125F);
    to.add("mlp.post_expert_proj.weight", Dtype::bf16, {width, o.hidden}, Fill::bf16_normal,
           reciprocal_root(o.hidden));
  } else {
    to.add("mlp.gate.weight", Dtype::bf16, {o.experts, width}, Fill::bf16_normal, reciprocal_root(width));
    add_per_expert(to, o, layer);
  }
  return to.take();
}

std::string quant_config_json(const SynthOptions& o) {
  const Json json = {{"producer", {{"name", "modelopt"}, {"version", "0.0.0"}}},
                     {"quantization",
                      {{"quant_algo", "NVFP4"},
                       {"kv_cache_quant_algo", nullptr},
                       {"group_size", 16},
                       {"exclude_modules", excluded(o)}}}};
  return json.dump(2) + "\n";
}

std::string config_json(const SynthOptions& o) {
  const Json quantization = {{"quant_method", "modelopt"},
                             {"quant_algo", "NVFP4"},
                             {"group_size", 16},
                             {"kv_cache_quant_algo", nullptr},
                             {"exclude_modules", excluded(o)}};
  Json json;
  if (o.model == SynthModel::muse_spark) {
    json = {{"architectures", {"MuseSparkForConditionalGeneration"}},
            {"model_type", "muse_spark"},
            {"text_config",
             {{"model_type", "muse_spark_text"},
              {"hidden_size", model_width(o)},
              {"moe_hidden_size", o.hidden},
              {"moe_intermediate_size", o.intermediate},
              {"num_local_experts", o.experts},
              {"num_experts_per_tok", o.top_k},
              {"num_shared_experts", 0},
              {"num_hidden_layers", o.layers},
              {"mlp_layer_types", std::vector<std::string>(static_cast<std::size_t>(o.layers), "sparse")},
              {"routed_scaling_factor", 1.0},
              {"output_multiplier", 0.17677669529663687},
              {"rms_norm_eps", 1e-5},
              {"post_norm_eps", 1e-8},
              {"hidden_act", "silu"}}},
            {"quantization_config", quantization}};
  } else {
    json = {{"architectures", {"Qwen3MoeForCausalLM"}},
            {"model_type", "qwen3_moe"},
            {"hidden_size", o.hidden},
            {"moe_intermediate_size", o.intermediate},
            {"num_experts", o.experts},
            {"num_experts_per_tok", o.top_k},
            {"num_hidden_layers", o.layers},
            {"decoder_sparse_step", 1},
            {"mlp_only_layers", Json::array()},
            {"norm_topk_prob", true},
            {"hidden_act", "silu"},
            {"quantization_config", quantization}};
  }
  return json.dump(2) + "\n";
}

}  // namespace kerf::tools::internal
