#include "kerf/checkpoint/internal/quantisation.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

using nlohmann::json;

constexpr std::string_view kBoth = "NVFP4 and W4A16_NVFP4";

// Of quantisation's own keys, those that change nothing here: other parts' algorithms, and who wrote the
// file.
constexpr auto kBeside = std::to_array<std::string_view>(
    {"quant_method", "quant_algo", "group_size", "exclude_modules", "ignore", "quantized_layers",
     "config_groups", "kv_cache_quant_algo", "kv_cache_scheme", "producer", "version"});

// ModelOpt's other algorithms have scales of inputs, zero points, low-rank parts. A key that is not known is
// refused unless it says no.
void refuse_unknown_keys(const Keys& keys) {
  for (const json* object : keys.objects())
    for (const auto& [key, value] : object->items())
      if (std::find(kBeside.begin(), kBeside.end(), key) == kBeside.end() && !value.is_null() &&
          value != json(false) && !(value.is_structured() && value.empty()))
        fail(ErrorKind::unsupported, "{}: {} is {}: kerf does not know this key of a quantisation",
             keys.file(), shown(key), got(value));
}

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
    if (is_nvfp4(*algo)) {
      take_group_size(inner, out);
      refuse_unknown_keys(inner);
    }
    out.modules.push_back({entry.key(), *algo, "quantized_layers"});
  }
}

// ModelOpt's groups repeat what quant_algo says of all; where they say something else, nobody knows which
// counts.
void compare_group(const Keys& group, Quantisation& out) {
  for (const char* part : {"weights", "input_activations"}) {
    const json* value = group.find(part);
    if (value == nullptr) continue;
    const Keys keys(fmt::format("{}.{}", group.file(), part), *value);
    if (const std::string_view input = "input_activations"; part == input && out.algo == "W4A16_NVFP4")
      fail(ErrorKind::checkpoint, "{} is {}, but quant_algo is {}: wanted none", keys.file(), got(*value),
           out.algo);
    take_group_size(keys, out);
    if (const auto bits = keys.integer("num_bits", 1); bits && *bits != 4)
      fail(ErrorKind::checkpoint, "{}: num_bits is {}, but quant_algo is {}: wanted 4", keys.file(), *bits,
           out.algo);
    if (const auto type = keys.string("type"); type && *type != "float")
      fail(ErrorKind::checkpoint, "{}: type is '{}', but quant_algo is {}: wanted float", keys.file(),
           shown(*type), out.algo);
    if (const json* dynamic = keys.find("dynamic"); dynamic != nullptr && *dynamic == json(true))
      fail(ErrorKind::unsupported, "{}: dynamic is true, kerf implements stored global scales", keys.file());
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
      for (const auto& group : groups->items())
        compare_group(
            Keys(fmt::format("{}: config_groups.{}", keys.file(), shown(group.key())), group.value()), out);
    }
  }
  refuse_unknown_keys(keys);
  for (const char* key : {"exclude_modules", "ignore"}) {
    if (keys.find(key) == nullptr) continue;
    out.excluded_by += out.excluded_by.empty() ? key : fmt::format(" or {}", key);
    for (std::string& name : keys.strings(key)) out.excluded.push_back(std::move(name));
  }
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

bool is_nvfp4(std::string_view algo) { return algo == "NVFP4" || algo == "W4A16_NVFP4"; }

Quantisation read_modelopt(const Keys& keys) {
  Quantisation out = read_algo(keys);
  out.said_in = keys.file();
  return out;
}

Quantisation read_quantisation_config(const Keys& config) {
  const json* value = config.find("quantization_config");
  if (value == nullptr) return {};
  const Keys keys(config.file() + ": quantization_config", *value);
  if (const json* nested = keys.find("quantization"))
    return read_modelopt(Keys(keys.file() + ".quantization", *nested));
  if (keys.find("quant_algo") != nullptr) return read_modelopt(keys);
  const auto method = keys.string("quant_method");
  if (method == "compressed-tensors") return read_compressed_tensors(keys);
  if (method)
    fail(ErrorKind::unsupported, "{}: quant_method is '{}' without a quant_algo, kerf implements {}",
         keys.file(), shown(*method), kBoth);
  fail(ErrorKind::checkpoint, "{}: no quant_algo, wanted NVFP4 or W4A16_NVFP4", keys.file());
}

namespace {

ModulePattern readable(const std::string& text, const ModelConfig& config, std::string_view key) {
  ModulePattern pattern(text, true);
  if (!pattern.readable())
    fail(ErrorKind::unsupported,
         "{}: {} has the pattern '{}', which kerf cannot read: wanted a name, a glob, or after re: an "
         "expression "
         "without look-around, back references and large counts",
         config.quant_said_in, key, shown(text));
  return pattern;
}

}  // namespace

QuantisedExperts::QuantisedExperts(const ModelConfig& config)
    : all_(config.quant_algo), said_in_(config.quant_said_in), has_rules_(!config.quantised_modules.empty()) {
  const auto is_name = [](const ModulePattern& p) { return p.kind() == ModulePattern::Kind::name; };
  for (const std::string& text : config.excluded_modules) {
    ModulePattern pattern = readable(text, config, config.excluded_by);
    if (!is_name(pattern))
      excluded_patterns_.push_back(std::move(pattern));
    else if (const auto layer = layer_in(text))
      excluded_names_[*layer].push_back(std::move(pattern));
    else
      excluded_others_.push_back(std::move(pattern));
  }
  for (const QuantisedModules& modules : config.quantised_modules) {
    ModulePattern pattern = readable(modules.pattern, config, modules.by);
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
    fail(ErrorKind::checkpoint, "{}: layer {}: quantises its experts in {} ways ({}), wanted one", said_in(),
         layer, found.size(), fmt::join(found, ", "));
  if (!found.empty()) return *found.begin();
  return elsewhere();
}

std::string QuantisedExperts::algo_of_part(std::int64_t layer, const std::string& part) const {
  const std::span<const std::string> none;
  const auto rule = [&](const std::vector<Rule>& rules) -> const Rule* {
    const auto found = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) {
      return !is_class(r.pattern.text()) && covers_any(r.pattern, part, none);
    });
    return found == rules.end() ? nullptr : &*found;
  };
  if (const auto rules = names_.find(layer); rules != names_.end())
    if (const Rule* found = rule(rules->second)) return found->algo;
  for (const std::vector<Rule>* rules : {&patterns_, &others_})
    if (const Rule* found = rule(*rules)) return found->algo;
  return elsewhere();
}

void QuantisedExperts::require_all_parts(std::int64_t layer, const std::string& experts,
                                         std::span<const std::string> parts, const std::string& algo) const {
  if (!has_rules_ || algo.empty() || algo_of_part(layer, experts) == algo) return;
  // Rules for single modules: by name most are found at once.
  std::set<std::string_view> named;
  if (const auto rules = names_.find(layer); rules != names_.end())
    for (const Rule& rule : rules->second)
      if (rule.algo == algo) named.insert(rule.pattern.text());
  for (const std::string& part : parts) {
    if (named.contains(part) || algo_of_part(layer, part) == algo) continue;
    const std::string other = algo_of_part(layer, part);
    fail(ErrorKind::checkpoint,
         "{}: layer {}: {} is {}, but other modules of its experts are {}: wanted one for all", said_in(),
         layer, part, other.empty() ? "not quantised" : other, algo);
  }
}

}  // namespace kerf::checkpoint::internal
