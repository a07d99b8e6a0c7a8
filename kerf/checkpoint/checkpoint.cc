#include "kerf/checkpoint/checkpoint.h"

#include <algorithm>
#include <map>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/internal/layer.h"

namespace kerf::checkpoint {

namespace {
using Layers = std::map<std::int64_t, std::unique_ptr<internal::Layer>>;
}  // namespace

struct Checkpoint::State {
  std::filesystem::path directory;
  ModelConfig config;
  std::vector<std::string> notes;
  std::unique_ptr<internal::TensorTable> table;
  Layers layers;
  std::vector<std::int64_t> moe_layers;
  std::vector<Shard> shards;
};

namespace {

using internal::ExpertNaming;

// What the names say about one layer with routed experts.
struct Outline {
  std::string_view prefix;
  ExpertNaming naming = ExpertNaming::none;
  std::string_view first;  // a tensor of that naming, for messages
};

// Groups the experts' tensors by layer; refuses names that would change the result if they were ignored.
std::map<std::int64_t, Outline> outline(const std::filesystem::path& directory,
                                        const internal::TensorTable& table, const ModelConfig& config,
                                        std::vector<std::string>& notes) {
  std::map<std::int64_t, Outline> layers;
  std::map<std::int64_t, std::string_view> beyond;
  for (const std::string_view name : table.names()) {
    const auto layer = internal::parse_layer_name(name);
    if (!layer) continue;
    const internal::ExpertName expert = internal::parse_expert_name(layer->rest);
    if (expert.naming == ExpertNaming::none || expert.naming == ExpertNaming::post_norm) continue;
    if (layer->layer >= config.layers) {
      beyond.try_emplace(layer->layer, name);
      continue;
    }
    const std::string& file = table.file(*table.find(name));
    if (expert.naming == ExpertNaming::unknown)
      fail(ErrorKind::unsupported, "layer {}: {} in {}: kerf does not know this tensor of routed experts",
           layer->layer, shown(name), file);
    if (expert.expert >= config.experts)
      fail(ErrorKind::checkpoint,
           "layer {}: {} in {}: got expert {}, wanted {} experts, 0 to {} (config.json)", layer->layer,
           shown(name), file, expert.expert, config.experts, config.experts - 1);
    const auto [at, fresh] = layers.try_emplace(layer->layer, Outline{layer->prefix, expert.naming, name});
    if (at->second.prefix != layer->prefix || at->second.naming != expert.naming)
      fail(ErrorKind::checkpoint, "layer {}: {} in {} and {} in {} name its experts in two ways, wanted one",
           layer->layer, shown(at->second.first), table.file(*table.find(at->second.first)), shown(name),
           file);
  }
  if (layers.empty())
    fail(ErrorKind::checkpoint,
         "{}: no routed experts: wanted tensors such as model.layers.0.mlp.experts.0.gate_proj.weight or "
         "model.layers.0.mlp.experts.gate_up_proj",
         directory.string());
  for (const auto& [layer, name] : beyond)
    notes.push_back(fmt::format("layer {}: beyond the {} layers of config.json, ignored: {}", layer,
                                config.layers, shown(name)));
  return layers;
}

// Layers that config.json counts and no tensor of routed experts belongs to: dense ones, or lost ones. Worth
// a line.
void note_layers_without_experts(const Layers& layers, const ModelConfig& config,
                                 std::vector<std::string>& notes) {
  constexpr std::size_t listed = 5;  // layers named
  const std::int64_t count = config.layers - std::ssize(layers);
  std::vector<std::int64_t> without;
  for (std::int64_t l = 0; l < config.layers && without.size() < listed; ++l)
    if (!layers.contains(l)) without.push_back(l);
  if (count > 0)
    notes.push_back(fmt::format("{} of {} layers have no routed experts: {}{}", count, config.layers,
                                fmt::join(without, ", "), count > std::ssize(without) ? ", ..." : ""));
}

// A Muse Spark configuration asks for the norm after the experts, in every layer: without it the results
// would be those of another model. Elsewhere the tensors decide, and all layers must agree. A selection bias
// is there where a layer has one.
void settle_config(const Layers& layers, ModelConfig& config) {
  const internal::Layer* with = nullptr;
  const internal::Layer* without = nullptr;
  for (const auto& [l, layer] : layers) {
    const internal::Layer*& first = layer->has_post_norm() ? with : without;
    if (first == nullptr) first = layer.get();
    if (layer->has_selection_bias()) config.router.selection_bias = true;
  }
  if (without != nullptr && (with != nullptr || config.post_norm))
    fail(ErrorKind::checkpoint, "layer {}: {} is missing, wanted BF16 [{}]: {}", without->index(),
         without->full_name(internal::post_norm_name), config.hidden,
         with != nullptr ? fmt::format("layer {} has it", with->index())
                         : fmt::format("config.json describes {}, which has it in every layer",
                                       shown(config.architecture)));
  if (with != nullptr && !config.post_norm) config.post_norm = PostNormConfig{};
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto state = std::make_shared<State>();
  state->directory = path;
  if (!std::filesystem::is_directory(path, ignored)) {
    if (!std::filesystem::exists(path, ignored))
      fail(ErrorKind::checkpoint, "{}: no such directory", path.string());
    state->directory = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  }
  state->config = read_config(state->directory);
  const ModelConfig& config = state->config;
  state->table = std::make_unique<internal::TensorTable>(state->directory, config.experts, state->notes);
  for (std::size_t s = 0; s < state->table->files().size(); ++s) {
    const Header& header = state->table->headers()[s];
    state->shards.push_back({state->table->files()[s], header.file_bytes, std::ssize(header.tensors)});
  }
  std::vector<std::int64_t> weight_only;
  for (const auto& [l, found] : outline(state->directory, *state->table, config, state->notes)) {
    internal::LayerSource source{*state->table,
                                 l,
                                 std::string(found.prefix),
                                 config.experts,
                                 config.hidden,
                                 config.intermediate,
                                 config.model_hidden,
                                 config.quant_algo};
    auto layer = found.naming == ExpertNaming::fused ? internal::make_fused_layer(std::move(source))
                                                     : internal::make_per_expert_layer(std::move(source));
    if (layer->kind() == ExpertKind::nvfp4 && config.quant_algo == "W4A16_NVFP4" &&
        !layer->has_input_scales())
      weight_only.push_back(l);
    state->layers.emplace(l, std::move(layer));
    state->moe_layers.push_back(l);
  }
  if (!weight_only.empty())
    state->notes.push_back(fmt::format(
        "{} layer{} without input scales (first: layer {}): weight-only (W4A16), activations stay bf16",
        weight_only.size(), weight_only.size() == 1 ? "" : "s", weight_only.front()));
  note_layers_without_experts(state->layers, config, state->notes);
  settle_config(state->layers, state->config);
  Checkpoint out;
  out.state_ = state;
  return out;
}

const ModelConfig& Checkpoint::config() const { return state_->config; }
const std::filesystem::path& Checkpoint::directory() const { return state_->directory; }
const std::vector<std::int64_t>& Checkpoint::moe_layers() const { return state_->moe_layers; }
const std::vector<std::string>& Checkpoint::notes() const { return state_->notes; }
const std::vector<Checkpoint::Shard>& Checkpoint::shards() const { return state_->shards; }

const MoeLayer& Checkpoint::layer(std::int64_t index) const {
  const auto found = state_->layers.find(index);
  if (found == state_->layers.end())
    fail(ErrorKind::usage, "layer {} has no routed experts; layers that have: {}", index,
         fmt::join(state_->moe_layers, ", "));
  return *found->second;
}

std::vector<std::string> notes_of(const LayerScales& scales) {
  std::vector<std::string> out;
  if (scales.gate_up_differ != 0)
    out.push_back(fmt::format(
        "{} of {} experts have different gate/up global scales, largest ratio {:g}, kept separate",
        scales.gate_up_differ, scales.ws2_gate.size(), scales.largest_gate_up_ratio));
  if (scales.weight_only) out.emplace_back("no input scales: weight-only (W4A16), activations stay bf16");
  return out;
}

}  // namespace kerf::checkpoint
