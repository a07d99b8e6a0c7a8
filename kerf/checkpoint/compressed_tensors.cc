// compressed-tensors' part of config.json: groups of modules with descriptions of their weights and inputs.
// Every key of a description is known and either changes nothing here or has the value that NVFP4 has.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/quantisation.h"

namespace kerf::checkpoint::internal {

namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "nvfp4-pack-quantized";

// Keys of the whole: those that are read, and those that change nothing here.
constexpr auto kKnown = std::to_array<std::string_view>(
    {"quant_method", "format", "config_groups", "ignore", "transform_config", "moe_sparsity_config",
     "sparsity_config", "kv_cache_scheme", "quantization_status", "global_compression_ratio", "version",
     "run_compressed"});

// "weights.actorder is \"group\", NVFP4 has none", of a value that is not NVFP4's.
std::string other_value(std::string_view part, std::string_view key, const json& value,
                        std::string_view wanted) {
  return fmt::format("{}.{} is {}, {}{}", part, key, shown(value.dump()),
                     wanted.empty() ? "which kerf does not know" : "NVFP4 has ", wanted);
}

// What a description says that NVFP4 does not have, with key and value; empty for NVFP4's. `inputs`: of
// activations, whose block scales are of the moment either way.
std::string other_than_nvfp4(const json& values, std::string_view part, bool inputs) {
  if (!values.is_object()) return fmt::format("{} is {}", part, got(values));
  const auto either = [](const json& value, std::initializer_list<json> of) {
    return std::find(of.begin(), of.end(), value) != of.end();
  };
  const auto named = [](const json& value, std::string_view name) {
    if (!value.is_string()) return false;
    std::string lower = value.get<std::string>();
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return lower == name;
  };
  // The tool's own values where one of these is absent are others.
  for (const char* key : {"num_bits", "type", "strategy", "group_size"})
    if (!values.contains(key)) return fmt::format("{} has no {}", part, key);
  for (const auto& [key, value] : values.items()) {
    bool fits = value.is_null();
    std::string_view wanted;
    if (key == "num_bits") {
      fits = value == 4;
      wanted = "4";
    } else if (key == "type") {
      fits = named(value, "float");
      wanted = "float";
    } else if (key == "group_size") {
      fits = value == 16;
      wanted = "16";
    } else if (key == "strategy") {
      fits = named(value, "tensor_group");
      wanted = "tensor_group";
    } else if (key == "symmetric") {
      fits = value == true;
      wanted = "true";
    } else if (key == "dynamic") {  // "local": block scales of the moment under a stored global scale
      fits = fits || value == false || (inputs && named(value, "local"));
      wanted = inputs ? "local or false" : "false";
    } else if (key == "actorder") {  // of GPTQ: "group" permutes columns, "weight" leaves them where they are
      fits = fits || (!inputs && either(value, {false, "weight", "static"}));
      wanted = inputs ? "none" : "weight, static or none";
    } else if (key == "scale_dtype") {
      fits = fits || either(value, {"torch.float8_e4m3fn", "float8_e4m3fn"});
      wanted = "torch.float8_e4m3fn";
    } else if (key == "zp_dtype" || key == "observer" || key == "observer_kwargs") {
      fits = true;  // no zero points where it is symmetric; calibration
    }
    if (!fits) return other_value(part, key, value, wanted);
  }
  return {};
}

// "NVFP4", "W4A16_NVFP4", or what the group has instead.
std::string algo_of_group(const json& group, const json& format) {
  const auto part = [&](const char* key) {
    const auto found = group.find(key);
    return found == group.end() || found->is_null() ? nullptr : &*found;
  };
  const json* own = part("format");
  // The group's and the file's, where each says one.
  for (const json* said : {own, &format})
    if (said != nullptr && !said->is_null() && *said != kFormat && *said != "mixed-precision")
      return fmt::format("format is {}, wanted {}", shown(said->dump()), kFormat);
  const json* weights = part("weights");
  if (weights == nullptr) return "weights as they were";
  if (std::string other = other_than_nvfp4(*weights, "weights", false); !other.empty()) return other;
  const json* inputs = part("input_activations");
  if (inputs != nullptr)
    if (std::string other = other_than_nvfp4(*inputs, "input_activations", true); !other.empty())
      return other;
  if (const json* outputs = part("output_activations"))
    return fmt::format("output_activations is {}", got(*outputs));
  for (const auto& [key, value] : group.items())
    if (key != "weights" && key != "input_activations" && key != "output_activations" && key != "targets" &&
        key != "format" && !value.is_null())
      return fmt::format("{} is {}", shown(key), got(value));
  return inputs != nullptr ? "NVFP4" : "W4A16_NVFP4";
}

void refuse_transforms(const Keys& keys) {
  for (const char* key : {"transform_config", "moe_sparsity_config"})
    if (const json* value = keys.find(key); value != nullptr && !value->empty())
      fail(ErrorKind::unsupported, "{}: {} is {}: kerf applies no transforms", keys.file(), key, got(*value));
  const json* sparsity = keys.find("sparsity_config");
  if (sparsity == nullptr || !sparsity->is_object() || sparsity->empty()) return;
  const auto format = Keys(keys.file() + ".sparsity_config", *sparsity).string("format").value_or("");
  if (format != "dense" && !format.empty())
    fail(ErrorKind::unsupported, "{}: sparsity_config has the format '{}', kerf reads dense weights",
         keys.file(), shown(format));
}

}  // namespace

Quantisation read_compressed_tensors(const Keys& keys) {
  Quantisation out;
  out.said_in = keys.file();
  out.tool = compressed_tensors_tool;
  refuse_transforms(keys);
  refuse_other_keys(keys, kKnown);
  const json* groups = keys.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty())
    fail(ErrorKind::checkpoint, "{}: no config_groups, wanted an object", keys.file());
  const auto format = keys.string("format");
  std::set<std::string> algos;
  std::map<std::string, QuantisedModules> targeted;
  for (const auto& entry : groups->items()) {
    const std::string name = fmt::format("config_groups.{}", shown(entry.key()));
    const Keys group(fmt::format("{}: {}", keys.file(), name), entry.value());
    std::string algo = algo_of_group(entry.value(), format ? json(*format) : json());
    if (!is_nvfp4(algo)) algo = fmt::format("{}: {}", name, algo);
    algos.insert(algo);
    const std::vector<std::string> targets = group.strings("targets");
    if (targets.empty())
      fail(ErrorKind::checkpoint, "{}: targets is {}, wanted names, patterns or classes of modules",
           group.file(), group.find("targets") == nullptr ? "absent" : "empty");
    for (const std::string& target : targets) {
      const auto [first, added] = targeted.try_emplace(target, QuantisedModules{target, algo, name});
      if (added)
        out.modules.push_back({target, algo, name + ".targets"});
      else if (first->second.algo != algo)  // the tools that load it differ in which of them counts
        fail(ErrorKind::checkpoint,
             "{}: {} and {} both have the target '{}' and quantise it in two ways: wanted one", keys.file(),
             first->second.by, name, shown(target));
    }
  }
  if (std::none_of(algos.begin(), algos.end(), is_nvfp4))
    fail(ErrorKind::unsupported, "{}: format '{}' has {}, kerf implements NVFP4 and W4A16_NVFP4 ({})",
         keys.file(), shown(format.value_or("")), fmt::join(algos, ", "), kFormat);
  out.algo = algos.size() == 1 ? *algos.begin() : std::string(mixed_precision);
  out.excluded_by = "ignore";
  out.excluded = keys.strings("ignore");
  // One class of modules with one algorithm is what is not excluded.
  if (out.modules.size() == 1 && out.modules.front().pattern == "Linear") out.modules.clear();
  return out;
}

}  // namespace kerf::checkpoint::internal
