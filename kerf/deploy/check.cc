#include "kerf/deploy/check.h"

#include <algorithm>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/threads.h"
#include "kerf/checkpoint/config.h"
#include "kerf/decode/grid_shape.h"
#include "kerf/decode/memory_plan.h"
#include "kerf/decode/router.h"
#include "kerf/deploy/parts.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/op.h"

namespace kerf::deploy {

namespace {

// What speaks against the deployment is a reason; what says nothing about it goes on as an error.
void add(Reasons& reasons, const Verdict& why) {
  if (!why) return;
  if (why->kind == ErrorKind::memory || why->kind == ErrorKind::bug) require(why);
  reasons.push_back(why->text);
}

Check check_engine(const DeploymentConfig& config) {
  Check out{"engine", "attention and all-reduce are set up for the decode step", {}, {}, {}};
  if (!config.engine) return out;
  out.asked = true;
  out.reasons = unsupported(*config.engine, config.requirements);
  if (!config.engine->attention_backend)
    out.notes.push_back("the attention backend is the engine's own choice");
  return out;
}

Check check_attentions(const DeploymentConfig& config) {
  Check out{"attention", "every attention layer runs the backend that the decode step reads", {}, {}, {}};
  for (const AttentionLayer& layer : config.layers) {
    if (!layer.backend) continue;
    out.asked = true;
    add(out.reasons, attempt([&] { check_attention(layer.name, *layer.backend, config.requirements); }));
  }
  return out;
}

// Every reason of every layer that says something, led by the layer's name.
template <typename Part, typename Ask>
void ask_layers(const DeploymentConfig& config, std::optional<Part> AttentionLayer::*part, const Ask& ask,
                Check& out) {
  for (const AttentionLayer& layer : config.layers) {
    if (!(layer.*part)) continue;
    out.asked = true;
    for (const std::string& reason : ask(*(layer.*part))) out.reasons.push_back(layer.name + ": " + reason);
  }
}

Check check_metadata(const DeploymentConfig& config) {
  Check out{"decode-metadata", "decode metadata are a block table and sequence lengths", {}, {}, {}};
  ask_layers(config, &AttentionLayer::decode, trtllm_decode, out);
  return out;
}

Check check_rope(const DeploymentConfig& config) {
  Check out{"rope", "who rotates queries and keys", {}, {}, {}};
  std::int64_t library = 0;
  std::int64_t stock = 0;
  ask_layers(
      config, &AttentionLayer::rope,
      [&](Rope rope) {
        (library_rope(rope) ? library : stock)++;
        const std::optional<Rope> wanted = config.requirements.rope;
        return wanted && *wanted != rope
                   ? Reasons{fmt::format("rope is '{}', wanted '{}'", name(rope), name(*wanted))}
                   : Reasons{};
      },
      out);
  if (out.asked)
    out.notes.push_back(fmt::format("{} of {} layers run the library's RoPE, {} the stock op", library,
                                    library + stock, stock));
  return out;
}

Check check_kv(const DeploymentConfig& config) {
  Check out{"kv-insert", "keys and values are stored as plain bf16, HND", {}, {}, {}};
  ask_layers(
      config, &AttentionLayer::kv_cache,
      [&](const KvCache& cache) { return bf16_kv_insert(cache, config.requirements); }, out);
  return out;
}

Check check_parts(const RunConfig& run) {
  Check out{"parts", "device, group and backend are in this build", true, {}, {}};
  add(out.reasons, lacking("device", run.device));
  add(out.reasons, lacking("group", run.group));
  add(out.reasons, attempt([&] { (void)op::backend(run.backend); }));
  return out;
}

// What is known of the model, for a memory request; nothing where something is missing.
std::optional<decode::MemoryRequest> sizes_of(const ModelSizes& given, Check& check) {
  checkpoint::ModelConfig config;
  if (given.config) {
    Verdict unread = attempt([&] { config = checkpoint::read_config_at(*given.config); });
    add(check.reasons, unread);
    if (unread) return std::nullopt;
    // Routes can come from the engine; kerf's own router is asked for logits and for blocks alone.
    if (const Verdict v = attempt([&] { (void)decode::router_of(config); }))
      check.notes.push_back("routes must come with ids and weights, for kerf has no such router: " + v->text);
    if (config.quant_algo.empty() && !given.bf16_layers)
      check.notes.push_back("the config names no quantisation: counted as NVFP4 layers");
  }
  decode::MemoryRequest out;
  out.experts = given.experts.value_or(config.experts);
  out.hidden = given.hidden.value_or(config.hidden);
  out.intermediate = given.intermediate.value_or(config.intermediate);
  out.top_k = given.top_k.value_or(config.top_k);
  const std::int64_t layers = given.layers.value_or(given.config ? checkpoint::routed_layers(config) : 1);
  out.bf16_layers = given.bf16_layers.value_or(given.config ? checkpoint::excluded_layers(config) : 0);
  out.nvfp4_layers = layers - out.bf16_layers;
  if (given.config)
    out.weight_only_layers = std::clamp<std::int64_t>(checkpoint::weight_only_layers(config), 0,
                                                      std::max<std::int64_t>(out.nvfp4_layers, 0));
  if (out.nvfp4_layers < 0)
    check.reasons.push_back(
        fmt::format("bf16_layers is {}, but there are {} layers", out.bf16_layers, layers));
  if (out.top_k < 1 || out.top_k > out.experts)
    check.reasons.push_back(fmt::format("top_k is {}, wanted 1 to the {} experts", out.top_k, out.experts));
  check.notes.push_back(fmt::format("{} NVFP4 and {} BF16 layers of {} experts, {} x {}, top {}",
                                    out.nvfp4_layers, out.bf16_layers, out.experts, out.hidden,
                                    out.intermediate, out.top_k));
  return out;
}

Check check_model(const ModelSizes& model, std::optional<decode::MemoryRequest>& sizes) {
  Check out{"model", "kerf can read the model's config and hold its experts", true, {}, {}};
  sizes = sizes_of(model, out);
  if (!sizes) return out;
  if (sizes->nvfp4_layers > 0) add(out.reasons, layout::convertible(sizes->hidden, sizes->intermediate));
  if (sizes->bf16_layers > 0) add(out.reasons, layout::convertible_bf16(sizes->hidden, sizes->intermediate));
  if (!out.ok()) sizes.reset();  // what follows would only say it again
  return out;
}

Check check_placement(const RunConfig& run, std::optional<decode::MemoryRequest>& model) {
  Check out{"placement", "the experts can be placed over the ranks", model.has_value(), {}, {}};
  if (!model) return out;
  decode::GridShape grid;
  add(out.reasons, attempt([&] { grid = decode::grid_shape(run.ranks, run.ep, run.tp); }));
  if (!out.ok()) return out;
  // Where a cut was not asked for and cannot be, what decode does with --mode ep is judged.
  if (!run.tp && !run.ep) {
    if (model->nvfp4_layers == 0) {
      grid = {run.ranks, 1};
    } else if (const Verdict why = layout::cuttable(model->hidden, model->intermediate, grid.tp)) {
      out.notes.push_back("EP alone (--mode ep): expert TP is not possible: " + why->text);
      grid = {run.ranks, 1};
    }
  }
  model->rows = grid.ep;
  model->tp = grid.tp;
  add(out.reasons, layout::placeable(model->experts, model->ranks));
  if (model->nvfp4_layers > 0)
    add(out.reasons, layout::cuttable(model->hidden, model->intermediate, model->tp));
  // Whatever else there is, unless it is the same again.
  if (out.ok()) add(out.reasons, decode::unsupported(*model));
  if (out.ok())
    out.notes.push_back(
        fmt::format("{} ranks: {} experts each; EP {} x TP {}, {} experts of a row, slices {} wide",
                    run.ranks, model->experts / model->ranks, grid.ep, grid.tp, model->experts / grid.ep,
                    model->intermediate / grid.tp));
  return out;
}

std::string in_words(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes < 1 << 30 ? fmt::format("{:.2f} MiB", value / (1 << 20))
                         : fmt::format("{:.2f} GiB", value / (1 << 30));
}

Check check_memory(const RunConfig& run, const std::optional<decode::MemoryRequest>& model,
                   const Machine& machine) {
  Check out{"memory", "every rank has the memory that it needs at most", model.has_value(), {}, {}};
  if (!model) return out;
  const decode::MemoryPlan plan = decode::memory_plan(*model);
  const std::int64_t needed = std::max({plan.load, plan.reshard, plan.steady});
  const std::int64_t there = run.memory_per_rank.value_or(machine.memory / run.ranks);
  const char* whose = run.memory_per_rank ? "memory_gib_per_rank" : "this machine's, in equal parts";
  if (needed > there)
    out.reasons.push_back(fmt::format("a rank needs {} at its most, {} are there ({})", in_words(needed),
                                      in_words(there), whose));
  out.notes.push_back(fmt::format(
      "a rank: stock experts {}, at most {} while resharding, {} in steps; {} "
      "are there ({})",
      in_words(plan.load), in_words(plan.reshard), in_words(plan.steady), in_words(there), whose));
  return out;
}

}  // namespace

std::vector<Check> run_checks(const DeploymentConfig& config, const Machine& machine) {
  const RunConfig run = config.run.value_or(RunConfig{});
  if (run.ranks < 1) fail(ErrorKind::usage, "run.ranks is {}, wanted 1 or more", run.ranks);
  std::vector<Check> out = {check_engine(config), check_attentions(config), check_metadata(config),
                            check_rope(config), check_kv(config)};
  out.push_back(check_parts(run));
  out.back().asked = config.run.has_value();

  std::optional<decode::MemoryRequest> model;
  if (config.model)
    out.push_back(check_model(*config.model, model));
  else
    out.push_back({"model", "kerf can read the model's config and hold its experts", {}, {}, {}});
  if (model) {
    model->ranks = run.ranks;
    model->tokens = run.tokens;
    model->input = run.input;
    // An unknown backend is a reason of its own already.
    if (!attempt([&] { (void)op::backend(run.backend); })) model->backend = run.backend;
    model->workers = threads_per_rank(static_cast<int>(machine.cores), static_cast<int>(run.ranks));
  }
  out.push_back(check_placement(run, model));
  if (!out.back().ok()) model.reset();
  out.push_back(check_memory(run, model, machine));
  if (config.model)
    for (Check& check : out)
      if (!check.asked && (check.name == "placement" || check.name == "memory"))
        check.notes.emplace_back("cannot be told before the reasons above are gone");
  return out;
}

Reasons unsupported(const DeploymentConfig& config, const Machine& machine) {
  Reasons out;
  for (const Check& check : run_checks(config, machine))
    for (const std::string& reason : check.reasons) out.push_back(fmt::format("{}: {}", check.name, reason));
  return out;
}

}  // namespace kerf::deploy
