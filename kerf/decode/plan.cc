#include "kerf/decode/plan.h"

#include <algorithm>
#include <array>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/tactics/tactics.h"

namespace kerf::decode {

namespace {

// A layer's experts in one mode; layers alike in all that a size can depend on are asked once.
struct Bound {
  const Layer* layer;
  Mode mode;
};

bool alike(const Bound& a, const Bound& b) {
  const op::RoutedExperts& x = a.layer->experts(a.mode);
  const op::RoutedExperts& y = b.layer->experts(b.mode);
  return a.layer->kind == b.layer->kind && a.layer->sliced_in(a.mode) == b.layer->sliced_in(b.mode) &&
         x.shape() == y.shape() && x.input() == y.input();
}

std::vector<Bound> distinct(std::span<const Layer> layers) {
  std::vector<Bound> out;
  for (const Layer& layer : layers) {
    for (const Mode mode : {Mode::ep, Mode::tp}) {
      const Bound bound{&layer, mode};
      if (std::none_of(out.begin(), out.end(), [&](const Bound& seen) { return alike(seen, bound); }))
        out.push_back(bound);
    }
  }
  return out;
}

bool runs_always(const op::RoutedExperts& experts, op::Tactic tactic, std::int64_t max_tokens) {
  for (std::int64_t t = 1; t <= max_tokens; ++t) {
    const std::vector<op::Tactic> valid = experts.tactics(t);
    if (std::find(valid.begin(), valid.end(), tactic) == valid.end()) return false;
  }
  return true;
}

StepSizes sizes_of(const std::vector<Bound>& bound, const Plan& plan) {
  StepSizes sizes;
  for (std::int64_t t = 0; t <= plan.max_tokens; ++t) {
    for (const Bound& b : bound) {
      const op::RoutedExperts& experts = b.layer->experts(b.mode);
      const op::Tactic tactic = plan.resolve(*b.layer, b.mode, t);
      const routing::MetadataShape shape = experts.metadata_shape(t, tactic.tile);
      sizes.cover({routing::metadata_words(shape), op::gemm2_rows(shape, experts.shape().hidden),
                   static_cast<std::int64_t>(experts.workspace_bytes(shape, tactic))});
    }
  }
  return sizes;
}

tail::Extent tail_extent(const StepExtent& e) {
  return {e.tokens, e.top_k, e.hidden, e.ranks, e.workers, e.slices, e.tail};
}

// f32 rows that the op writes for exact tails of sliced experts.
std::int64_t sum_rows(const StepSizes& sizes, const StepExtent& e) {
  return e.tail.kind == tail::Kind::exact && e.slices > 1 ? sizes.rows : 0;
}

void allocate(Plan& plan, const StepSizes& sizes, std::span<const Layer> layers, const Rank& rank) {
  using tensor::Dtype;
  tensor::Memory& memory = rank.memory;
  const op::RoutedExperts& experts = layers.front().experts(Mode::ep);
  const bool sliced =
      std::any_of(layers.begin(), layers.end(), [](const Layer& l) { return l.tp != nullptr; });
  const std::int64_t t = plan.max_tokens;
  const std::int64_t hidden = experts.shape().hidden;
  const std::int64_t k = experts.top_k();
  plan.metadata = routing::MetadataBuffer(memory, sizes.metadata_words);
  plan.workspace = tensor::Tensor(memory, Dtype::u8, {sizes.workspace});
  plan.rows = tensor::Tensor(memory, Dtype::bf16, {sizes.rows, hidden});
  plan.codes = tensor::Tensor(memory, Dtype::u8, {t, hidden / 2});
  plan.code_scales = tensor::Tensor(memory, Dtype::f8_e4m3, {t, hidden / 16});
  plan.ids = tensor::Tensor(memory, Dtype::i32, {t, k});
  plan.weights = tensor::Tensor(memory, Dtype::f32, {t, k});
  plan.out = tensor::Tensor(memory, Dtype::bf16, {t, hidden});
  const StepExtent extent{
      t, k, hidden, rank.group.size(), rank.workers.size(), sliced ? rank.row().size() : 1, plan.tail};
  if (const std::int64_t rows = sum_rows(sizes, extent); rows > 0)
    plan.sums = tensor::Tensor(memory, Dtype::f32, {rows, hidden});
  plan.scratch = tail::Scratch(memory, tail_extent(extent));
}

}  // namespace

void StepSizes::cover(const StepSizes& other) {
  metadata_words = std::max(metadata_words, other.metadata_words);
  rows = std::max(rows, other.rows);
  workspace = std::max(workspace, other.workspace);
}

std::int64_t step_bytes(const StepSizes& sizes, const StepExtent& e) {
  const std::int64_t quantised = e.tokens * (e.hidden / 2 + e.hidden / 16);
  const std::int64_t routes = e.tokens * e.top_k * (4 + 4);
  return 4 * sizes.metadata_words + sizes.workspace + quantised + routes +
         2 * e.hidden * (sizes.rows + e.tokens) + 4 * e.hidden * sum_rows(sizes, e) +
         tail::scratch_bytes(tail_extent(e));
}

TacticChoice pin(std::span<const Layer> layers, std::span<const op::Tactic> preferred,
                 std::int64_t max_tokens, const Rank& rank) {
  TacticChoice choice;
  choice.of = static_cast<int>(preferred.size());
  std::vector<Bound> sliced = distinct(layers);
  std::erase_if(sliced, [](const Bound& b) { return !b.layer->sliced_in(b.mode); });
  for (int i = 0; i < choice.of && !choice.pinned && !sliced.empty(); ++i) {
    bool mine = false;
    comm::agreed(rank.group, "trying a preferred tactic", [&] {
      mine = std::all_of(sliced.begin(), sliced.end(), [&](const Bound& b) {
        return runs_always(b.layer->experts(b.mode), preferred[static_cast<std::size_t>(i)], max_tokens);
      });
    });
    if (comm::all_min(rank.group, mine ? 1 : 0, "pinning a tactic") == 1)
      choice = {preferred[static_cast<std::size_t>(i)], true, i, choice.of};
  }
  if (!choice.pinned && !sliced.empty())
    rank.warning(
        choice.of == 0
            ? "expert TP: no tactics were measured for this kernel package, so the op's default runs"
            : fmt::format("expert TP: none of {} preferred tactics runs 1 to {} tokens on every rank, so the "
                          "op's default does",
                          choice.of, max_tokens));
  return choice;
}

op::Tactic Plan::resolve(const Layer& layer, Mode mode, std::int64_t tokens) const {
  const op::RoutedExperts& experts = layer.experts(mode);
  const op::Tactic chosen = layer.sliced_in(mode) ? tactic.tactic : op::Tactic{};
  return tactics::tactic_key(chosen, tokens, experts.top_k(), experts.shape().experts);
}

Plan make_plan(std::span<const Layer> layers, const TacticChoice& tactic, std::int64_t max_tokens,
               const Rank& rank, const tail::Options& tail) {
  Plan plan;
  comm::agreed(rank.group, "planning", [&] {
    if (max_tokens < 1 || max_tokens > most_tokens)
      fail(ErrorKind::usage, "a step of {} tokens, wanted 1 to {}", max_tokens, most_tokens);
    if (layers.empty()) fail(ErrorKind::bug, "a plan without layers");
    plan.max_tokens = max_tokens;
    plan.tactic = tactic;
    plan.calls = rank.calls;
    plan.tail = tail;
    allocate(plan, sizes_of(distinct(layers), plan), layers, rank);
  });
  return plan;
}

}  // namespace kerf::decode
