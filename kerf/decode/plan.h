// What a step needs besides the experts, resolved and sized once: the tactic, and a metadata buffer, a
// workspace, a row buffer and a tail scratch, which ALL layers share in both modes, and which suffice for any
// step up to the prepared number of tokens. After this a step allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/routing/metadata.h"
#include "kerf/tail/tail.h"
#include "kerf/tensor/storage.h"

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

// Collective. Picks from `preferred` (best first, as measured earlier; nothing has been for the CPU backends
// yet) the first tactic that all sliced layers of all ranks can run for every number of tokens from
// 1 to max_tokens. Without such a one: the default, with one warning. Nothing is timed.
TacticChoice pin(std::span<const Layer> layers, std::span<const op::Tactic> preferred,
                 std::int64_t max_tokens, const Rank& rank);

// How large the shared buffers of steps are.
struct StepSizes {
  std::int64_t metadata_words = 0;
  std::int64_t rows = 0;
  std::int64_t workspace = 0;  // bytes

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

struct Plan {
  std::int64_t max_tokens = 0;
  TacticChoice tactic;
  routing::MetadataBuffer metadata;
  tensor::Tensor workspace;           // bytes
  tensor::Tensor rows;                // [gemm2_rows, H] bf16
  tensor::Tensor sums;                // [gemm2_rows, H] f32: of sliced experts, for exact tails alone
  tensor::Tensor codes, code_scales;  // [T, H/2], [T, H/16]: the quantised input
  tensor::Tensor ids, weights;        // [T, K] i32, f32: routes of layers that are given logits
  tensor::Tensor out;                 // [T, H] bf16
  tail::Options tail;                 // exact: prepared for fast steps too
  tail::Scratch scratch;
  CallRecord* calls = nullptr;  // where steps record the entries they reach; null: nowhere

  [[nodiscard]] op::Buffers buffers() const {
    return {&metadata, workspace.bytes(), rows.as<std::uint16_t>(), calls};
  }
  // Resolved: the tile is never -1.
  [[nodiscard]] op::Tactic resolve(const Layer& layer, Mode mode, std::int64_t tokens) const;
};

// Collective. Sizes for 0..max_tokens tokens and the tail; Error{usage} for max_tokens outside [1,
// most_tokens], Error{memory} agreed over the ranks.
Plan make_plan(std::span<const Layer> layers, const TacticChoice& tactic, std::int64_t max_tokens,
               const Rank& rank, const tail::Options& tail = {});

}  // namespace kerf::decode
