// What `kerf decode` does: the routed experts of a checkpoint, in EP and in expert TP, on inputs that the
// seed determines; measured, and digested so that two runs can be compared bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/probe.h"
#include "kerf/decode/runtime.h"
#include "kerf/decode/startup.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// What a decode does; equal on all ranks.
struct Options {
  BuildOptions build;
  BlockKind block = BlockKind::none;           // the block around the experts that steps run, too
  std::vector<Mode> modes = {Mode::ep};        // in this order; Mode::tp makes the run reshard
  std::vector<std::int64_t> batches = {1, 8};  // tokens of a step, each 1 to most_tokens
  std::uint64_t seed = 1;
  ProbeOptions probe;
  int repetitions = 5;   // of every layer's step, at least; 1 or more
  double seconds = 2.0;  // a mode, batch and tail is measured about so long where `repetitions` take less
  std::vector<op::Tactic> preferred;                   // of sliced experts: RuntimeOptions
  std::vector<tail::Kind> tails = {tail::Kind::fast};  // each mode and batch is measured with each
  std::vector<tactics::PreferredList> lists = tactics::measured_lists();
  TuneOptions tune;
  Progress progress;
};

// What was decoded: numbers of layers, and the model's E, H, D, I and K.
struct Facts {
  std::int64_t layers = 0;  // those that were decoded
  std::int64_t nvfp4_layers = 0;
  std::int64_t bf16_layers = 0;
  std::int64_t experts = 0;
  std::int64_t hidden = 0;
  std::int64_t model_hidden = 0;  // the model's own width: that of rows where a block is run
  std::int64_t intermediate = 0;  // the model's I
  std::int64_t width = 0;  // I of the converted experts, padding included: NVFP4's, where there are any
  std::int64_t top_k = 0;
};

// One mode at one batch with one tail. Times are microseconds; on a device they are of one graph of all
// layers, by its clock: the median over its replays, over the number of layers. Where blocks are run,
// busiest_rank_bytes has their weights too.
struct StepReport {
  Mode mode = Mode::ep;
  std::int64_t batch = 0;
  tail::Kind tail = tail::Kind::fast;
  double us_per_layer = 0;  // of each layer the median over repetitions of the slowest rank; their mean
  double experts_us_per_layer = 0;      // the same of the experts' part (quantisation to tail) inside a block
  std::int64_t busiest_rank_bytes = 0;  // of each layer the most that a rank reads; their sum (traffic.h)
  std::string output_sha256;            // over the bf16 rows [T, H] ([T, D] of a block), layers ascending
};

// The tactic of sliced experts (stock experts where there are none) at the first batch.
struct TacticReport {
  int tile = 0;
  int config = -1;
  bool pinned = false;
  bool tuned = false;   // neither: the op's default
  int preference = -1;  // its place in the list of preferred tactics; -1: not pinned
  int of = 0;           // length of that list
};

// What the tuner found for stock experts that are alike.
struct TunedKind {
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  layout::ExpertsShape shape;  // on one rank
  std::vector<TunedTactic> tactics;
};

// The tactics of stock experts, where the tuner was asked for.
struct StockTactics {
  TuneReport found;
  std::vector<TunedKind> tuned;  // every kind, in the layers' order
};

// What a decode found and measured; equal on all ranks but for what is said to be of one.
struct Report {
  Facts checkpoint;
  int ranks = 0;
  int ep = 1;                        // rows of ranks in Mode::tp, each with all slices of its experts
  int tp = 1;                        // ranks of a row; without Mode::tp: every rank is a row of its own
  std::vector<std::int64_t> slices;  // widths of a row's slices, ascending ranks; empty without Mode::tp
  std::string group;
  std::string backend;
  // What NVFP4 layers ran on: quantised rows in any of them, or bf16 (also where there is no such layer).
  op::Input input = op::Input::bf16;
  std::optional<ShardReport> reshard;
  BlockKind block = BlockKind::none;
  double probe_limit = 0;
  TacticReport tactic;
  StockTactics stock_tactics;
  Footprint footprint;                   // of the rank that has most
  Startup startup;                       // of each stage the slowest rank; bytes of all
  std::vector<std::int64_t> read_bytes;  // of tensors, from files: by each rank
  std::vector<StepReport> steps;
};

// Collective; the report is equal on all ranks. Errors on every rank alike: those of Runtime::build()
// (build(), shard(), build_blocks()); usage (an empty list, a batch out of range, no repetition); bug where
// two repetitions, two ranks, or two modes with exact tails, differ in any bit.
Report run(const checkpoint::Checkpoint& from, const Options& options, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
