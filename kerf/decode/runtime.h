// The runtime of a stack of layers on one rank of a group: build, warm_up, then execute step by step. Every
// call is collective. build loads the experts (and, for expert TP, reshards and probes them) and plans;
// warm_up runs everything once; execute does nothing but work.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kerf/base/function_ref.h"
#include "kerf/block/block.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/comm/facts.h"
#include "kerf/decode/adopt.h"
#include "kerf/decode/all_reduce.h"
#include "kerf/decode/block.h"
#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/plan.h"
#include "kerf/decode/probe.h"
#include "kerf/decode/refill.h"
#include "kerf/decode/room.h"
#include "kerf/decode/shard.h"
#include "kerf/decode/startup.h"
#include "kerf/decode/step.h"
#include "kerf/decode/tune.h"
#include "kerf/routing/router.h"
#include "kerf/tactics/preferred.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Called on rank 0 as work goes on: "loading" (in bytes of experts, all ranks'; of an export in layers),
// "resharding" (in layers), ...; how much is done, and of how much. What it throws ends the start on all
// ranks.
using Progress = std::function<void(std::string_view stage, std::int64_t done, std::int64_t of)>;

// What build() makes ready; equal on all ranks.
struct RuntimeOptions {
  BuildOptions build;
  bool expert_tp = false;
  BlockKind block = BlockKind::none;  // what execute_block() runs
  ProbeOptions probe;
  std::int64_t max_tokens = 8;          // a step's most tokens, 1 to most_tokens
  std::int64_t warm_tokens = 8;         // tokens of the warm-up; taken into [1, max_tokens]
  int largest_tile = op::tiles.back();  // PlanOptions::largest_tile
  // For sliced experts: tactics, best first; where there are none, the list among `lists` that was measured
  // for these experts here (rank 0's counts).
  std::vector<op::Tactic> preferred;
  std::vector<tactics::PreferredList> lists = tactics::measured_lists();
  TuneOptions tune;  // for stock experts
  // What the host has for all ranks together. Left out, it is this machine's free memory where the ranks are
  // threads of this process; where they are not, nothing is asked: other hosts have room of their own.
  std::optional<Room> room;
  // Of all steps. Kind::exact needs slices that are nodes of the sum over K (exact.h); others are refused. A
  // runtime that was built for it runs fast steps too.
  tail::Options tail{};
  Progress progress;
  AllReduceSpec all_reduce;  // what it refers to must outlive the runtime
  comm::Facts facts;         // of the caller: what else must be equal on every rank (start_facts.h)
};

// Bytes on this rank.
struct Footprint {
  std::int64_t stock = 0;   // whole experts
  std::int64_t sliced = 0;  // TP experts
  std::int64_t block = 0;   // weights of the blocks around the experts
  std::int64_t steps = 0;   // buffers of steps, shared by all layers
};

// One rank's experts, ready for steps. One call at a time: steps share buffers, and each ends what the one
// before gave.
class Runtime {
 public:
  // The checkpoint and what `rank` refers to must outlive the runtime. Before a byte of a tensor is read the
  // ranks compare what they start from (start_facts.h): where it differs, all of them throw the same error,
  // with the ranks and both values. Error{memory} with the whole sum, before anything is loaded, where all
  // ranks' parts do not fit. Other errors, the same on every rank: those of of_rank(), select_layers(),
  // shardable(), unsupported_block(), exact_refused(), build() or load_exported(), build_blocks(), shard(),
  // make_plan() and StepAllReduce::bind().
  static Runtime build(const checkpoint::Checkpoint& from, const RuntimeOptions& options, const Rank& rank);

  // The same over layers that an engine holds (adopt.h), without a checkpoint. Of options.build, backend and
  // fit.uneven alone say anything. Errors, the same on every rank: those of decode::adopt(), exact_refused(),
  // shard(), make_plan() and StepAllReduce::bind(); usage where options choose layers or a block, and for a K
  // that is none of E experts.
  static Runtime adopt(std::span<const StockLayer> layers, const ModelSize& model,
                       const RuntimeOptions& options, const Rank& rank);

  // What build() made: layers in its order, the plan, how the cut went (nothing without expert TP), what was
  // tuned.
  [[nodiscard]] std::span<const Layer> layers() const { return layers_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const std::optional<ShardReport>& sharding() const { return sharding_; }
  [[nodiscard]] const TuneReport& tuning() const { return tuning_; }
  // The router of made logits (inputs.h): `renormalize`, whatever router the checkpoint has.
  [[nodiscard]] const routing::Router& router() const { return router_; }
  [[nodiscard]] const Footprint& footprint() const { return footprint_; }
  // What building took on this rank; its warm_up is 0: whoever calls that times it.
  [[nodiscard]] const Startup& startup() const { return startup_; }
  // A layer each; empty for BlockKind::none.
  [[nodiscard]] std::span<const LayerBlock> blocks() const { return blocks_; }

  // What the all-reduce apart from the tails was resolved to.
  [[nodiscard]] const AllReduceReport& all_reduce_report() const { return all_reduce_.report(); }

  // Runs every layer in every mode once, with routes that leave no rank without experts to run; and the
  // all-reduce, where it is a step of its own, whose bits are compared with its order: Error{probe} on every
  // rank where they are others.
  void warm_up() const;

  // One layer's step (`position` counts the built layers): [T, H] bf16, equal on every rank, valid until the
  // next step. Inputs that do not fit (refused()) throw before any collective: they must be the same on every
  // rank, so that all refuse alike. So do, with Error{usage}, a position that is none, Mode::ep on exported
  // slices, and an exact step where fast ones alone were built for. `tail`: where it is not the one that was
  // built for.
  std::span<const std::uint16_t> execute(std::size_t position, Mode mode, const StepInputs& inputs,
                                         TailKind tail = {}) const;

  // The layer's step with the block around it: x [T, D] bf16, the normed rows of the model's width, the same
  // on every rank -> [T, D] bf16, equal on every rank, valid until the next step. Routes are the router's.
  // The time that the experts took (quantisation to tail) goes to `experts`. Error{usage}, before any
  // collective, for a runtime without blocks, for sizes that do not fit and as of execute().
  std::span<const std::uint16_t> execute_block(std::size_t position, Mode mode, std::int64_t tokens,
                                               std::span<const std::uint16_t> x, TailKind tail = {},
                                               std::chrono::nanoseconds* experts = nullptr) const;

  // Local: the routes that execute_block() takes for these rows, weights before a BF16 layer rounds them.
  // Errors of execute_block(), and its scratch: what that gave last is overwritten.
  struct Chosen {
    std::vector<std::int32_t> ids;  // [T, K]
    std::vector<float> weights;     // [T, K]
  };
  [[nodiscard]] Chosen routes_of_block(std::size_t position, std::int64_t tokens,
                                       std::span<const std::uint16_t> x) const;

  // For steps with more tokens than execute() is prepared for: calls the public op, with stock experts, in
  // buffers made for this one step. [T, H] bf16, equal on every rank, with the bits that a runtime prepared
  // for as many tokens gives in EP, with the tail that this one was built for. Errors: those of execute(),
  // usage for more than most_tokens tokens, memory.
  [[nodiscard]] std::vector<std::uint16_t> execute_unprepared(std::size_t position,
                                                              const StepInputs& inputs) const;

  // The sum over ranks of [b <= max_tokens, model width] bf16 (raw bits), the same on every rank; `sum` may
  // be `mine`. Error{unsupported} that tells which numbers of ranks have this step where this one has not;
  // Error{usage} for other sizes. The sizes must be the same on every rank.
  void all_reduce(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum) const {
    all_reduce_.run(mine, sum, rank_);
  }
  // Local: the order in which all_reduce() sums so many values of each rank, for whoever adds them up on a
  // device. Its errors.
  [[nodiscard]] comm::SumOrder sum_order(std::size_t values) const {
    return all_reduce_.order(values, rank_.group.size());
  }

  // Collective, between steps: new weights for one layer, from a checkpoint of the same model (an export of
  // it, one that is fed to the ranks), at the addresses that the old ones have: whole experts and slices,
  // scalars, gated parameters, norm, and the weights of the block around them. Plans, prepared bodies and
  // captured graphs stay valid, and steps go on allocating nothing. Until the ranks have voted, the new
  // weights are in memory of their own (one layer's experts, and slices): Error{memory} where that is too
  // much, with the sum. Whatever else is wrong is refused before the vote too, on every rank with the same
  // reason, and the layer is what it was: a source that differs between ranks, another model, kind or width
  // of experts, activation or routing (checkpoint, with got and wanted), all that build() refuses, and slices
  // beyond the probe's limit. After the vote a device alone can fail: Error{device} on every rank, and the
  // layer is of no use any more. The source need not outlive the call.
  RefillReport refill(std::size_t position, const checkpoint::Checkpoint& source);
  // The same from an engine's tensors, with adopt()'s refusals. A layer that was built copies them. One that
  // was adopted lies in them: the engine has written its new values to where the old ones were, which the
  // source must name again (Error{usage}), and kerf makes its slices and copies of scalars anew: those are
  // all or nothing. Then source.gated must outlive the runtime as the old ones had to. Error{unsupported} for
  // a runtime with blocks.
  RefillReport refill(std::size_t position, const StockLayer& source);

 private:
  [[nodiscard]] Refillable refillable(std::size_t position);
  void require_one_refill(std::size_t position, std::string_view from,
                          FunctionRef<comm::Facts()> of_source) const;
  void warm_up_blocks() const;
  [[nodiscard]] const Layer& at(std::size_t position) const;
  [[nodiscard]] const block::Weights& block_at(std::size_t position, std::int64_t tokens,
                                               std::size_t x) const;
  Runtime(const Rank& rank, routing::Router router) : rank_(rank), router_(router) {}
  // Layers, blocks, expert TP, plan: what building and adopting have in common.
  static Runtime assemble(const std::function<std::vector<Layer>(Startup&)>& layers,
                          const std::function<std::vector<LayerBlock>(std::span<const Layer>)>& blocks,
                          const routing::Router& router, const RuntimeOptions& options, const Rank& rank);

  Rank rank_;
  routing::Router router_;
  std::vector<Layer> layers_;
  std::vector<LayerBlock> blocks_;
  block::Scratch block_scratch_;
  std::optional<ShardReport> sharding_;
  Plan plan_;
  StepAllReduce all_reduce_;
  TuneReport tuning_;
  Footprint footprint_;
  Startup startup_;
  std::int64_t warm_tokens_ = 0;
  RuntimeOptions options_;                           // as they were carried out
  std::optional<checkpoint::ModelConfig> config_{};  // of the checkpoint; nothing: adopted
};

}  // namespace kerf::decode
#pragma GCC visibility pop
