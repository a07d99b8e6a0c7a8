#include "kerf/checkpoint/config.h"

#include <fnmatch.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <unordered_set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/base/json.h"

namespace kerf::checkpoint {

namespace {

using nlohmann::json;
using Names = std::initializer_list<const char*>;

constexpr std::int64_t kMostBytes = 16'000'000;               // of a configuration file
constexpr std::int64_t kMostMatches = std::int64_t{1} << 20;  // of layers with globs: some seconds at worst
constexpr std::int64_t kMostSize = std::int64_t{1} << 20;     // so that E * H * I fits an int64
constexpr double kMuseLogitMultiplier = 0.17677669529663689;  // 2^-2.5
constexpr double kMuseSumEpsilon = 1e-15;

// The keys of one file. A model with several parts keeps the language model's keys under text_config; those
// come first. null counts as absent.
class Keys {
 public:
  Keys(std::string file, const json& top) : file_(std::move(file)), top_(top) {
    if (!top.is_object()) fail(ErrorKind::checkpoint, "{}: got {}, wanted an object", file_, got(top));
    const auto text = top.find("text_config");
    if (text == top.end() || text->is_null()) return;
    if (!text->is_object()) wrong("text_config", *text, "an object");
    text_ = &*text;
  }

  [[nodiscard]] const std::string& file() const { return file_; }

  [[nodiscard]] const json* find(const char* key) const {
    for (const json* object : {text_, &top_}) {
      if (object == nullptr) continue;
      const auto found = object->find(key);
      if (found != object->end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }

  [[noreturn]] void wrong(const char* key, const json& value, std::string_view wanted) const {
    fail(ErrorKind::checkpoint, "{}: {} is {}, wanted {}", file_, key, got(value), wanted);
  }

  [[nodiscard]] std::optional<std::int64_t> integer(const char* key, std::int64_t least) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool inside = value->is_number_integer() &&
                        (!value->is_number_unsigned() || value->get<std::uint64_t>() <= kMostSize) &&
                        value->get<std::int64_t>() >= least && value->get<std::int64_t>() <= kMostSize;
    if (!inside) wrong(key, *value, fmt::format("an integer from {} to {}", least, kMostSize));
    return value->get<std::int64_t>();
  }

  // A size that must be there, under any of these names; where several are given they must agree.
  [[nodiscard]] std::int64_t size(Names names) const {
    std::optional<std::int64_t> out;
    const char* from = nullptr;
    for (const char* name : names) {
      const auto value = integer(name, 1);
      if (!value) continue;
      if (out && *out != *value)
        fail(ErrorKind::checkpoint, "{}: {} is {} but {} is {}, wanted the same", file_, from, *out, name,
             *value);
      out = value;
      from = name;
    }
    if (!out) fail(ErrorKind::checkpoint, "{}: no {}, wanted an integer", file_, fmt::join(names, " or "));
    return *out;
  }

  // A number that f32 holds as a finite one. `positive`: above 0 there, too; otherwise 0 serves.
  [[nodiscard]] std::optional<double> number(const char* key, bool positive) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) wrong(key, *value, "a number");
    const FpGuard guard;  // with subnormals flushed, a tiny one would look like 0
    const auto number = value->get<double>();
    const bool inside = number >= 0 && number <= double{std::numeric_limits<float>::max()};
    if (!inside || (positive && static_cast<float>(number) == 0))
      wrong(key, *value, positive ? "a finite f32 above 0" : "a finite f32, at least 0");
    return number;
  }

  [[nodiscard]] std::optional<bool> boolean(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) wrong(key, *value, "true or false");
    return value->get<bool>();
  }

  [[nodiscard]] std::optional<std::string> string(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) wrong(key, *value, "a string");
    return value->get<std::string>();
  }

  [[nodiscard]] std::vector<std::string> strings(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) wrong(key, *value, "an array of strings");
    std::vector<std::string> out;
    for (const json& item : *value) {
      if (!item.is_string()) wrong(key, item, "strings in it");
      out.push_back(item.get<std::string>());
    }
    return out;
  }

 private:
  std::string file_;
  const json& top_;
  const json* text_ = nullptr;
};

bool is_muse_spark(const Keys& keys, const std::vector<std::string>& architectures) {
  return keys.find("moe_hidden_size") != nullptr ||
         keys.string("model_type").value_or("").starts_with("muse_spark") ||
         std::any_of(architectures.begin(), architectures.end(),
                     [](const std::string& a) { return a.find("MuseSpark") != std::string::npos; });
}

std::string activation_of(const Keys& keys) {
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const auto value = keys.string(key);
    if (!value) continue;
    if (*value != "silu" && *value != "swiglu")
      fail(ErrorKind::unsupported, "{}: {} is '{}', kerf implements silu (SwiGLU)", keys.file(), key,
           shown(*value));
    if (const json* limit = keys.find("swiglu_limit"))
      fail(ErrorKind::unsupported, "{}: swiglu_limit is {}, kerf implements SwiGLU without a limit",
           keys.file(), got(*limit));
    return "silu";
  }
  fail(ErrorKind::checkpoint, "{}: no hidden_act, wanted silu", keys.file());
}

RouterConfig router_of(const Keys& keys, bool muse) {
  RouterConfig out;
  out.scoring = keys.string("scoring_func").value_or(muse ? "sigmoid" : "softmax");
  if (out.scoring != "softmax" && out.scoring != "sigmoid")
    fail(ErrorKind::unsupported, "{}: scoring_func is '{}', kerf implements softmax and sigmoid", keys.file(),
         shown(out.scoring));
  out.norm_topk_prob = keys.boolean("norm_topk_prob").value_or(true);
  out.routed_scaling = keys.number("routed_scaling_factor", true).value_or(1.0);
  out.n_group = keys.integer("n_group", 0).value_or(0);
  out.topk_group = keys.integer("topk_group", 0).value_or(0);
  out.selection_bias = muse || keys.string("topk_method").value_or("") == "noaux_tc";
  if (muse) {
    out.logit_multiplier = keys.number("output_multiplier", true).value_or(kMuseLogitMultiplier);
    out.sum_epsilon = kMuseSumEpsilon;
  }
  return out;
}

// How many experts every token takes besides its routed ones. A model that only gives their width has one.
std::int64_t shared_experts_of(const Keys& keys) {
  const std::int64_t count = std::max(keys.integer("num_shared_experts", 0).value_or(0),
                                      keys.integer("n_shared_experts", 0).value_or(0));
  const std::int64_t width = keys.integer("shared_expert_intermediate_size", 0).value_or(0);
  return std::max<std::int64_t>(count, width > 0 ? 1 : 0);
}

struct Quantisation {
  std::string algo;
  std::int64_t group_size = 16;
  std::vector<std::string> excluded;
};

// quant_algo, group_size, exclude_modules (or ignore), wherever they stand.
Quantisation quantisation_of(const Keys& keys) {
  Quantisation out;
  const auto algo = keys.string("quant_algo");
  if (!algo) return out;
  if (*algo != "NVFP4" && *algo != "W4A16_NVFP4")
    fail(ErrorKind::unsupported, "{}: quant_algo is '{}', kerf implements NVFP4 and W4A16_NVFP4", keys.file(),
         shown(*algo));
  out.algo = *algo;
  const auto take_group_size = [&](const Keys& from) {
    out.group_size = from.integer("group_size", 1).value_or(out.group_size);
    if (out.group_size != 16)
      fail(ErrorKind::unsupported, "{}: group_size is {}, NVFP4 has 16", from.file(), out.group_size);
  };
  take_group_size(keys);
  if (const json* groups = keys.find("config_groups")) {
    if (!groups->is_object()) keys.wrong("config_groups", *groups, "an object");
    for (const auto& group : groups->items()) {
      const Keys inner(fmt::format("{}: config_groups.{}", keys.file(), shown(group.key())), group.value());
      if (const json* weights = inner.find("weights"))
        take_group_size(Keys(inner.file() + ".weights", *weights));
    }
  }
  out.excluded = keys.strings("exclude_modules");
  for (std::string& name : keys.strings("ignore")) out.excluded.push_back(std::move(name));
  return out;
}

// config.json's own statement; several tools write it, in two forms.
Quantisation quantisation_in_config(const Keys& config) {
  const json* value = config.find("quantization_config");
  if (value == nullptr) return {};
  const Keys keys(config.file() + ": quantization_config", *value);
  if (const json* nested = keys.find("quantization"))
    return quantisation_of(Keys(keys.file() + ".quantization", *nested));
  if (keys.find("quant_algo") == nullptr) {
    if (const auto method = keys.string("quant_method"))
      fail(ErrorKind::unsupported,
           "{}: quant_method is '{}' without a quant_algo, kerf implements NVFP4 and W4A16_NVFP4",
           keys.file(), shown(*method));
    fail(ErrorKind::checkpoint, "{}: no quant_algo, wanted NVFP4 or W4A16_NVFP4", keys.file());
  }
  return quantisation_of(keys);
}

void apply(Quantisation quantisation, ModelConfig& config) {
  config.quant_algo = std::move(quantisation.algo);
  config.group_size = quantisation.group_size;
  config.excluded_modules = std::move(quantisation.excluded);
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  const json top = parse_json(read_text(file, kMostBytes), file.string());
  const Keys keys(file.string(), top);

  ModelConfig out;
  const std::vector<std::string> architectures = keys.strings("architectures");
  out.architecture = architectures.empty() ? keys.string("model_type").value_or("") : architectures.front();
  out.layers = keys.size({"num_hidden_layers"});
  out.experts = keys.size({"num_experts", "num_local_experts", "n_routed_experts"});
  out.top_k = keys.size({"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k"});
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
  const bool muse = is_muse_spark(keys, architectures);
  out.router = router_of(keys, muse);
  out.shared_experts = shared_experts_of(keys);
  if (muse) {
    out.pool = PoolConfig{};
    out.pool->norm_eps = keys.number("rms_norm_eps", false).value_or(out.pool->norm_eps);
    out.post_norm = PostNormConfig{};
    out.post_norm->eps = keys.number("post_norm_eps", false).value_or(out.post_norm->eps);
  }
  apply(quantisation_in_config(keys), out);
  return out;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  ModelConfig out = read_model_config(directory / "config.json");
  const std::filesystem::path file = directory / "hf_quant_config.json";
  std::error_code ignored;
  // A link to nowhere counts as a file: reading it then fails with its name.
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, ignored))) return out;
  const json top = parse_json(read_text(file, kMostBytes), file.string());
  const Keys keys(file.string(), top);
  const json* inner = keys.find("quantization");
  if (inner == nullptr) fail(ErrorKind::checkpoint, "{}: no quantization, wanted an object", file.string());
  Quantisation quantisation = quantisation_of(Keys(file.string() + ": quantization", *inner));
  if (quantisation.algo.empty()) return out;
  if (!out.quant_algo.empty() && out.quant_algo != quantisation.algo)
    fail(ErrorKind::checkpoint, "{}: quant_algo is {}, but config.json's quantization_config says {}",
         file.string(), quantisation.algo, out.quant_algo);
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

std::int64_t excluded_layers(const ModelConfig& config) {
  std::unordered_set<std::string> names;
  std::vector<std::string> globs;
  for (const std::string& module : config.excluded_modules) {
    if (module.find_first_of("*?[\\") == std::string::npos)
      names.insert(module);
    else
      globs.push_back(module);
  }
  const auto most = static_cast<std::size_t>(kMostMatches / std::max<std::int64_t>(config.layers, 1));
  if (globs.size() > most)
    fail(ErrorKind::checkpoint, "{} globs in exclude_modules for {} layers, wanted at most {}", globs.size(),
         config.layers, most);
  // Whether one names the layer's experts, whatever the model calls itself.
  const auto excluded = [&](std::int64_t layer) {
    const std::string tail = fmt::format("layers.{}.mlp.experts", layer);
    for (const char* base : {"model.", "model.language_model.", "language_model.model.", ""}) {
      for (const char* part : {"", ".0.gate_proj", ".gate_up_proj"}) {
        const std::string name = base + tail + part;
        if (names.contains(name)) return true;
        for (const std::string& glob : globs)
          if (fnmatch(glob.c_str(), name.c_str(), 0) == 0) return true;
      }
    }
    return false;
  };
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) count += excluded(layer) ? 1 : 0;
  return count;
}

}  // namespace kerf::checkpoint
