#include "kerf/decode/runtime.h"

#include <algorithm>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/exact.h"
#include "kerf/decode/inputs.h"

namespace kerf::decode {

namespace {

// What made logits are routed by. Not by the checkpoint's router: which experts a measured step reads must
// not depend on how the config describes it, nor on whether kerf knows it.
routing::Router router_for(const checkpoint::ModelConfig& config) {
  routing::Router router;
  router.method = routing::Method::renormalize;
  router.experts = config.experts;
  router.top_k = config.top_k;
  require(routing::unsupported(router));
  return router;
}

// One line that tells how the TP build went.
void log_sharding(const Rank& rank, std::span<const Layer> layers, const ShardReport& report,
                  const Plan& plan, std::int64_t first_tokens) {
  const auto layer =
      std::find_if(layers.begin(), layers.end(), [](const Layer& l) { return l.tp != nullptr; });
  if (layer == layers.end()) return;
  const op::Tactic tactic = plan.resolve(*layer, Mode::tp, first_tokens);
  const TacticChoice& choice = plan.tactic;
  rank.info(
      fmt::format("expert TP over {} ranks: {} NVFP4 layers ({} BF16 layers stay EP), {} experts of width {} "
                  "on each rank, {:.3f} GiB added a rank; probe rel L2 {:.6f} to {:.6f}; tactic at {} "
                  "tokens: tile {}, config {}, "
                  "{}; {:.3f} s",
                  rank.group.size(), report.nvfp4_layers, report.bf16_layers, layer->sliced->shape.experts,
                  layer->sliced->shape.intermediate, static_cast<double>(report.bytes_per_rank) / (1U << 30U),
                  report.min_rel_l2, report.max_rel_l2, first_tokens, tactic.tile, tactic.config,
                  choice.pinned ? fmt::format("pinned, preference {} of {}", choice.preference + 1, choice.of)
                                : std::string("the op's default"),
                  report.seconds));
}

}  // namespace

Runtime Runtime::build(const checkpoint::Checkpoint& from, const RuntimeOptions& options, const Rank& rank) {
  routing::Router router;
  comm::agreed(rank.group, "checking what to build", [&] {
    const std::vector<std::int64_t> layers = select_layers(from, options.build.layers);
    router = router_for(from.config());
    if (options.expert_tp) require(shardable(from, layers, rank.group.size()));
    if (options.expert_tp && options.tail.kind == tail::Kind::exact)
      require(exact_refused(from, layers, options.build.input, rank.row().size()));
    if (options.max_tokens < 1 || options.max_tokens > most_tokens)
      fail(ErrorKind::usage, "steps of up to {} tokens, wanted 1 to {}", options.max_tokens, most_tokens);
  });
  if (!rank.group.ordered())
    rank.warning(
        fmt::format("group '{}' does not sum ranks in their order: outputs may differ in their last bits "
                    "between runs, and from those of other groups",
                    rank.group.name()));
  BuildOptions loading = options.build;
  const bool reports = options.progress && rank.group.rank() == 0;
  if (reports)
    loading.progress = [&](std::int64_t done, std::int64_t of) { options.progress("loading", done, of); };

  const std::int64_t before = rank.memory.current();
  Runtime out(rank, router, decode::build(from, loading, rank));
  out.footprint_.stock = rank.memory.current() - before;
  if (options.expert_tp) {
    ShardOptions sharding{options.build.backend, options.probe, {}};
    if (reports)
      sharding.progress = [&](std::int64_t done, std::int64_t of) {
        options.progress("resharding", done, of);
      };
    out.sharding_ = shard(out.layers_, sharding, rank);
    out.footprint_.sliced = rank.memory.current() - before - out.footprint_.stock;
  }
  const TacticChoice tactic = pin(out.layers_, options.preferred, options.max_tokens, rank);
  out.plan_ = make_plan(out.layers_, tactic, options.max_tokens, rank, options.tail);
  out.all_reduce_ = StepAllReduce::bind(options.all_reduce, options.max_tokens, rank);
  out.footprint_.steps = rank.memory.current() - before - out.footprint_.stock - out.footprint_.sliced;
  out.warm_tokens_ = std::clamp<std::int64_t>(options.warm_tokens, 1, options.max_tokens);
  if (out.sharding_) log_sharding(rank, out.layers_, *out.sharding_, out.plan_, out.warm_tokens_);
  return out;
}

void Runtime::warm_up() const {
  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<float> logits;
  comm::agreed(rank_.group, "making the warm-up's inputs", [&] {
    x = unit_rows(0, warm_tokens_, layers_.front().ep->shape().hidden);
    ids = spread_routes(warm_tokens_, router_.top_k, router_.experts);
    weights.assign(ids.size(), 1.0F / static_cast<float>(router_.top_k));
    logits.assign(static_cast<std::size_t>(warm_tokens_ * router_.experts), 0.0F);
    for (std::size_t r = 0; r < ids.size(); ++r) {
      const std::size_t token = r / static_cast<std::size_t>(router_.top_k);
      logits[token * static_cast<std::size_t>(router_.experts) + static_cast<std::size_t>(ids[r])] = 1.0F;
    }
  });
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    StepInputs inputs{warm_tokens_, x, {}, {}, ids, weights, nullptr, {}, {}};
    if (layer.kind == checkpoint::ExpertKind::bf16)
      inputs = {warm_tokens_, x, {}, {}, {}, {}, &router_, logits, {}};
    for (const tail::Kind kind : {tail::Kind::fast, tail::Kind::exact}) {
      if (kind == tail::Kind::exact && plan_.tail.kind != kind) continue;
      (void)execute(i, Mode::ep, inputs, kind);
      if (layer.tp != nullptr) (void)execute(i, Mode::tp, inputs, kind);
    }
  }
  all_reduce_.warm_up(rank_);
}

const Layer& Runtime::at(std::size_t position) const {
  if (position >= layers_.size())
    fail(ErrorKind::usage, "layer number {} of a runtime with {} layers", position, layers_.size());
  return layers_[position];
}

std::span<const std::uint16_t> Runtime::execute(std::size_t position, Mode mode, const StepInputs& inputs,
                                                TailKind tail) const {
  const Layer& layer = at(position);
  require(refused(layer, plan_, inputs));
  if (tail == tail::Kind::exact && plan_.tail.kind != tail::Kind::exact)
    fail(ErrorKind::usage, "an exact step of a runtime that was built for fast ones");
  return decode::execute(layer, mode, inputs, plan_, rank_, tail);
}

std::vector<std::uint16_t> Runtime::execute_unprepared(std::size_t position, const StepInputs& inputs) const {
  const Layer& layer = at(position);
  const Plan plan =
      make_plan(std::span(&layer, 1), {}, std::max<std::int64_t>(inputs.tokens, 1), rank_, plan_.tail);
  require(refused(layer, plan, inputs));
  const op::Unfinalized rows = run_public_op(layer, Mode::ep, inputs, plan, rank_.workers);
  const std::span<const std::uint16_t> out = run_tail(layer, Mode::ep, rows, plan, rank_);
  return {out.begin(), out.end()};
}

}  // namespace kerf::decode
