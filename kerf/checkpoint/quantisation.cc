#include "kerf/checkpoint/internal/quantisation.h"

#include <algorithm>
#include <array>

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

// ModelOpt's other algorithms have scales of inputs, zero points, low-rank parts.
void refuse_unknown_keys(const Keys& keys) { refuse_other_keys(keys, kBeside); }

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
  refuse_other_keys(
      group, std::to_array<std::string_view>({"weights", "input_activations", "targets", "format"}), true);
  if (const std::vector<std::string> targets = group.strings("targets");
      !targets.empty() && targets != std::vector<std::string>{"Linear"})
    fail(ErrorKind::checkpoint, "{}: targets is {}, but quant_algo is {} for all: wanted Linear",
         group.file(), got(*group.find("targets")), out.algo);
  const bool inputs = group.find("input_activations") != nullptr;
  if (inputs == (out.algo == "W4A16_NVFP4"))
    fail(ErrorKind::checkpoint, "{}: input_activations is {}, but quant_algo is {}: wanted {}", group.file(),
         inputs ? got(*group.find("input_activations")) : "absent", out.algo, inputs ? "none" : "it");
  for (const char* part : {"weights", "input_activations"}) {
    const json* value = group.find(part);
    if (value == nullptr) continue;
    const Keys keys(fmt::format("{}.{}", group.file(), part), *value);
    refuse_other_keys(keys, std::to_array<std::string_view>({"dynamic", "num_bits", "type", "group_size"}),
                      true);
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
    if (const json* layers = keys.find("quantized_layers"); layers != nullptr && !layers->empty())
      fail(ErrorKind::checkpoint, "{}: quantized_layers is {}, but quant_algo is {} for all: wanted {}",
           keys.file(), got(*layers), out.algo, mixed_precision);
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

}  // namespace

void refuse_other_keys(const Keys& keys, std::span<const std::string_view> known, bool described) {
  for (const json* object : keys.objects())
    for (const auto& [key, value] : object->items())
      if (std::find(known.begin(), known.end(), key) == known.end() && !value.is_null() &&
          (described || (value != json(false) && !(value.is_structured() && value.empty()))))
        fail(ErrorKind::unsupported, "{}: {} is {}: kerf does not know this key of a quantisation",
             keys.file(), shown(key), got(value));
}

bool is_nvfp4(std::string_view algo) { return algo == "NVFP4" || algo == "W4A16_NVFP4"; }

Quantisation read_modelopt(const Keys& keys) {
  // Engines' names for it: "modelopt", "modelopt_fp4", "modelopt_mixed".
  if (const auto method = keys.string("quant_method"); method && !method->starts_with("modelopt"))
    fail(ErrorKind::checkpoint,
         "{}: quant_method is '{}' beside a quant_algo, which is ModelOpt's: wanted {}", keys.file(),
         shown(*method), "modelopt or none");
  Quantisation out = read_algo(keys);
  out.said_in = keys.file();
  out.tool = modelopt_tool;
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

}  // namespace kerf::checkpoint::internal
