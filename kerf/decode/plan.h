// What a step needs besides the experts, resolved and sized once: tactics, the bodies that are prepared at
// them, and a metadata buffer, a workspace, a row buffer and a tail scratch, which ALL layers share in both
// modes, and which suffice for any step up to the prepared number of tokens at any prepared tactic. After
// this a step allocates nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/routing/metadata.h"
#include "kerf/tail/tail.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// The most tokens that a step can be prepared for.
inline constexpr std::int64_t most_tokens = 65'536;

// The tactic of steps on sliced experts, and how it was found.
struct TacticChoice {
  op::Tactic tactic;  // (-1, -1): the op's default
  // The first preferred tactic that every rank can run at every prepared number of tokens.
  bool pinned = false;
  int preference = -1;  // its place in the list of preferred tactics, -1 where not pinned
  int of = 0;           // length of that list
};

// How large the shared buffers of steps are.
struct StepSizes {
  std::int64_t metadata_words = 0;  // of 32 bits
  std::int64_t rows = 0;            // gemm2_rows, of width H
  std::int64_t workspace = 0;       // bytes

  // Room for one more step too.
  void cover(const StepSizes& other);
};

// Bytes that a Plan of these sizes allocates, for steps of up to `tokens` tokens of `top_k` routes and width
// `hidden`, on one of `ranks` ranks with `workers` workers.
struct StepExtent {
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  std::int64_t ranks = 1;
  std::int64_t workers = 1;
  std::int64_t slices = 1;  // ranks that share an expert
  tail::Options tail{};
};
std::int64_t step_bytes(const StepSizes& sizes, const StepExtent& extent);

// What steps are prepared for.
struct PlanOptions {
  std::int64_t max_tokens = 8;  // 1 to most_tokens
  // Tiles above this one get no metadata: their bodies are not prepared, and steps that come to them take the
  // public op.
  int largest_tile = op::tiles.back();
  tail::Options tail{};
  // For one step of exactly max_tokens on stock experts: the public op at its default is all that is planned.
  bool public_op_alone = false;
};

// A tactic of stock experts for the steps of one bucket (tactics::bucket_of).
struct TunedTactic {
  std::int64_t tokens = 0;  // the bucket
  op::Tactic tactic;
  friend bool operator==(const TunedTactic&, const TunedTactic&) = default;
};

// What experts that are alike have in common: of one kind and shape, in one mode.
struct Prepared {
  checkpoint::ExpertKind kind = checkpoint::ExpertKind::nvfp4;
  bool sliced = false;
  layout::ExpertsShape shape;
  op::Input input = op::Input::nvfp4;
  std::vector<op::Tactic> keys;    // (tile, config) with a body
  std::vector<TunedTactic> tuned;  // buckets ascending; empty: the op's default

  // Weights and rows of such experts.
  [[nodiscard]] op::Arithmetic arithmetic() const { return arithmetic_of(kind, input); }
};

// Tactics and buffers of all steps: one of each buffer serves all layers. T is max_tokens.
struct Plan {
  std::int64_t max_tokens = 0;
  int largest_tile = op::tiles.back();
  TacticChoice tactic;
  std::vector<Prepared> prepared;
  routing::MetadataBuffer metadata;
  tensor::Tensor workspace;           // bytes
  tensor::Tensor rows;                // [gemm2_rows, H] bf16
  tensor::Tensor sums;                // [gemm2_rows, H] f32: of sliced experts, for exact tails alone
  tensor::Tensor codes, code_scales;  // U8 [T, H/2], F8_E4M3 [T, H/16]: the quantised input
  tensor::Tensor ids, weights;        // [T, K] i32, f32: routes of layers that are given logits
  tensor::Tensor out;                 // [T, H] bf16
  tail::Options tail;                 // exact: prepared for fast steps too
  tail::Scratch scratch;
  CallRecord* calls = nullptr;  // where steps record the entries they reach; null: nowhere

  // The op's buffers among them; the plan must outlive their use.
  [[nodiscard]] op::Buffers buffers() const {
    return {&metadata, workspace.bytes(), rows.as<std::uint16_t>(), calls};
  }
  // What experts like the layer's have in common; Error{bug} for a layer that was not planned.
  [[nodiscard]] const Prepared& prepared_for(const Layer& layer, Mode mode) const;
  // The tuner's tactic for such a step; nothing where it found none. Errors of prepared_for(), also of the
  // next two.
  [[nodiscard]] std::optional<op::Tactic> tuned_for(const Layer& layer, Mode mode, std::int64_t tokens) const;
  // The key of a step's tactic: pinned on sliced experts, the tuner's on stock ones, the op's default where
  // there is neither. The tile is never -1.
  [[nodiscard]] op::Tactic resolve(const Layer& layer, Mode mode, std::int64_t tokens) const;
  // Before anything is routed, on the host alone: the tactic at which the step's body runs from metadata, or
  // nothing where none is prepared: the public op runs, at its own default. Allocates nothing.
  [[nodiscard]] std::optional<op::Tactic> body_tactic(const Layer& layer, Mode mode,
                                                      std::int64_t tokens) const;
};

// Collective. For max_tokens down to 1 (and 0) tokens, at the op's default and at every tactic that it takes
// for so many: prepares the body, once a (tile, config) and kind of experts, and makes each buffer as large
// as the one that needs most; tiles above the largest are passed over. No tactic is chosen yet. Errors, the
// same on every rank: usage for max_tokens outside [1, most_tokens], unsupported where kinds of workspace
// differ between tactics, memory, bug for no layers.
Plan make_plan(std::span<const Layer> layers, const PlanOptions& options, const Rank& rank);

// Collective. Picks from `preferred` (best first, the same on all ranks) the first tactic that has a prepared
// body and is valid for every number of tokens from 1 to the plan's most, on all sliced layers of all ranks.
// Without such a one: the default, with one warning; `unknown` says for what no list was found where
// preferred is empty. Nothing is timed.
TacticChoice pin(const Plan& plan, std::span<const Layer> layers, std::span<const op::Tactic> preferred,
                 const std::string& unknown, const Rank& rank);

// Collective. Rank 0's list, on every rank.
std::vector<op::Tactic> of_rank_0(const std::vector<op::Tactic>& mine, std::string_view what,
                                  const Rank& rank);

// Whether a tactic is valid for every number of tokens in [first, last]. Local.
bool runs_always(const op::RoutedExperts& experts, op::Tactic tactic, std::int64_t first, std::int64_t last);

// Collective. One warning for each tactic that a step can come to and for which some rank has no body, so
// that steps, which then take the public op, need not say it.
void warn_of_missing_bodies(const Plan& plan, std::span<const Layer> layers, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
