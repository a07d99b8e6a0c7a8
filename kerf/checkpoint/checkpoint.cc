#include "kerf/checkpoint/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "kerf/base/file.h"
#include "kerf/base/format.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/checkpoint/internal/families.h"
#include "kerf/checkpoint/internal/layer.h"
#include "kerf/checkpoint/internal/quantisation.h"
#include "kerf/checkpoint/internal/quantised_experts.h"
#include "kerf/numeric/nvfp4_range.h"

namespace kerf::checkpoint {

namespace {
using Layers = std::map<std::int64_t, std::unique_ptr<internal::Layer>>;
}  // namespace

struct Checkpoint::State {
  std::filesystem::path directory;
  ModelConfig config;
  Fingerprint fingerprint;
  std::vector<std::string> notes;
  std::unique_ptr<internal::TensorTable> table;
  Layers layers;
  std::vector<std::int64_t> moe_layers;
  Faults layer_faults;
  std::vector<Shard> shards;
  std::optional<ExportFile> exported;
  std::shared_ptr<std::atomic<std::int64_t>> read;  // bytes, where they are counted

  void list_shards() {
    for (std::size_t s = 0; s < table->files().size(); ++s) {
      const Header& header = table->headers()[s];
      shards.push_back({table->files()[s], header.file_bytes, std::ssize(header.tensors)});
    }
  }
};

namespace {

using internal::ExpertNaming;

// What the names say about one layer with routed experts.
struct Outline {
  std::string_view prefix;
  std::string_view root;
  internal::Dialects dialects = 0;  // those that its names may all be in
  std::string_view first;           // one of its names, for messages
  std::string no_block;             // MoeLayer::no_block()
};

// A tensor below the experts that kerf does not know, as a refusal.
[[noreturn]] void refuse_tensor(std::int64_t layer, std::string_view name, const std::string& file) {
  const bool bias = name.ends_with("bias");
  fail(ErrorKind::unsupported, "layer {}: {} in {}: {}", layer, shown(name), file,
       bias ? "kerf does not implement biases of routed experts"
            : "kerf does not know this tensor of routed experts");
}

constexpr const char* no_such_layer = "layer that the model does not have";

// "0 to 60 (num_hidden_layers is 61)"
std::string layers_text(const ModelConfig& config) {
  return fmt::format("0 to {} (num_hidden_layers is {})", config.layers - 1, config.layers);
}

// Experts under something that is no number of a layer. Each such thing is told of once.
void look_at_odd_name(const internal::TensorTable& table, std::string_view name, const ModelConfig& config,
                      std::set<std::string_view>& known, Faults& faults) {
  const auto odd = internal::parse_odd_layer_name(name);
  if (!odd || internal::parse_expert_name(odd->rest).naming == ExpertNaming::none) return;
  if (known.insert(odd->number).second)
    faults.add(no_such_layer,
               fmt::format("{} in {}, layer '{}', wanted {}", shown(name), table.file(*table.find(name)),
                           shown(odd->number), layers_text(config)));
}

// Layers behind the model's own: those for predicting further tokens are worth a line, others are faults.
void tell_layers_beyond(const std::map<std::int64_t, std::string_view>& beyond,
                        const internal::TensorTable& table, const ModelConfig& config,
                        std::vector<std::string>& notes, Faults& faults) {
  for (const auto& [layer, name] : beyond) {
    if (layer < config.layers + config.mtp_layers)
      notes.push_back(
          fmt::format("layer {}: beyond the {} layers of config.json, for predicting further tokens "
                      "(MTP), ignored: {}",
                      layer, config.layers, shown(name)));
    else
      faults.add(no_such_layer, fmt::format("layer {}, {} in {}, wanted layers {}", layer, shown(name),
                                            table.file(*table.find(name)), layers_text(config)));
  }
}

// Groups the experts' tensors by layer; refuses names that would change the result if they were ignored.
std::map<std::int64_t, Outline> outline(const std::filesystem::path& directory,
                                        const internal::TensorTable& table, const ModelConfig& config,
                                        std::vector<std::string>& notes, Faults& faults) {
  std::map<std::int64_t, Outline> layers;
  std::map<std::int64_t, std::string_view> beyond;
  std::map<std::int64_t, std::string> no_block;
  std::set<std::string_view> odd;
  for (const internal::Located& located : table.all()) {
    const std::string_view name = table.name(located);
    const auto layer = internal::parse_layer_name(name);
    if (!layer) {
      look_at_odd_name(table, name, config, odd, faults);
      continue;
    }
    const internal::ExpertName expert = internal::parse_expert_name(layer->rest);
    if (const std::string_view what = internal::beyond_block(layer->rest); !what.empty())
      no_block.try_emplace(layer->layer,
                           fmt::format("{} in {}: kerf's block around the experts does not compute {}",
                                       shown(name), table.file(located), what));
    if (expert.naming == ExpertNaming::none || expert.naming == ExpertNaming::post_norm) continue;
    if (layer->layer >= config.layers) {
      beyond.try_emplace(layer->layer, name);
      continue;
    }
    const std::string& file = table.file(located);
    if (expert.naming == ExpertNaming::unknown) refuse_tensor(layer->layer, name, file);
    if (expert.expert >= config.experts)
      fail(ErrorKind::checkpoint,
           "layer {}: {} in {}: got expert {}, wanted {} experts, 0 to {} (config.json)", layer->layer,
           shown(name), file, expert.expert, config.experts, config.experts - 1);
    Outline& known =
        layers.try_emplace(layer->layer, Outline{layer->prefix, expert.root, expert.dialects, name, {}})
            .first->second;
    known.dialects &= expert.dialects;
    if (known.prefix != layer->prefix || known.root != expert.root || known.dialects == 0)
      fail(ErrorKind::checkpoint, "layer {}: {} in {} and {} in {} name its experts in two ways, wanted one",
           layer->layer, shown(known.first), table.file(*table.find(known.first)), shown(name), file);
  }
  if (layers.empty())
    fail(ErrorKind::checkpoint,
         "{}: no routed experts: wanted tensors such as model.layers.0.mlp.experts.0.gate_proj.weight or "
         "model.layers.0.mlp.experts.gate_up_proj",
         directory.string());
  tell_layers_beyond(beyond, table, config, notes, faults);
  for (auto& [layer, why] : no_block)
    if (const auto found = layers.find(layer); found != layers.end()) found->second.no_block = std::move(why);
  return layers;
}

// The dialect of a layer: of those that its names are in, the one that the model's family lays experts out
// in.
const Dialect& dialect_of(std::int64_t layer, const Outline& found, internal::Stacked stacked,
                          const ModelConfig& config) {
  internal::Dialects set = found.dialects;
  if ((set & internal::stacked_dialects()) == 0) return internal::first_of(set);
  if (found.root != internal::expert_roots.front()) {
    if (stacked == internal::Stacked::alternating)
      fail(ErrorKind::unsupported, "layer {}: {}: kerf does not know how {} stacks its experts below {}",
           layer, shown(found.first), config.family, found.root);
    return internal::first_of(set);
  }
  if (stacked == internal::Stacked::unknown)
    fail(ErrorKind::unsupported,
         "layer {}: {}: experts of {} stacked in one tensor: tools have written them as [E, out, in] and as "
         "[E, in, out], and kerf does not guess",
         layer, shown(found.first), config.family);
  const bool alternating = stacked == internal::Stacked::alternating;
  set &= internal::stacked_dialects(alternating, alternating);
  if (set == 0)
    fail(ErrorKind::unsupported, "layer {}: {}: kerf does not know how {} stacks its experts under this name",
         layer, shown(found.first), config.family);
  return internal::first_of(set);
}

// The algorithm of a layer's experts by the configuration. Where it leaves out a layer that the files hold as
// NVFP4 all the same, the tensors count, and a note says so.
std::string algo_of(const internal::LayerSource& source, internal::QuantisedExperts& quantised) {
  const Dialect& d = *source.dialect;
  const std::string experts = source.prefix + source.root.substr(0, source.root.size() - 1);
  const internal::ExpertModules modules{d.stacked, d.projections};
  std::string algo = quantised.algo(source.index, experts, modules);
  quantised.require_all_parts(source.index, experts, modules, algo);
  return algo;
}

// The same, and of a layer that is left out and quantised all the same, the one that counts: where there is
// one algorithm for all that is not excluded, that is its too.
std::string algo_that_counts(const std::string& said, const ModelConfig& config) {
  const bool one = config.quant_algo != internal::mixed_precision && config.quantised_modules.empty();
  return said.empty() && one ? config.quant_algo : said;
}

// What the config says of layers, beside those that there are.
void compare_layers(const Layers& layers, const ModelConfig& config, Faults& faults) {
  const ExpertLayers& told = config.expert_layers;
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const auto found = layers.find(l);
    if (found == layers.end() && told.must_be_in(l))
      faults.add("layer without its routed experts",
                 fmt::format("layer {}, no tensor of any, wanted {} experts (config.json: {})", l,
                             config.experts, told.said_by));
    if (found != layers.end() && !told.may_be_in(l))
      faults.add("routed experts in a layer that has none by config.json",
                 fmt::format("layer {}, tensors below {}, wanted none (config.json: {})", l,
                             found->second->prefix(), told.said_by));
  }
}

// Layers that config.json counts and no tensor of routed experts belongs to, where it does not say whether
// they have any: dense ones, or lost ones. Worth a line.
void note_layers_without_experts(const Layers& layers, const ModelConfig& config,
                                 std::vector<std::string>& notes) {
  if (config.expert_layers.told()) return;
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
    if (!layer->has_selection_bias()) continue;
    if (!config.router.no_bias_by.empty())
      fail(ErrorKind::checkpoint,
           "layer {}: {} is there, a selection bias, but {} (config.json): wanted none", l,
           layer->full_name(internal::selection_bias_name), config.router.no_bias_by);
    config.router.selection_bias = true;
    if (config.router.scoring == "softmax" && config.router.not_computed.empty())
      config.router.not_computed = fmt::format(
          "layer {}: {} is there, a selection bias, but this model scores by softmax, and kerf implements a "
          "bias with sigmoid alone",
          l, layer->full_name(internal::selection_bias_name));
  }
  if (without != nullptr && (with != nullptr || config.post_norm))
    fail(ErrorKind::checkpoint, "layer {}: {} is missing, wanted BF16 [{}]: {}", without->index(),
         without->full_name(internal::post_norm_name), config.hidden,
         with != nullptr ? fmt::format("layer {} has it", with->index())
                         : fmt::format("config.json describes {}, which has it in every layer",
                                       shown(config.architecture)));
  if (with != nullptr && !config.post_norm) config.post_norm = PostNormConfig{};
}

// An export's file has nothing but what a decode of the experts needs.
void note_what_is_left_out(const ExportFacts& facts, std::vector<std::string>& notes) {
  const auto has = [](const ExportedLayer& layer) { return !layer.no_block.empty(); };
  const auto count = std::ranges::count_if(facts.layers, has);
  if (count == 0) return;
  const ExportedLayer& first = *std::ranges::find_if(facts.layers, has);
  notes.push_back(
      fmt::format("{} layer{} whose checkpoint has more beside the experts, which is not in an export "
                  "(first: layer {}, {})",
                  count, count == 1 ? "" : "s", first.index, first.no_block));
}

// What kerf does not do of this model's routing.
void note_routing(const ModelConfig& config, std::vector<std::string>& notes) {
  if (config.router.weights_on_input)
    notes.emplace_back(
        "this model's routing weights multiply the experts' input, which kerf does not do: it routes nothing "
        "here, and takes rows that are scaled already with weights of 1");
  if (!config.router.not_computed.empty())
    notes.push_back(config.router.not_computed +
                    ": it routes nothing here, and takes routes with their weights");
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
  if (const std::int64_t ranks = exported_ranks_in(state->directory); ranks > 0)
    return open_exported(state->directory, 0, ranks);
  const ConfigTexts texts = read_config_texts(state->directory);
  state->config = config_of(texts, state->directory);
  state->table =
      std::make_unique<internal::TensorTable>(state->directory, state->config.experts, state->notes);
  state->fingerprint = fingerprint_of(texts, state->table->files(), state->table->headers());
  return make(state);
}

Checkpoint Checkpoint::open_carried(const std::filesystem::path& name, const CarriedFiles& carried,
                                    std::span<const std::shared_ptr<const tensor::Reader>> readers) {
  const auto state = std::make_shared<State>();
  state->directory = name;
  state->config = config_of(carried.configs, name);
  state->table =
      std::make_unique<internal::TensorTable>(name, carried, readers, state->config.experts, state->notes);
  state->fingerprint = fingerprint_of(carried.configs, state->table->files(), state->table->headers());
  return make(state);
}

// From configs and headers to layers.
Checkpoint Checkpoint::make(const std::shared_ptr<State>& state) {
  const ModelConfig& config = state->config;
  for (std::string& note : notes_of(config)) state->notes.push_back(std::move(note));
  state->list_shards();
  std::vector<std::int64_t> weight_only;
  std::vector<std::int64_t> unused_inputs;
  std::vector<std::int64_t> unlike;  // quantised where the configuration says not, or the other way round
  internal::QuantisedExperts quantised(config);
  const internal::Family family = internal::family_named(config.family);
  for (const auto& [l, found] :
       outline(state->directory, *state->table, config, state->notes, state->layer_faults)) {
    internal::LayerSource source{state->table.get(),
                                 l,
                                 std::string(found.prefix),
                                 std::string(found.root),
                                 &dialect_of(l, found, family.stacked, config),
                                 config.experts,
                                 config.hidden,
                                 config.intermediate,
                                 config.model_hidden,
                                 {}};
    source.no_block = found.no_block;
    const Dialect& dialect = *source.dialect;
    const std::string algo = algo_of(source, quantised);
    source.quant_algo = algo_that_counts(algo, config);
    if (!config.quant_algo.empty())
      source.no_algo_by = fmt::format(
          "{} does not say how they are quantised: {}, and its quant_algo ({}) is not one for all",
          config.quant_said_in,
          config.excluded_modules.empty()
              ? std::string("no entry names them")
              : fmt::format("{} leaves them out, or no entry names them", config.excluded_by),
          config.quant_algo);
    auto layer = source.dialect->stacked ? internal::make_stacked_layer(std::move(source))
                                         : internal::make_per_expert_layer(std::move(source));
    const bool nvfp4 = layer->kind() == ExpertKind::nvfp4;
    const bool said = algo == "NVFP4" || algo == "W4A16_NVFP4";
    if (nvfp4 && !said && !algo.empty())
      fail(ErrorKind::unsupported,
           "{}: layer {}: its experts are quantised as {}, kerf implements NVFP4 and W4A16_NVFP4",
           config.quant_said_in, l, shown(algo));
    if (nvfp4 && !config.quant_tool.empty() &&
        dialect.divisors != (config.quant_tool == internal::compressed_tensors_tool))
      fail(ErrorKind::checkpoint,
           "{}: layer {}: this is {}'s, but the tensors have the names of {}, whose global scales are the "
           "others' reciprocals: wanted one tool's",
           config.quant_said_in, l, config.quant_tool, dialect.name);
    if (nvfp4 != said) unlike.push_back(l);
    if (nvfp4 && layer->quant_algo() == "W4A16_NVFP4")
      (layer->has_input_scales() ? unused_inputs : weight_only).push_back(l);
    state->layers.emplace(l, std::move(layer));
    state->moe_layers.push_back(l);
  }
  if (!unlike.empty() && !config.quant_algo.empty())
    state->notes.push_back(fmt::format(
        "{} layer{} that the quantisation's lists and the tensors tell apart (first: layer {}, {}): the "
        "tensors count",
        unlike.size(), unlike.size() == 1 ? "" : "s", unlike.front(),
        state->layers.at(unlike.front())->kind() == ExpertKind::nvfp4 ? "NVFP4 though left out"
                                                                      : "BF16 though not left out"));
  if (!weight_only.empty())
    state->notes.push_back(fmt::format(
        "{} layer{} without input scales (first: layer {}): weight-only (W4A16), activations stay bf16",
        weight_only.size(), weight_only.size() == 1 ? "" : "s", weight_only.front()));
  if (!unused_inputs.empty())
    state->notes.push_back(fmt::format(
        "{} layer{} with input scales that are not used (first: layer {}): weight-only (W4A16) by {}, "
        "activations stay bf16",
        unused_inputs.size(), unused_inputs.size() == 1 ? "" : "s", unused_inputs.front(),
        config.quant_said_in));
  note_layers_without_experts(state->layers, config, state->notes);
  compare_layers(state->layers, config, state->layer_faults);
  settle_config(state->layers, state->config);
  note_routing(config, state->notes);
  Checkpoint out;
  out.state_ = state;
  return out;
}

Checkpoint Checkpoint::open_exported(const std::filesystem::path& directory, std::int64_t rank,
                                     std::int64_t ranks) {
  const auto state = std::make_shared<State>();
  state->directory = directory;
  const std::filesystem::path path = directory / export_file_name(rank, ranks);
  state->exported = ExportFile::open_of_rank(directory, rank, ranks);
  const ExportFacts& facts = state->exported->facts();
  state->config = config_of(facts.configs, path);
  const ModelConfig& config = state->config;
  state->notes = notes_of(config);
  note_what_is_left_out(facts, state->notes);
  state->table = std::make_unique<internal::TensorTable>(path);
  state->fingerprint = fingerprint_of(facts.configs, state->table->files(), state->table->headers());
  state->list_shards();
  internal::QuantisedExperts quantised(config);
  for (const ExportedLayer& layer : facts.layers) {
    if (layer.index >= config.layers)
      fail(ErrorKind::checkpoint, "{}: layer {} of a model of {} layers", path.string(), layer.index,
           config.layers);
    internal::LayerSource source{
        state->table.get(), layer.index,   layer.prefix,        "mlp.experts.",      nullptr,
        config.experts,     config.hidden, config.intermediate, config.model_hidden, config.quant_algo};
    source.no_block = layer.no_block;
    if (layer.kind == ExpertKind::nvfp4) {
      internal::LayerSource logical = source;
      logical.root = layer.root;
      logical.dialect = &dialect_named(layer.dialect);
      source.quant_algo = algo_that_counts(algo_of(logical, quantised), config);
      if (layer.has_inputs != (source.quant_algo == "NVFP4"))
        fail(ErrorKind::checkpoint,
             "{}: layer {}: its facts' input_scales is {}, but its experts are quantised as {} by {}, wanted "
             "{}",
             path.string(), layer.index, layer.has_inputs,
             source.quant_algo.empty() ? "nothing" : shown(source.quant_algo),
             config.quant_said_in.empty() ? "its configuration" : config.quant_said_in, !layer.has_inputs);
    }
    state->layers.emplace(layer.index, internal::make_exported_layer(std::move(source), layer));
    state->moe_layers.push_back(layer.index);
  }
  settle_config(state->layers, state->config);
  note_routing(config, state->notes);
  Checkpoint out;
  out.state_ = state;
  return out;
}

namespace {

class Counting final : public tensor::Reader {
 public:
  Counting(std::shared_ptr<const tensor::Reader> below, std::shared_ptr<std::atomic<std::int64_t>> bytes)
      : below_(std::move(below)), bytes_(std::move(bytes)) {}
  void read(std::int64_t offset, std::span<std::byte> to) const override {
    below_->read(offset, to);
    bytes_->fetch_add(std::ssize(to), std::memory_order_relaxed);
  }
  void will_need(std::int64_t offset, std::int64_t bytes) const noexcept override {
    below_->will_need(offset, bytes);
  }

 private:
  std::shared_ptr<const tensor::Reader> below_;
  std::shared_ptr<std::atomic<std::int64_t>> bytes_;
};

}  // namespace

Checkpoint Checkpoint::through(const WrapReader& wrap) const { return through(wrap, state_->read); }

Checkpoint Checkpoint::through(const WrapReader& wrap,
                               std::shared_ptr<std::atomic<std::int64_t>> read) const {
  const auto state = std::make_shared<State>();
  state->directory = state_->directory;
  state->config = state_->config;
  state->fingerprint = state_->fingerprint;
  state->notes = state_->notes;
  state->table = std::make_unique<internal::TensorTable>(*state_->table, wrap);
  for (const auto& [index, layer] : state_->layers) state->layers.emplace(index, layer->over(*state->table));
  state->moe_layers = state_->moe_layers;
  state->layer_faults = state_->layer_faults;
  state->shards = state_->shards;
  if (state_->exported) state->exported = state_->exported->through(wrap);
  state->read = std::move(read);
  Checkpoint out = *this;
  out.state_ = state;
  return out;
}

Checkpoint Checkpoint::counted() const {
  const auto bytes = std::make_shared<std::atomic<std::int64_t>>(0);
  return through(
      [&](std::shared_ptr<const tensor::Reader> file) {
        return std::make_shared<Counting>(std::move(file), bytes);
      },
      bytes);
}

std::int64_t Checkpoint::read_bytes() const { return state_->read != nullptr ? state_->read->load() : 0; }

Checkpoint Checkpoint::carried_by(std::shared_ptr<Carrier> carrier) const {
  Checkpoint out = *this;
  out.carrier_ = std::move(carrier);
  return out;
}

Carrier* Checkpoint::carrier() const { return carrier_.get(); }

CarriedFiles Checkpoint::carried() const {
  if (state_->exported)
    fail(ErrorKind::unsupported, "{}: an export has a file for each rank, which no rank reads for another",
         state_->directory.string());
  CarriedFiles out;
  std::error_code ignored;
  out.configs = read_config_texts(state_->directory);
  if (const std::filesystem::path index = state_->directory / internal::index_name;
      std::filesystem::exists(index, ignored))
    out.index = internal::read_index_text(index);
  for (std::size_t s = 0; s < state_->table->files().size(); ++s) {
    const Header& header = state_->table->headers()[s];
    std::string head(static_cast<std::size_t>(header.data_begin), '\0');
    state_->table->readers()[s]->read(0, std::as_writable_bytes(std::span(head)));
    out.files.push_back({state_->table->files()[s], header.file_bytes, std::move(head)});
  }
  return out;
}

const std::vector<std::shared_ptr<const tensor::Reader>>& Checkpoint::readers() const {
  return state_->table->readers();
}

const ExportFile* Checkpoint::exported() const { return state_->exported ? &*state_->exported : nullptr; }

const ModelConfig& Checkpoint::config() const { return state_->config; }
const Fingerprint& Checkpoint::fingerprint() const { return state_->fingerprint; }
const std::filesystem::path& Checkpoint::directory() const { return state_->directory; }
const std::vector<std::int64_t>& Checkpoint::moe_layers() const { return state_->moe_layers; }
const Faults& Checkpoint::layer_faults() const { return state_->layer_faults; }
const std::vector<std::string>& Checkpoint::notes() const { return state_->notes; }
const std::vector<Checkpoint::Shard>& Checkpoint::shards() const { return state_->shards; }

void Checkpoint::require_unchanged() const { require(state_->table->changed()); }

const MoeLayer& Checkpoint::layer(std::int64_t index) const {
  const auto found = state_->layers.find(index);
  if (found != state_->layers.end()) return *found->second;
  const std::string where = (state_->directory / "config.json").string();
  const ModelConfig& config = state_->config;
  if (index < 0 || index >= config.layers)
    fail(ErrorKind::usage, "{}: layer {}, wanted {}", where, index, layers_text(config));
  const std::string said_by =
      config.expert_layers.told() ? fmt::format(" ({})", config.expert_layers.said_by) : "";
  if (config.expert_layers.must_be_in(index) && !state_->exported)
    fail(ErrorKind::checkpoint, "{}: layer {}: no tensor of routed experts, wanted {} experts{}", where,
         index, config.experts, said_by);
  fail(ErrorKind::usage, "{}: layer {} has no routed experts{}, wanted one that has: {}", where, index,
       state_->exported ? " in this export" : said_by, fmt::join(state_->moe_layers, ", "));
}

void check_selection_bias(const ModelConfig& config, const MoeLayer& layer, Faults& faults) {
  if (!config.router.selection_bias || layer.stored(selection_bias_name)) return;
  faults.add("missing selection bias",
             fmt::format("layer {}, {}, wanted F32 or BF16 [{}], by which this model's router chooses",
                         layer.index(), layer.full_name(selection_bias_name), config.experts));
}

std::vector<std::string> notes_of(const LayerScales& scales) {
  std::vector<std::string> out;
  if (scales.gate_up_differ != 0)
    out.push_back(fmt::format(
        "{} of {} experts have different gate/up global scales, largest ratio {:g}, kept separate",
        scales.gate_up_differ, scales.ws2_gate.size(), scales.largest_gate_up_ratio));
  if (scales.weight_only)
    out.emplace_back(
        scales.in_gate.empty()
            ? "no input scales: weight-only (W4A16), activations stay bf16"
            : "input scales are not used: weight-only (W4A16) by the configuration, activations stay bf16");
  return out;
}

std::vector<std::string> warnings_of(const LayerScales& scales) {
  std::vector<std::string> out;
  const auto look = [&out](float scale, std::string_view of) {
    if (!(scale > 0)) return;  // none, or a fault that is told of elsewhere
    // A block's scale is its largest value over 6 and the input scale, rounded to e4m3, whose least value is
    // 2^-9: half of that and less is zero. Its largest value is 448.
    const double vanishing = 6.0 * scale / 1024;
    const double largest = static_cast<double>(numeric::nvfp4_most) * scale;
    if (vanishing >= 16)
      out.push_back(
          fmt::format("input scale {:g} of {} (largest of all experts) is not plausible: blocks whose "
                      "values stay within {:g} become zeros",
                      scale, of, vanishing));
    else if (largest <= 1e-3)
      out.push_back(
          fmt::format("input scale {:g} of {} (largest of all experts) is not plausible: values are "
                      "clipped at {:g}",
                      scale, of, largest));
  };
  look(scales.in13, "gate and up");
  look(scales.in2, "down");
  return out;
}

}  // namespace kerf::checkpoint
