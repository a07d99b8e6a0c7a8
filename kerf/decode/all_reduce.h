// The all-reduce that a decode runs as a step of its own, apart from the tails: [b, model width] bf16 over
// the whole group, in the order of the all-reduce that the rest of the model takes. Which number of ranks
// needs one is the model's matter and stands in a specification. It is resolved, checked and bound once,
// collectively; a step allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kerf/comm/all_reduce.h"
#include "kerf/decode/build.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// Where a decode has an all-reduce apart from its tails, and which. `engine` is borrowed for as long as what
// is bound with it.
struct AllReduceSpec {
  std::int64_t model_width = 0;            // values of a row; 0: there is no all-reduce apart from the tails
  std::vector<int> own_step_tps = {16};    // numbers of ranks at which it is a step of its own
  std::vector<int> checked_tps = {8, 16};  // at which the backend is checked (an own step always is)
  // One of comm::all_reduce_names() (or of the engine's backends); "auto": the first of `allowed` that takes
  // the decode's rows, or what the engine has.
  std::string backend = "auto";
  // What the backend may be or resolve to; empty: "one-shot" up to 1 MiB of all ranks' values, above
  // "two-shot", for "auto", and any name with a known order otherwise.
  std::vector<std::string> allowed = {};
  const comm::AllReduce* engine = nullptr;  // an engine's own (comm/engine_all_reduce.h); null: kerf's

  // Whether it is a step of its own at `tp` ranks; whether it is checked there.
  [[nodiscard]] bool own_step(int tp) const;
  [[nodiscard]] bool checked(int tp) const;
};

// What build() settled, equal on every rank.
struct AllReduceReport {
  bool checked = false;
  bool own_step = false;
  std::string configured;  // spec.backend
  std::string resolved;    // the name that it stands for; empty where nothing was checked
  comm::SumOrder order = comm::SumOrder::rank_order;  // of the largest prepared step
};

// The all-reduce of a decode step, bound: scratch and all.
class StepAllReduce {
 public:
  // Collective: resolves and checks at the numbers of ranks that want it, and binds at those that run it. For
  // steps of up to `max_tokens` rows. Errors on every rank alike: usage (an unknown name, a width outside [0,
  // 2^30]), unsupported (a backend that is not allowed, that is not the engine's, whose order is not known,
  // that does not take the rows; ranks that are told or resolve different things: both named), memory.
  static StepAllReduce bind(const AllReduceSpec& spec, std::int64_t max_tokens, const Rank& rank);

  // What bind() settled.
  [[nodiscard]] const AllReduceReport& report() const { return report_; }

  // Nothing, or why rows of `values` values in all are not summed: unsupported where this number of ranks has
  // no such step (which do), usage for no whole number of rows and for more rows than prepared.
  [[nodiscard]] Verdict refused(std::size_t values, int ranks) const;

  // The order in which run() sums so many values of each rank; errors as there.
  [[nodiscard]] comm::SumOrder order(std::size_t values, int ranks) const;

  // Collective: sum = the ranks' `mine`, both [b <= prepared, model width] bf16 (raw bits) and of one size;
  // `sum` may be `mine`. Error where refused(), before anything is sent: the sizes must be the same on every
  // rank. Works in this object's scratch, one call at a time.
  void run(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum, const Rank& rank) const;

  // Collective, nothing where it is no step of its own: runs it for one row and for the most, on values that
  // tell orders and roundings apart. Error{probe} on every rank where any got other bits than the order says.
  void warm_up(const Rank& rank) const;

 private:
  AllReduceSpec spec_;
  AllReduceReport report_;
  std::int64_t max_tokens_ = 0;
  const comm::AllReduce* bound_ = nullptr;  // null: no step of its own here
  tensor::Tensor scratch_;                  // bf16
};

// What one decode step may reach of kerf on `tp` ranks: NVFP4 layers the op below its routing, in EP and in
// expert TP alike (the public op instead where a tactic has no body); BF16 layers, given logits, the op that
// routes itself; and the all-reduce, where it is a step of its own.
CallSet expected_calls(const AllReduceSpec& spec, int tp, bool nvfp4_layers, bool bf16_layers);

}  // namespace kerf::decode
#pragma GCC visibility pop
