#include "kerf/tools/internal/synth_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "kerf/checkpoint/dialect.h"
#include "kerf/numeric/splitmix.h"

namespace kerf::tools::internal {

namespace {

using Json = nlohmann::ordered_json;
using checkpoint::Dialect;
using checkpoint::Part;
using checkpoint::Projection;
using tensor::Dtype;
using tensor::Shape;

bool is_bf16(const SynthOptions& o, std::int64_t layer) {
  return std::binary_search(o.bf16_layers.begin(), o.bf16_layers.end(), layer);
}

const Dialect& dialect_of(const SynthOptions& o) { return checkpoint::dialect_named(dialect_name(o)); }

// Where such a dialect's experts stand, and the router beside them.
struct Home {
  std::string_view dialect, root, gate;
};
constexpr std::array<Home, 4> homes = {
    {{"w1-w3-w2", "block_sparse_moe.experts.", "block_sparse_moe.gate.weight"},
     {"compressed-tensors-w1-w3-w2", "block_sparse_moe.experts.", "block_sparse_moe.gate.weight"},
     {"llama4", "feed_forward.experts.", "feed_forward.router.weight"},
     {"gpt-oss", "mlp.experts.", "mlp.router.weight"}}};
Home home_of(const SynthOptions& o) {
  const std::string_view name = dialect_name(o);
  const auto* const found =
      std::find_if(homes.begin(), homes.end(), [&](const Home& h) { return h.dialect == name; });
  return found == homes.end() ? Home{name, "mlp.experts.", "mlp.gate.weight"} : *found;
}
std::string_view root_of(const SynthOptions& o) { return home_of(o).root; }
std::string_view gate_of(const SynthOptions& o) { return home_of(o).gate; }

// Whether compressed-tensors would have written it.
bool compressed(const SynthOptions& o) { return dialect_of(o).divisors; }

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '.' ? std::string("\\.") : std::string(1, c);
  return out;
}

std::string layer_prefix(const SynthOptions& o, std::int64_t layer) {
  return fmt::format("model.{}layers.{}.", o.model == SynthModel::muse_spark ? "language_model." : "", layer);
}

float reciprocal_root(std::int64_t width) { return 1.0F / std::sqrt(static_cast<float>(width)); }

// A scale that some f32 is the divisor of: dialects that store divisors read back 1 / divisor.
float reachable(float scale) { return 1.0F / (1.0F / scale); }

// The global scales of one expert. They depend on (seed, layer, expert) alone, so that every dialect has the
// same ones.
struct ExpertScales {
  float gate, up, down, input, intermediate;

  [[nodiscard]] float weight(Projection p) const {
    return p == Projection::gate ? gate : p == Projection::up ? up : down;
  }
  [[nodiscard]] float rows(Projection p) const { return p == Projection::down ? intermediate : input; }
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
  for (float* scale : {&s.gate, &s.up, &s.down, &s.input, &s.intermediate}) *scale = reachable(*scale);
  return s;
}

// Collects a layer's tensors.
class Builder {
 public:
  Builder(const SynthOptions& options, std::int64_t layer)
      : options_(options), prefix_(layer_prefix(options, layer)) {}

  void add(std::string_view suffix, Dtype dtype, Shape shape, Fill fill, float deviation = 1.0F) {
    add_as(suffix, suffix, dtype, shape, fill, deviation);
  }
  // With the values of another name.
  void add_as(std::string_view values, std::string_view suffix, Dtype dtype, Shape shape, Fill fill,
              float deviation) {
    Source source;
    source.fill = fill;
    source.stream = stream_of(options_.seed, prefix_ + std::string(values));
    source.deviation = deviation;
    add(suffix, dtype, shape, std::move(source));
  }
  void add(std::string_view suffix, Dtype dtype, Shape shape, Source source) {
    tensors_.push_back({{prefix_ + std::string(suffix), dtype, shape}, std::move(source)});
  }
  void add_values(std::string_view suffix, Shape shape, std::vector<float> values) {
    Source source;
    source.fill = Fill::f32_values;
    source.values = std::move(values);
    add(suffix, Dtype::f32, shape, std::move(source));
  }
  std::vector<SynthTensor> take() { return std::move(tensors_); }

 private:
  const SynthOptions& options_;
  std::string prefix_;
  std::vector<SynthTensor> tensors_;
};

// What one tensor of experts in a dialect has: the same matrices in every dialect, as streams of bytes.
class Experts {
 public:
  Experts(const SynthOptions& o, std::int64_t layer)
      : o_(o), layer_(layer), bf16_(is_bf16(o, layer)), dialect_(dialect_of(o)), root_(root_of(o)) {}

  void add_to(Builder& to) const {
    if (dialect_.stacked) {
      add_stack(to, {Projection::gate, Projection::up});
      add_stack(to, {Projection::down});
      return;
    }
    for (std::int64_t e = 0; e < o_.experts; ++e)
      for (const Projection p : checkpoint::all_projections) add_one(to, e, p);
  }

 private:
  [[nodiscard]] std::int64_t rows(Projection p) const {
    return p == Projection::down ? o_.hidden : o_.intermediate;
  }
  [[nodiscard]] std::int64_t columns(Projection p) const {
    return p == Projection::down ? o_.intermediate : o_.hidden;
  }
  [[nodiscard]] std::int64_t stored_columns(Projection p, Part part) const {
    if (part == Part::block_scale) return columns(p) / 16;
    return bf16_ ? columns(p) : columns(p) / 2;
  }
  [[nodiscard]] Dtype dtype(Part part) const {
    if (part == Part::block_scale) return Dtype::f8_e4m3;
    return bf16_ ? Dtype::bf16 : Dtype::u8;
  }
  [[nodiscard]] std::int64_t element() const { return bf16_ ? 2 : 1; }

  // One matrix, as the model's own dialect has it: a model that stacks its experts has one stream for a
  // stack.
  [[nodiscard]] Source matrix(std::int64_t e, Projection p, Part part) const {
    const bool own_stack = o_.model == SynthModel::muse_spark;
    const Dialect& own = checkpoint::dialect_named(own_stack ? "fused" : "per-expert");
    const std::string name =
        fmt::format("{}mlp.experts.{}{}{}", layer_prefix(o_, layer_), own_stack ? "" : fmt::format("{}.", e),
                    own.projections[static_cast<std::size_t>(p)], own.parts[static_cast<std::size_t>(part)]);
    Source out;
    out.stream = stream_of(o_.seed, name);
    out.fill = part == Part::block_scale ? Fill::block_scales : bf16_ ? Fill::bf16_normal : Fill::codes;
    out.deviation = bf16_ ? reciprocal_root(columns(p)) : 1.0F;
    if (!own_stack) return out;
    const std::int64_t bytes = rows(p) * stored_columns(p, part) * element();
    const std::int64_t at = p == Projection::down ? e : 2 * e + (p == Projection::up ? 1 : 0);
    out.skip = at * bytes;
    return out;
  }

  [[nodiscard]] float stored(float scale) const { return dialect_.divisors ? 1.0F / scale : scale; }

  [[nodiscard]] std::string name(std::string_view expert, Projection p, Part part) const {
    return fmt::format("{}{}{}{}", root_, expert, dialect_.projections[static_cast<std::size_t>(p)],
                       bf16_ && part == Part::weight && !dialect_.stacked
                           ? std::string_view(".weight")
                           : dialect_.parts[static_cast<std::size_t>(part)]);
  }

  // Codes are U8, or F4 with a shape in codes.
  void add_matrix(Builder& to, const std::string& name, Part part, Shape shape, Source source) const {
    if (part == Part::weight && !bf16_ && o_.f4) {
      std::vector<std::int64_t> codes(shape.dims().begin(), shape.dims().end());
      codes.back() *= 2;
      return to.add(name, Dtype::f4, Shape(codes), std::move(source));
    }
    to.add(name, dtype(part), shape, std::move(source));
  }

  void add_one(Builder& to, std::int64_t e, Projection p) const {
    const std::string expert = fmt::format("{}.", e);
    add_matrix(to, name(expert, p, Part::weight), Part::weight, {rows(p), stored_columns(p, Part::weight)},
               matrix(e, p, Part::weight));
    if (bf16_) return;
    add_matrix(to, name(expert, p, Part::block_scale), Part::block_scale,
               {rows(p), stored_columns(p, Part::block_scale)}, matrix(e, p, Part::block_scale));
    // compressed-tensors writes vectors of one, ModelOpt scalars.
    const Shape one = dialect_.divisors ? Shape{1} : Shape{};
    const ExpertScales s = expert_scales(o_, layer_, e);
    to.add_values(name(expert, p, Part::global_scale), one, {stored(s.weight(p))});
    if (!o_.weight_only) to.add_values(name(expert, p, Part::input_scale), one, {stored(s.rows(p))});
  }

  void add_stack(Builder& to, const std::vector<Projection>& of) const {
    const Projection first = of.front();
    const auto each = static_cast<std::int64_t>(of.size());
    for (const Part part : {Part::weight, Part::block_scale}) {
      if (bf16_ && part == Part::block_scale) return;
      auto all = std::make_shared<Matrices>();
      *all = {rows(first),         stored_columns(first, part), element(), each,
              dialect_.transposed, dialect_.alternating,        {}};
      for (std::int64_t e = 0; e < o_.experts; ++e)
        for (const Projection p : of) all->sources.push_back(matrix(e, p, part));
      const std::int64_t out = each * all->rows;
      const Shape shape =
          dialect_.transposed ? Shape{o_.experts, all->columns, out} : Shape{o_.experts, out, all->columns};
      Source source;
      source.fill = Fill::matrices;
      source.matrices = std::move(all);
      add_matrix(to, name("", first, part), part, shape, std::move(source));
    }
    for (const Part part : {Part::global_scale, Part::input_scale}) {
      if (part == Part::input_scale && o_.weight_only) return;
      std::vector<float> values;
      for (std::int64_t e = 0; e < o_.experts; ++e) {
        const ExpertScales s = expert_scales(o_, layer_, e);
        for (const Projection p : of) values.push_back(part == Part::global_scale ? s.weight(p) : s.rows(p));
      }
      to.add_values(name("", first, part), each == 1 ? Shape{o_.experts} : Shape{o_.experts, each},
                    std::move(values));
    }
  }

  const SynthOptions& o_;
  std::int64_t layer_;
  bool bf16_;
  const Dialect& dialect_;
  std::string_view root_;
};

std::vector<std::string> excluded(const SynthOptions& o) {
  std::vector<std::string> names = {"lm_head"};
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    const std::string_view gate = gate_of(o);
    names.push_back(layer_prefix(o, layer) + std::string(gate.substr(0, gate.rfind('.'))));
    if (o.model == SynthModel::muse_spark)
      for (const char* projection : {"mlp.pre_expert_proj", "mlp.post_expert_proj"})
        names.push_back(layer_prefix(o, layer) + projection);
    if (!is_bf16(o, layer)) continue;
    const std::string experts = layer_prefix(o, layer) + std::string(root_of(o));
    names.push_back(compressed(o) ? "re:" + escaped(experts) + ".*"
                                  : experts.substr(0, experts.size() - 1) + "*");
  }
  return names;
}

std::string quant_algo(const SynthOptions& o) { return o.weight_only ? "W4A16_NVFP4" : "NVFP4"; }

Json compressed_config(const SynthOptions& o) {
  const Json values = {{"num_bits", 4},
                       {"type", "float"},
                       {"strategy", "tensor_group"},
                       {"group_size", 16},
                       {"symmetric", true}};
  Json weights = values;
  weights["dynamic"] = false;
  Json inputs = values;
  inputs["dynamic"] = "local";
  return {{"quant_method", "compressed-tensors"},
          {"format", "nvfp4-pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", weights},
              {"input_activations", o.weight_only ? Json(nullptr) : inputs},
              {"output_activations", nullptr}}}}},
          {"ignore", excluded(o)}};
}

Json quantisation(const SynthOptions& o) {
  if (compressed(o)) return compressed_config(o);
  return {{"quant_method", "modelopt"},
          {"quant_algo", quant_algo(o)},
          {"group_size", 16},
          {"kv_cache_quant_algo", nullptr},
          {"exclude_modules", excluded(o)}};
}

Json muse_spark_config(const SynthOptions& o) {
  return {{"architectures", {"MuseSparkForConditionalGeneration"}},
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
            {"hidden_act", "silu"}}}};
}

// The family decides how its experts lie in a stack, so these can only be a gpt-oss model's.
Json gpt_oss_config(const SynthOptions& o) {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"model_type", "gpt_oss"},
          {"hidden_size", o.hidden},
          {"intermediate_size", o.intermediate},
          {"num_local_experts", o.experts},
          {"num_experts_per_tok", o.top_k},
          {"num_hidden_layers", o.layers},
          {"swiglu_alpha", 1.702},
          {"swiglu_limit", 7.0},
          {"hidden_act", "silu"}};
}

Json qwen3_moe_config(const SynthOptions& o) {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"hidden_size", o.hidden},
          {"moe_intermediate_size", o.intermediate},
          {"num_experts", o.experts},
          {"num_experts_per_tok", o.top_k},
          {"num_hidden_layers", o.layers},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", Json::array()},
          {"norm_topk_prob", true},
          {"hidden_act", "silu"}};
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
    Experts(o, layer).add_to(to);
    to.add("mlp.experts.post_expert_norm.weight", Dtype::bf16, {o.hidden}, Fill::bf16_normal, 0.125F);
    to.add("mlp.post_expert_proj.weight", Dtype::bf16, {width, o.hidden}, Fill::bf16_normal,
           reciprocal_root(o.hidden));
  } else {
    to.add_as("mlp.gate.weight", gate_of(o), Dtype::bf16, {o.experts, width}, Fill::bf16_normal,
              reciprocal_root(width));
    Experts(o, layer).add_to(to);
  }
  return to.take();
}

std::string quant_config_json(const SynthOptions& o) {
  if (compressed(o)) return {};
  const Json json = {{"producer", {{"name", "modelopt"}, {"version", "0.0.0"}}},
                     {"quantization",
                      {{"quant_algo", quant_algo(o)},
                       {"kv_cache_quant_algo", nullptr},
                       {"group_size", 16},
                       {"exclude_modules", excluded(o)}}}};
  return json.dump(2) + "\n";
}

std::string config_json(const SynthOptions& o) {
  Json json = o.model == SynthModel::muse_spark ? muse_spark_config(o)
              : dialect_of(o).alternating       ? gpt_oss_config(o)
                                                : qwen3_moe_config(o);
  json["quantization_config"] = quantisation(o);
  return json.dump(2) + "\n";
}

}  // namespace kerf::tools::internal
