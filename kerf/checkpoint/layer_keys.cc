#include "kerf/checkpoint/internal/layer_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "kerf/base/file.h"
#include "kerf/base/format.h"

namespace kerf::checkpoint::internal {

namespace {

using nlohmann::json;

struct Model {
  const Keys& keys;
  std::int64_t layers;
  std::int64_t most;  // entries that a list may have
};

ExpertLayers by(const Model& m, std::string said_by, const std::function<bool(std::int64_t)>& has) {
  ExpertLayers out{{}, std::move(said_by)};
  out.routed.reserve(static_cast<std::size_t>(m.layers));
  for (std::int64_t l = 0; l < m.layers; ++l) out.routed.push_back(has(l));
  return out;
}

// "first_k_dense_replace is 3", of keys that are there.
std::string said(const Model& m, std::initializer_list<std::string_view> names) {
  std::string out;
  for (const std::string_view name : names)
    if (const json* value = m.keys.find(name))
      out += fmt::format("{}{} is {}", out.empty() ? "" : ", ", name, shown(json_text(*value)));
  return out;
}

// One entry a layer.
const json* list_of(const Model& m, std::string_view key) {
  const json* value = m.keys.find(key);
  if (value == nullptr || !value->is_array()) return nullptr;
  const auto entries = static_cast<std::int64_t>(value->size());
  if (entries < m.layers || entries > m.most)
    fail(ErrorKind::checkpoint, "{}: {} has {} entries, wanted one for each of {} layers (num_hidden_layers)",
         m.keys.file(), key, entries, m.layers);
  return value;
}

// Numbers of layers. Those of a list that goes on over further layers are left out.
ExpertLayers by_numbers(const Model& m, std::string_view key, const json& numbers) {
  ExpertLayers out = by(m, said(m, {key}), [](std::int64_t) { return false; });
  for (const json& number : numbers) {
    const bool inside = number.is_number_integer() && number >= 0 && number < m.most;
    if (!inside) m.keys.wrong(key, number, fmt::format("numbers of layers in it, 0 to {}", m.layers - 1));
    if (number < m.layers) out.routed[number.get<std::size_t>()] = true;
  }
  return out;
}

// DeepSeek, GLM, Kimi: dense layers first, then one of every moe_layer_freq (vLLM's, SGLang's and DeepSeek's
// own rule; transformers knows no frequency). As a list moe_layer_freq says it of each layer (MiMo,
// MiniMax-M3).
std::optional<ExpertLayers> first_dense(const Model& m) {
  const json* often = m.keys.find("moe_layer_freq");
  const bool list = often != nullptr && often->is_array();
  const auto first = m.keys.integer("first_k_dense_replace", 0);
  const std::int64_t step = list ? 1 : m.keys.integer("moe_layer_freq", 1).value_or(1);
  if (!first && step == 1) return std::nullopt;
  const std::string said_by =
      list ? said(m, {"first_k_dense_replace"}) : said(m, {"first_k_dense_replace", "moe_layer_freq"});
  return by(m, said_by, [&](std::int64_t l) { return l >= first.value_or(0) && l % step == 0; });
}

std::optional<ExpertLayers> flags(const Model& m, std::string_view key) {
  const json* list = list_of(m, key);
  if (list == nullptr) return std::nullopt;
  for (const json& entry : *list)
    if (!entry.is_boolean() && entry != 0 && entry != 1) m.keys.wrong(key, entry, "0 and 1 in it");
  return by(m, said(m, {key}), [&](std::int64_t l) {
    const json& entry = (*list)[static_cast<std::size_t>(l)];
    return entry.is_boolean() ? entry.get<bool>() : entry == 1;
  });
}

std::optional<ExpertLayers> frequencies(const Model& m) { return flags(m, "moe_layer_freq"); }

// K-EXAONE.
std::optional<ExpertLayers> flagged(const Model& m) {
  const json* list = m.keys.find("is_moe_layer");
  if (list != nullptr && !list->is_array())
    m.keys.wrong("is_moe_layer", *list, "a list with one entry for each layer");
  return flags(m, "is_moe_layer");
}

// Qwen: the last of every decoder_sparse_step, but for a list of dense ones.
std::optional<ExpertLayers> sparse_steps(const Model& m) {
  const auto step = m.keys.integer("decoder_sparse_step", 1);
  const json* dense = m.keys.find("mlp_only_layers");
  if (!step && dense == nullptr) return std::nullopt;
  if (dense != nullptr && !dense->is_array()) m.keys.wrong("mlp_only_layers", *dense, "a list of layers");
  const ExpertLayers named = by_numbers(m, "mlp_only_layers", dense != nullptr ? *dense : json::array());
  return by(m, said(m, {"decoder_sparse_step", "mlp_only_layers"}), [&](std::int64_t l) {
    return (l + 1) % step.value_or(1) == 0 && !named.routed[static_cast<std::size_t>(l)];
  });
}

// Llama-4: the last of every step, and the same as a list.
std::optional<ExpertLayers> interleaved(const Model& m) {
  const auto step = m.keys.integer("interleave_moe_layer_step", 1);
  if (!step) return std::nullopt;
  return by(m, said(m, {"interleave_moe_layer_step"}), [&](std::int64_t l) { return (l + 1) % *step == 0; });
}

std::optional<ExpertLayers> listed(const Model& m) {
  const json* list = m.keys.find("moe_layers");
  if (list == nullptr) return std::nullopt;
  if (!list->is_array()) m.keys.wrong("moe_layers", *list, "a list of layers");
  return by_numbers(m, "moe_layers", *list);
}

// Step: a list, or its numbers in a string, with commas between them.
std::optional<ExpertLayers> enumerated(const Model& m) {
  const json* list = m.keys.find("moe_layers_enum");
  if (list == nullptr) return std::nullopt;
  if (list->is_array()) return by_numbers(m, "moe_layers_enum", *list);
  if (!list->is_string()) m.keys.wrong("moe_layers_enum", *list, "a list of layers");
  const auto text = list->get<std::string>();
  json numbers = json::array();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    std::string_view item = std::string_view(text).substr(begin, comma - begin);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (!item.empty() && (error != std::errc() || end != item.data() + item.size()))
      m.keys.wrong("moe_layers_enum", *list, "numbers of layers with commas between them");
    if (!item.empty()) numbers.push_back(number);
    begin = comma + 1;
  }
  return by_numbers(m, "moe_layers_enum", numbers);
}

// GLM, Kimi-Linear, Muse Spark, and what transformers 5 writes for many others.
std::optional<ExpertLayers> typed(const Model& m) {
  const json* list = m.keys.find("mlp_layer_types");
  if (list == nullptr) return std::nullopt;
  if (!list->is_array()) m.keys.wrong("mlp_layer_types", *list, "a list of 'sparse' and 'dense'");
  (void)list_of(m, "mlp_layer_types");
  for (const json& type : *list)
    if (type != "sparse" && type != "moe" && type != "dense")
      fail(ErrorKind::unsupported, "{}: mlp_layer_types has {}, kerf knows 'sparse', 'moe' and 'dense'",
           m.keys.file(), got(type));
  return by(m, said(m, {"mlp_layer_types"}),
            [&](std::int64_t l) { return (*list)[static_cast<std::size_t>(l)] != "dense"; });
}

// Layers of one part each (Nemotron-H): attention, Mamba, an MLP, or experts. Elsewhere these lists are about
// attention alone, and name no experts.
std::optional<ExpertLayers> block_types(const Model& m) {
  for (std::string_view key : {"layers_block_type", "layer_types"}) {
    const json* list = m.keys.find(key);
    if (list == nullptr || !list->is_array() || std::find(list->begin(), list->end(), "moe") == list->end())
      continue;
    (void)list_of(m, key);
    return by(m, said(m, {key}),
              [&](std::int64_t l) { return (*list)[static_cast<std::size_t>(l)] == "moe"; });
  }
  return std::nullopt;
}

// The same in letters: M, *, - and E.
std::optional<ExpertLayers> pattern(const Model& m) {
  const auto text = m.keys.string("hybrid_override_pattern");
  if (!text) return std::nullopt;
  const auto letters = static_cast<std::int64_t>(text->size());
  if (letters < m.layers || letters > m.most || text->find_first_not_of("M*-E") != std::string::npos)
    m.keys.wrong("hybrid_override_pattern", *m.keys.find("hybrid_override_pattern"),
                 fmt::format("one of M, *, - and E for each of {} layers (num_hidden_layers)", m.layers));
  return by(m, said(m, {"hybrid_override_pattern"}),
            [&](std::int64_t l) { return (*text)[static_cast<std::size_t>(l)] == 'E'; });
}

// ERNIE: the last of every interval, from one layer to another; end -1 is the last.
std::optional<ExpertLayers> ernie(const Model& m) {
  if (m.keys.find("moe_layer_start_index") == nullptr && m.keys.find("moe_layer_end_index") == nullptr &&
      m.keys.find("moe_layer_interval") == nullptr)
    return std::nullopt;
  const std::int64_t start = m.keys.integer("moe_layer_start_index", 0).value_or(1);
  const std::int64_t told = m.keys.integer("moe_layer_end_index", -1).value_or(-1);
  const std::int64_t end = told == -1 ? m.layers - 1 : told;
  const std::int64_t step = m.keys.integer("moe_layer_interval", 1).value_or(1);
  return by(m, said(m, {"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"}),
            [&](std::int64_t l) { return (l + 1) % step == 0 && l >= start && l <= end; });
}

std::optional<ExpertLayers> jamba(const Model& m) {
  const auto period = m.keys.integer("expert_layer_period", 1);
  const auto offset = m.keys.integer("expert_layer_offset", 0);
  if (!period && !offset) return std::nullopt;
  const std::int64_t of = period.value_or(2);  // transformers' own values where the file has none
  return by(m, said(m, {"expert_layer_period", "expert_layer_offset"}),
            [&](std::int64_t l) { return l % of == offset.value_or(1); });
}

// AFMoE, LFM2.
std::optional<ExpertLayers> after_dense(const Model& m) {
  const auto dense = m.keys.integer("num_dense_layers", 0);
  if (!dense) return std::nullopt;
  return by(m, said(m, {"num_dense_layers"}), [&](std::int64_t l) { return l >= *dense; });
}

constexpr std::array kWays = {first_dense, frequencies, flagged,    sparse_steps, interleaved,
                              listed,      enumerated,  typed,      block_types,  pattern,
                              ernie,       jamba,       after_dense};

}  // namespace

std::int64_t read_mtp_layers(const Keys& keys) {
  std::int64_t most = 0;
  for (std::string_view key : {"num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers",
                               "mtp_num_hidden_layers", "mtp_num_layers"})
    most = std::max(most, keys.integer(key, 0).value_or(0));
  return most;
}

ExpertLayers read_expert_layers(const Keys& keys, const Family& family, std::int64_t layers,
                                std::int64_t mtp) {
  const Model model{keys, layers, layers + mtp};
  ExpertLayers out;
  for (const auto way : kWays) {
    const auto said_now = way(model);
    if (!said_now) continue;
    if (!out.told()) {
      out = *said_now;
      continue;
    }
    const auto other = std::mismatch(out.routed.begin(), out.routed.end(), said_now->routed.begin());
    if (other.first != out.routed.end())
      fail(ErrorKind::checkpoint,
           "{}: {}, but {}: layer {} has routed experts by the {} alone, wanted the same by both",
           keys.file(), out.said_by, said_now->said_by, other.first - out.routed.begin(),
           *other.first ? "first" : "second");
    out.said_by += "; " + said_now->said_by;
  }
  if (!out.told() && family.every_layer)
    out = by(model, fmt::format("{} has experts in every layer", family.name),
             [](std::int64_t) { return true; });
  if (out.told() && std::find(out.routed.begin(), out.routed.end(), true) == out.routed.end())
    fail(ErrorKind::checkpoint, "{}: {}: none of {} layers has routed experts, wanted at least one",
         keys.file(), out.said_by, layers);
  return out;
}

}  // namespace kerf::checkpoint::internal
