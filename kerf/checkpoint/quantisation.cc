#include "kerf/checkpoint/internal/quantisation.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

using nlohmann::json;

constexpr std::string_view kBoth = "NVFP4 and W4A16_NVFP4";

bool is_nvfp4(std::string_view algo) { return algo == "NVFP4" || algo == "W4A16_NVFP4"; }

void take_group_size(const Keys& keys, Quantisation& out) {
  out.group_size = keys.integer("group_size", 0).value_or(out.group_size);
  if (out.group_size != 16)
    fail(ErrorKind::unsupported, "{}: group_size is {}, NVFP4 has 16", keys.file(), out.group_size);
}

// ModelOpt, mixed precision: {"model.layers.0.mlp.experts.0.gate_proj": {"quant_algo": "NVFP4", ...}, ...}.
void read_quantised_layers(const Keys& keys, Quantisation& out) {
  const json* layers = keys.find("quantized_layers");
  if (layers == nullptr)
    fail(ErrorKind::checkpoint, "{}: quant_algo is {} without quantized_layers", keys.file(), out.algo);
  if (!layers->is_object()) keys.wrong("quantized_layers", *layers, "an object");
  for (const auto& entry : layers->items()) {
    const Keys inner(fmt::format("{}: quantized_layers.{}", keys.file(), shown(entry.key())), entry.value());
    const auto algo = inner.string("quant_algo");
    if (!algo) fail(ErrorKind::checkpoint, "{}: no quant_algo", inner.file());
    if (is_nvfp4(*algo)) take_group_size(inner, out);
    out.modules.push_back({entry.key(), *algo});
  }
}

// quant_algo, group_size, exclude_modules (or ignore), quantized_layers.
Quantisation read_algo(const Keys& keys) {
  Quantisation out;
  const auto algo = keys.string("quant_algo");
  if (!algo) return out;
  out.algo = *algo;
  if (out.algo != mixed_precision && !is_nvfp4(out.algo))
    fail(ErrorKind::unsupported, "{}: quant_algo is '{}', kerf implements {}", keys.file(), shown(out.algo),
         kBoth);
  if (out.algo == mixed_precision) {
    read_quantised_layers(keys, out);
  } else {
    take_group_size(keys, out);
    if (const json* groups = keys.find("config_groups")) {
      if (!groups->is_object()) keys.wrong("config_groups", *groups, "an object");
      for (const auto& group : groups->items()) {
        const Keys inner(fmt::format("{}: config_groups.{}", keys.file(), shown(group.key())), group.value());
        if (const json* weights = inner.find("weights"))
          take_group_size(Keys(inner.file() + ".weights", *weights), out);
      }
    }
  }
  out.excluded = keys.strings("exclude_modules");
  for (std::string& name : keys.strings("ignore")) out.excluded.push_back(std::move(name));
  return out;
}

// What one of compressed-tensors' descriptions of values is: "" for 4-bit floats in groups of 16, or what
// else.
std::string other_than_nvfp4(const Keys& keys) {
  const auto bits = keys.integer("num_bits", 1);
  const auto type = keys.string("type").value_or("int");
  if (bits != 4 || type != "float") return fmt::format("{}-bit {}", bits.value_or(0), shown(type));
  const auto group = keys.integer("group_size", -1);
  if (group != 16) return fmt::format("4-bit float in groups of {}", group.value_or(0));
  if (keys.boolean("symmetric") == false) return "4-bit float, not symmetric";
  const auto strategy = keys.string("strategy").value_or("tensor_group");
  if (strategy != "tensor_group") return fmt::format("4-bit float by {}", shown(strategy));
  return {};
}

// "NVFP4", "W4A16_NVFP4", or what the group has instead.
std::string algo_of_group(const Keys& group) {
  const json* weights = group.find("weights");
  if (weights == nullptr) return "weights as they were";
  if (std::string other = other_than_nvfp4(Keys(group.file() + ".weights", *weights)); !other.empty())
    return other;
  const json* inputs = group.find("input_activations");
  if (inputs == nullptr) return "W4A16_NVFP4";
  const Keys keys(group.file() + ".input_activations", *inputs);
  if (const std::string other = other_than_nvfp4(keys); !other.empty())
    return "NVFP4 weights, inputs " + other;
  // "local": block scales of the moment under a stored global scale. true: a global scale of the moment, too.
  if (const json* dynamic = keys.find("dynamic"); dynamic != nullptr && *dynamic == json(true))
    return "NVFP4 weights, inputs without a stored global scale (dynamic is true)";
  return "NVFP4";
}

void refuse_transforms(const Keys& keys) {
  if (const json* transforms = keys.find("transform_config"); transforms != nullptr && !transforms->empty())
    fail(ErrorKind::unsupported, "{}: transform_config is {}: kerf applies no transforms", keys.file(),
         got(*transforms));
  const json* sparsity = keys.find("sparsity_config");
  if (sparsity == nullptr || !sparsity->is_object() || sparsity->empty()) return;
  const auto format = Keys(keys.file() + ".sparsity_config", *sparsity).string("format").value_or("");
  if (format != "dense" && !format.empty())
    fail(ErrorKind::unsupported, "{}: sparsity_config has the format '{}', kerf reads dense weights",
         keys.file(), shown(format));
}

Quantisation read_compressed_tensors(const Keys& keys) {
  Quantisation out;
  refuse_transforms(keys);
  const json* groups = keys.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty())
    fail(ErrorKind::checkpoint, "{}: no config_groups, wanted an object", keys.file());
  std::set<std::string> algos;
  for (const auto& entry : groups->items()) {
    const Keys group(fmt::format("{}: config_groups.{}", keys.file(), shown(entry.key())), entry.value());
    const std::string algo = algo_of_group(group);
    algos.insert(algo);
    for (std::string& target : group.strings("targets")) out.modules.push_back({std::move(target), algo});
  }
  if (std::none_of(algos.begin(), algos.end(), is_nvfp4))
    fail(ErrorKind::unsupported, "{}: format '{}' has {}, kerf implements {} (nvfp4-pack-quantized)",
         keys.file(), shown(keys.string("format").value_or("")), fmt::join(algos, ", "), kBoth);
  out.algo = algos.size() == 1 ? *algos.begin() : std::string(mixed_precision);
  out.excluded = keys.strings("ignore");
  // One class of modules with one algorithm is what is not excluded.
  if (out.modules.size() == 1 && out.modules.front().pattern == "Linear") out.modules.clear();
  return out;
}

// "layers.12." in a module's name.
std::optional<std::int64_t> layer_in(std::string_view name) {
  constexpr std::string_view word = "layers.";
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    std::int64_t layer = 0;
    const char* begin = name.data() + at + word.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error == std::errc() && end != begin && layer >= 0) return layer;
  }
  return std::nullopt;
}

bool covers_any(const ModulePattern& pattern, const std::string& experts,
                std::span<const std::string> parts) {
  if (pattern.covers(experts)) return true;
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& p) { return pattern.covers(p); });
}

bool is_part_of(const ModulePattern& pattern, const std::string& experts) {
  return pattern.kind() == ModulePattern::Kind::name && pattern.text().size() > experts.size() &&
         pattern.text().starts_with(experts) && pattern.text()[experts.size()] == '.';
}

// A class of modules, as compressed-tensors' targets may name: "Linear".
bool is_class(const std::string& pattern) {
  return !pattern.empty() && pattern.front() >= 'A' && pattern.front() <= 'Z' &&
         pattern.find('.') == std::string::npos;
}

}  // namespace

Quantisation read_modelopt(const Keys& keys) { return read_algo(keys); }

Quantisation read_quantisation_config(const Keys& config) {
  const json* value = config.find("quantization_config");
  if (value == nullptr) return {};
  const Keys keys(config.file() + ": quantization_config", *value);
  if (const json* nested = keys.find("quantization"))
    return read_algo(Keys(keys.file() + ".quantization", *nested));
  if (keys.find("quant_algo") != nullptr) return read_algo(keys);
  const auto method = keys.string("quant_method");
  if (method == "compressed-tensors") return read_compressed_tensors(keys);
  if (method)
    fail(ErrorKind::unsupported, "{}: quant_method is '{}' without a quant_algo, kerf implements {}",
         keys.file(), shown(*method), kBoth);
  fail(ErrorKind::checkpoint, "{}: no quant_algo, wanted NVFP4 or W4A16_NVFP4", keys.file());
}

QuantisedExperts::QuantisedExperts(const ModelConfig& config)
    : all_(config.quant_algo), has_rules_(!config.quantised_modules.empty()) {
  const auto is_name = [](const ModulePattern& p) { return p.kind() == ModulePattern::Kind::name; };
  for (const std::string& text : config.excluded_modules) {
    ModulePattern pattern(text, true);
    if (!is_name(pattern))
      excluded_patterns_.push_back(std::move(pattern));
    else if (const auto layer = layer_in(text))
      excluded_names_[*layer].push_back(std::move(pattern));
    else
      excluded_others_.push_back(std::move(pattern));
  }
  for (const QuantisedModules& modules : config.quantised_modules) {
    ModulePattern pattern(modules.pattern, true);
    if (!is_name(pattern))
      patterns_.push_back({std::move(pattern), modules.algo});
    else if (const auto layer = layer_in(modules.pattern))
      names_[*layer].push_back({std::move(pattern), modules.algo});
    else
      others_.push_back({std::move(pattern), modules.algo});
  }
  // Names of no layer: "lm_head", "model.layers". Few of them can be a module that experts are part of.
  std::erase_if(excluded_others_,
                [](const ModulePattern& p) { return p.text().find('.') == std::string::npos; });
}

std::size_t QuantisedExperts::patterns() const {
  return excluded_patterns_.size() + excluded_others_.size() + patterns_.size() + others_.size();
}

bool QuantisedExperts::may_name(std::int64_t layer, std::string_view prefix) const {
  const auto may = [&](const ModulePattern& p) { return p.may_cover(prefix); };
  const auto rule_may = [&](const Rule& r) { return !is_class(r.pattern.text()) && may(r.pattern); };
  return excluded_names_.contains(layer) || names_.contains(layer) ||
         std::any_of(excluded_patterns_.begin(), excluded_patterns_.end(), may) ||
         std::any_of(excluded_others_.begin(), excluded_others_.end(), may) ||
         std::any_of(patterns_.begin(), patterns_.end(), rule_may) ||
         std::any_of(others_.begin(), others_.end(), rule_may);
}

std::string QuantisedExperts::elsewhere() const {
  if (!has_rules_) return all_;
  const auto of_class =
      std::find_if(others_.begin(), others_.end(), [](const Rule& r) { return is_class(r.pattern.text()); });
  return of_class == others_.end() ? std::string() : of_class->algo;
}

bool QuantisedExperts::excludes(std::int64_t layer, const std::string& experts,
                                std::span<const std::string> parts) const {
  const auto any = [&](const std::vector<ModulePattern>& list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const ModulePattern& p) { return covers_any(p, experts, parts); });
  };
  if (any(excluded_patterns_) || any(excluded_others_)) return true;
  const auto names = excluded_names_.find(layer);
  return names != excluded_names_.end() && any(names->second);
}

std::string QuantisedExperts::algo(std::int64_t layer, const std::string& experts,
                                   std::span<const std::string> parts) const {
  if (excludes(layer, experts, parts)) return {};
  if (!has_rules_) return all_;

  std::set<std::string> found;
  const auto look = [&](const Rule& rule) {
    if (is_class(rule.pattern.text())) return;
    if (covers_any(rule.pattern, experts, parts) || is_part_of(rule.pattern, experts))
      found.insert(rule.algo);
  };
  for (const Rule& rule : patterns_) look(rule);
  for (const Rule& rule : others_) look(rule);
  if (const auto rules = names_.find(layer); rules != names_.end())
    for (const Rule& rule : rules->second) look(rule);
  if (found.size() > 1)
    fail(ErrorKind::checkpoint,
         "layer {}: the configuration quantises its experts in {} ways ({}), wanted one", layer, found.size(),
         fmt::join(found, ", "));
  if (!found.empty()) return *found.begin();
  return elsewhere();
}

}  // namespace kerf::checkpoint::internal
