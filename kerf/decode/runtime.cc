#include "kerf/decode/runtime.h"

#include <algorithm>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/function_ref.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/exact.h"
#include "kerf/decode/exported.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/internal/start_room.h"
#include "kerf/decode/start_facts.h"

namespace kerf::decode {

namespace {

// What made logits are routed by. Not by the checkpoint's router: which experts a measured step reads must
// not depend on how the config describes it, nor on whether kerf knows it.
routing::Router router_for(const ModelSize& model) {
  routing::Router router;
  router.method = routing::Method::renormalize;
  router.experts = model.experts;
  router.top_k = model.top_k;
  require(routing::unsupported(router));
  return router;
}

void check_tokens(std::int64_t max_tokens) {
  if (max_tokens < 1 || max_tokens > most_tokens)
    fail(ErrorKind::usage, "steps of up to {} tokens, wanted 1 to {}", max_tokens, most_tokens);
}

Verdict tail_refused(const Plan& plan, TailKind tail) {
  if (tail != tail::Kind::exact || plan.tail.kind == tail::Kind::exact) return std::nullopt;
  return because(ErrorKind::usage, "an exact step of a runtime that was built for fast ones");
}

Verdict lacking(const Layer& layer, Mode mode) {
  if (layer.runs(mode)) return std::nullopt;
  return because(ErrorKind::usage, "layer {}: an {} step on exported slices, which have no whole experts",
                 layer.index, name(mode));
}

// Before anything else: whoever starts from something else has other collectives to call.
void require_alike(const Rank& rank, const RuntimeOptions& options, FunctionRef<comm::Facts()> of_model) {
  comm::require_same(rank.group, "comparing what the ranks start from", [&] {
    comm::Facts all = facts_of(rank, options.build.backend);
    for (const comm::Facts& more : {of_model(), facts_of(options)})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

// One line that tells how the TP build went.
void log_sharding(const Rank& rank, std::span<const Layer> layers, const ShardReport& report,
                  const Plan& plan, std::int64_t first_tokens) {
  const auto layer =
      std::find_if(layers.begin(), layers.end(), [](const Layer& l) { return l.tp != nullptr; });
  if (layer == layers.end()) return;
  const op::Tactic tactic = plan.resolve(*layer, Mode::tp, first_tokens);
  const TacticChoice& choice = plan.tactic;
  const int tp = rank.row().size();
  const int rows = rank.group.size() / tp;
  const std::int64_t width = layer->width();
  const std::int64_t widest = layout::slice_of(width, tp, 0).width;
  const std::int64_t narrowest = layout::slice_of(width, tp, tp - 1).width;
  rank.info(
      fmt::format("expert TP over {} ranks{}: {} NVFP4 layers ({} BF16 layers stay EP), {} experts of width "
                  "{}{} on each rank, {:.3f} GiB added a rank; probe rel L2 {:.6f} to {:.6f}; tactic at {} "
                  "tokens: tile {}, config {}, {}; {:.3f} s",
                  tp, rows > 1 ? fmt::format(" in each of {} rows (EP)", rows) : std::string(),
                  report.nvfp4_layers, report.bf16_layers, layer->sliced->shape.experts, widest,
                  narrowest < widest ? fmt::format(" or {}", narrowest) : std::string(),
                  static_cast<double>(report.bytes_per_rank) / (1U << 30U), report.min_rel_l2,
                  report.max_rel_l2, first_tokens, tactic.tile, tactic.config,
                  choice.pinned ? fmt::format("pinned, preference {} of {}", choice.preference + 1, choice.of)
                                : std::string("the op's default"),
                  report.seconds));
}

// Pins the tactic of the sliced experts, from the options' own preferences or the list that fits.
void choose_tactics(Plan& plan, std::span<const Layer> layers, const RuntimeOptions& options,
                    const Rank& rank) {
  const auto sliced =
      std::find_if(layers.begin(), layers.end(), [](const Layer& l) { return l.tp != nullptr; });
  if (sliced == layers.end()) return;
  std::vector<op::Tactic> preferred = options.preferred;
  std::string unknown;
  if (preferred.empty()) {
    const op::RoutedExperts& tp = *sliced->tp;
    const tactics::PreferredList* list = tactics::find_list(
        options.lists,
        tactics::setting_of(op::backend(options.build.backend), tp.shape(), tp.num_experts(), tp.top_k()),
        plan.prepared_for(*sliced, Mode::tp).arithmetic(), &unknown);
    if (list != nullptr) preferred = list->tactics;
  }
  preferred = of_rank_0(preferred, "the preferred tactics", rank);
  plan.tactic = pin(plan, layers, preferred, unknown, rank);
}

}  // namespace

Runtime Runtime::build(const checkpoint::Checkpoint& source, const RuntimeOptions& wanted, const Rank& rank) {
  require_alike(rank, wanted, [&] { return facts_of(source); });
  RuntimeOptions options = wanted;
  options.build.fit = fit_of(source, wanted.build.fit);
  options.build.slices = options.expert_tp ? rank.row().size() : 1;
  checkpoint::Checkpoint from = of_rank(source, options.build.slices, options.build.fit, rank);
  if (from.carrier() == nullptr) comm::agreed(rank.group, "opening", [&] { from = from.counted(); });
  routing::Router router;
  comm::agreed(rank.group, "checking what to build", [&] {
    const std::vector<std::int64_t> layers = select_layers(from, options.build.layers);
    router = router_for({from.config().experts, from.config().top_k});
    if (options.expert_tp) require(shardable(from, layers, rank.row().size(), options.build.fit));
    require(unsupported_block(from, layers, options.block));
    if (options.expert_tp && options.tail.kind == tail::Kind::exact)
      require(exact_refused(from, layers, options.build.input, rank.row().size(), options.build.fit));
    check_tokens(options.max_tokens);
    require(internal::no_room_for(from, layers, options, rank));
  });
  BuildOptions loading = options.build;
  if (options.progress && rank.group.rank() == 0)
    loading.progress = [&](std::int64_t done, std::int64_t of) { options.progress("loading", done, of); };
  Runtime out = assemble([&](Startup& startup) { return decode::load(from, loading, rank, &startup); },
                         [&](std::span<const Layer> layers) {
                           std::vector<std::int64_t> indices;
                           for (const Layer& layer : layers) indices.push_back(layer.index);
                           return build_blocks(from, indices, options.block, rank);
                         },
                         router, options, rank);
  out.startup_.read_bytes = from.read_bytes();
  out.config_ = from.config();
  return out;
}

Runtime Runtime::adopt(std::span<const StockLayer> layers, const ModelSize& model,
                       const RuntimeOptions& options, const Rank& rank) {
  require_alike(rank, options, [&] { return facts_of(model); });
  routing::Router router;
  comm::agreed(rank.group, "checking what to adopt", [&] {
    if (!options.build.layers.empty())
      fail(ErrorKind::usage,
           "layers are chosen from a checkpoint; of an engine's, all that are given are taken");
    if (options.block != BlockKind::none)
      fail(ErrorKind::usage,
           "a block around the experts is built from a checkpoint, not from an engine's layers");
    router = router_for(model);
    check_tokens(options.max_tokens);
  });
  return assemble(
      [&](Startup& startup) {
        const Timing timing(startup.check);
        return decode::adopt(layers, model, options.build.backend, rank);
      },
      [](std::span<const Layer>) { return std::vector<LayerBlock>(); }, router, options, rank);
}

Runtime Runtime::assemble(const std::function<std::vector<Layer>(Startup&)>& layers,
                          const std::function<std::vector<LayerBlock>(std::span<const Layer>)>& blocks,
                          const routing::Router& router, const RuntimeOptions& options, const Rank& rank) {
  if (!rank.group.ordered())
    rank.warning(
        fmt::format("group '{}' does not sum ranks in their order: outputs may differ in their last bits "
                    "between runs, and from those of other groups",
                    rank.group.name()));
  const bool reports = options.progress && rank.group.rank() == 0;
  const std::int64_t before = rank.in_use();
  Runtime out(rank, router);
  out.options_ = options;
  out.options_.progress = {};
  Startup& startup = out.startup_;
  out.layers_ = layers(startup);
  // Slices that were exported as such are there already.
  for (const Layer& layer : out.layers_)
    if (layer.sliced) out.footprint_.sliced += layer.sliced->bytes();
  const bool resident = out.footprint_.sliced > 0;
  out.footprint_.stock = rank.in_use() - before - out.footprint_.sliced;
  {
    const Timing timing(startup.blocks);
    out.blocks_ = blocks(out.layers_);
  }
  out.footprint_.block = rank.in_use() - before - out.footprint_.stock - out.footprint_.sliced;
  if (options.expert_tp) {
    if (options.tail.kind == tail::Kind::exact)
      comm::agreed(rank.group, "checking for exact tails",
                   [&] { require(exact_refused(out.layers_, rank.row().size())); });
  }
  if (options.expert_tp && !resident) {
    ShardOptions sharding{options.build.backend, options.probe, {}, options.build.fit.uneven};
    if (reports)
      sharding.progress = [&](std::int64_t done, std::int64_t of) {
        options.progress("resharding", done, of);
      };
    out.sharding_ = shard(out.layers_, sharding, rank);
    startup.reshard = out.sharding_->seconds;
    startup.probe = out.sharding_->probe_seconds;
    out.footprint_.sliced = rank.in_use() - before - out.footprint_.stock - out.footprint_.block;
  }
  // Bodies first: a tactic is chosen among those that have one.
  {
    const Timing timing(startup.plan);
    out.plan_ = make_plan(out.layers_, {options.max_tokens, options.largest_tile, options.tail}, rank);
    choose_tactics(out.plan_, out.layers_, options, rank);
  }
  {
    const Timing timing(startup.tune);
    out.tuning_ = tune(out.plan_, out.layers_, options.build.backend, options.tune, rank);
  }
  {
    const Timing timing(startup.plan);
    warn_of_missing_bodies(out.plan_, out.layers_, rank);
    out.all_reduce_ = StepAllReduce::bind(options.all_reduce, options.max_tokens, rank);
    if (!out.blocks_.empty())
      comm::agreed(rank.group, "planning the blocks", [&] {
        out.block_scratch_ =
            block::Scratch(rank.memory, out.blocks_.front().weights, options.max_tokens, rank.workers.size());
      });
  }
  const Footprint& held = out.footprint_;
  out.footprint_.steps = rank.in_use() - before - held.stock - held.block - held.sliced;
  out.warm_tokens_ = std::clamp<std::int64_t>(options.warm_tokens, 1, options.max_tokens);
  if (out.sharding_) log_sharding(rank, out.layers_, *out.sharding_, out.plan_, out.warm_tokens_);
  return out;
}

void Runtime::warm_up() const {
  Inputs in;
  comm::agreed(rank_.group, "making the warm-up's inputs", [&] {
    in = spread_inputs(0, warm_tokens_,
                       {router_.experts, layers_.front().bound().shape().hidden, router_.top_k});
    in.logits.assign(static_cast<std::size_t>(warm_tokens_ * router_.experts), 0.0F);
    for (std::size_t r = 0; r < in.ids.size(); ++r) {
      const std::size_t token = r / static_cast<std::size_t>(router_.top_k);
      in.logits[token * static_cast<std::size_t>(router_.experts) + static_cast<std::size_t>(in.ids[r])] =
          1.0F;
    }
  });
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    StepInputs inputs{warm_tokens_, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
    if (layer.kind == checkpoint::ExpertKind::bf16)
      inputs = {warm_tokens_, in.x, {}, {}, {}, {}, &router_, in.logits, {}};
    for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact}) {
      if (kind == tail::Kind::exact && plan_.tail.kind != kind) continue;
      if (layer.runs(Mode::ep)) (void)execute(i, Mode::ep, inputs, kind);
      if (layer.tp != nullptr) (void)execute(i, Mode::tp, inputs, kind);
    }
  }
  all_reduce_.warm_up(rank_);
  warm_up_blocks();
}

void Runtime::warm_up_blocks() const {
  if (blocks_.empty()) return;
  std::vector<std::uint16_t> x;
  comm::agreed(rank_.group, "making the warm-up's rows",
               [&] { x = unit_rows(0, warm_tokens_, blocks_.front().weights.model_hidden()); });
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].runs(Mode::ep)) (void)execute_block(i, Mode::ep, warm_tokens_, x);
    if (layers_[i].tp != nullptr) (void)execute_block(i, Mode::tp, warm_tokens_, x);
  }
}

const Layer& Runtime::at(std::size_t position) const {
  if (position >= layers_.size())
    fail(ErrorKind::usage, "layer number {} of a runtime with {} layers", position, layers_.size());
  return layers_[position];
}

std::span<const std::uint16_t> Runtime::execute(std::size_t position, Mode mode, const StepInputs& inputs,
                                                TailKind tail) const {
  const Layer& layer = at(position);
  require(lacking(layer, mode));
  require(refused(layer, plan_, inputs));
  require(tail_refused(plan_, tail));
  return decode::execute(layer, mode, inputs, plan_, rank_, tail);
}

const block::Weights& Runtime::block_at(std::size_t position, std::int64_t tokens, std::size_t x) const {
  (void)at(position);
  if (blocks_.empty()) fail(ErrorKind::usage, "a runtime that was built without blocks around the experts");
  const block::Weights& weights = blocks_[position].weights;
  if (tokens < 0 || tokens > plan_.max_tokens)
    fail(ErrorKind::usage, "a step of {} tokens, prepared for at most {}", tokens, plan_.max_tokens);
  if (std::int64_t wanted = tokens * weights.model_hidden(); static_cast<std::size_t>(wanted) != x)
    fail(ErrorKind::usage, "a step with {} values of x, wanted {} ({} tokens of width {})", x, wanted, tokens,
         weights.model_hidden());
  return weights;
}

std::span<const std::uint16_t> Runtime::execute_block(std::size_t position, Mode mode, std::int64_t tokens,
                                                      std::span<const std::uint16_t> x, TailKind tail,
                                                      std::chrono::nanoseconds* experts) const {
  const block::Weights& weights = block_at(position, tokens, x.size());
  require(lacking(layers_[position], mode));
  require(tail_refused(plan_, tail));
  const block::Entered in = block::enter(weights, tokens, x, rank_.workers, block_scratch_);
  const StepInputs step{tokens, in.rows, {}, {}, {}, {}, &weights.router, in.logits, weights.bias};
  const auto start = std::chrono::steady_clock::now();
  const std::span<const std::uint16_t> m = decode::execute(layers_[position], mode, step, plan_, rank_, tail);
  if (experts != nullptr) *experts = std::chrono::steady_clock::now() - start;
  return block::leave(weights, tokens, m, rank_.workers, block_scratch_);
}

Runtime::Chosen Runtime::routes_of_block(std::size_t position, std::int64_t tokens,
                                         std::span<const std::uint16_t> x) const {
  const block::Weights& weights = block_at(position, tokens, x.size());
  const block::Entered in = block::enter(weights, tokens, x, rank_.workers, block_scratch_);
  Chosen out;
  out.ids.resize(static_cast<std::size_t>(tokens * weights.router.top_k));
  out.weights.resize(out.ids.size());
  routing::select(weights.router, in.logits, weights.bias, out.ids, out.weights);
  return out;
}

// What the ranks refill, and what from: compared before anybody follows the one or the other.
void Runtime::require_one_refill(std::size_t position, std::string_view from,
                                 FunctionRef<comm::Facts()> of_source) const {
  comm::require_same(rank_.group, "comparing what the ranks refill", [&] {
    comm::Facts all = {{"layer to refill", fmt::format("{}", at(position).index), ErrorKind::usage},
                       {"source", std::string(from), ErrorKind::usage}};
    const comm::Facts more = of_source();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

Refillable Runtime::refillable(std::size_t position) {
  return {layers_[position],
          blocks_.empty() ? nullptr : &blocks_[position],
          options_,
          config_ ? &*config_ : nullptr,
          {router_.experts, router_.top_k}};
}

RefillReport Runtime::refill(std::size_t position, const checkpoint::Checkpoint& source) {
  require_one_refill(position, "a checkpoint", [&] { return facts_of(source); });
  return decode::refill(refillable(position), source, rank_);
}

RefillReport Runtime::refill(std::size_t position, const StockLayer& source) {
  require_one_refill(position, "an engine's layer", [&] {
    return facts_of(ModelSize{router_.experts, router_.top_k});
  });
  return decode::refill(refillable(position), source, rank_);
}

std::vector<std::uint16_t> Runtime::execute_unprepared(std::size_t position, const StepInputs& inputs) const {
  const Layer& layer = at(position);
  require(lacking(layer, Mode::ep));
  const std::int64_t most = std::max<std::int64_t>(inputs.tokens, 1);
  const Plan plan = make_plan(std::span(&layer, 1), {most, plan_.largest_tile, plan_.tail, true}, rank_);
  require(refused(layer, plan, inputs));
  const op::Unfinalized rows = run_public_op(layer, Mode::ep, inputs, plan, rank_.workers);
  const std::span<const std::uint16_t> out = run_tail(layer, Mode::ep, rows, plan, rank_);
  return {out.begin(), out.end()};
}

}  // namespace kerf::decode
