#include "kerf/decode/plan.h"

#include <algorithm>
#include <array>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/tactics/choose.h"
#include "kerf/tactics/setting.h"
#include "kerf/tactics/tactics.h"

namespace kerf::decode {

namespace {

// A layer's experts in one mode; layers alike in all that a size or a body can depend on are asked once.
struct Bound {
  const Layer* layer;
  Mode mode;
  [[nodiscard]] const op::RoutedExperts& experts() const { return layer->experts(mode); }
};

bool is_of(const Prepared& p, const Layer& layer, Mode mode) {
  const op::RoutedExperts& experts = layer.experts(mode);
  return p.kind == layer.kind && p.sliced == layer.sliced_in(mode) && p.shape == experts.shape() &&
         p.input == experts.input();
}

// One layer and mode of each kind, in the layers' order.
std::vector<Bound> distinct(std::span<const Layer> layers, bool stock_alone = false,
                            std::vector<Prepared>* kinds = nullptr) {
  std::vector<Bound> out;
  std::vector<Prepared> seen;
  for (const Layer& layer : layers) {
    for (const Mode mode : {Mode::ep, Mode::tp}) {
      if ((stock_alone && mode == Mode::tp) || !layer.runs(mode)) continue;
      if (std::any_of(seen.begin(), seen.end(), [&](const Prepared& p) { return is_of(p, layer, mode); }))
        continue;
      out.push_back({&layer, mode});
      const op::RoutedExperts& experts = layer.experts(mode);
      seen.push_back({layer.kind, layer.sliced_in(mode), experts.shape(), experts.input(), {}, {}});
    }
  }
  if (kinds != nullptr) *kinds = std::move(seen);
  return out;
}

bool holds(const std::vector<op::Tactic>& keys, op::Tactic key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// The public op's own default, which any step may fall back to.
StepSizes sizes_at(const op::RoutedExperts& experts, std::int64_t tokens, op::Tactic tactic) {
  const std::int64_t tile = tactic.tile > 0 ? tactic.tile : op::tiles.front();
  const routing::MetadataShape shape = experts.metadata_shape(tokens, tile);
  return {routing::metadata_words(shape), op::gemm2_rows(shape, experts.shape().hidden),
          static_cast<std::int64_t>(experts.workspace_bytes(shape, tactic))};
}

// Prepares the bodies of one kind of experts, and returns what their steps need.
StepSizes prepare(const op::RoutedExperts& experts, const Plan& plan, std::vector<op::Tactic>& prepared) {
  StepSizes sizes;
  std::vector<op::Tactic> asked;
  for (std::int64_t t = plan.max_tokens; t >= 0; --t) {
    sizes.cover(sizes_at(experts, t, {}));
    for (const op::Tactic key : tactics::tactic_keys(experts.tactics(t), t, experts.top_k(),
                                                     experts.shape().experts, plan.largest_tile)) {
      sizes.cover(sizes_at(experts, t, key));
      if (holds(asked, key)) continue;
      asked.push_back(key);
      if (const std::string_view kind = experts.workspace_kind(key); kind != experts.workspace_kind({}))
        fail(ErrorKind::unsupported,
             "the workspace's kind differs by tactic: '{}' at tile {}, config {}, '{}' at the default", kind,
             key.tile, key.config, experts.workspace_kind({}));
      if (!experts.prepare(key)) prepared.push_back(key);
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

void allocate(Plan& plan, const StepSizes& sizes, std::span<const Layer> layers, bool stock_alone,
              const Rank& rank) {
  using tensor::Dtype;
  tensor::Memory& memory = rank.memory;
  const op::RoutedExperts& experts = layers.front().bound();
  const bool sliced = !stock_alone && std::any_of(layers.begin(), layers.end(),
                                                  [](const Layer& l) { return l.tp != nullptr; });
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

bool runs_always(const op::RoutedExperts& experts, op::Tactic tactic, std::int64_t first, std::int64_t last) {
  for (std::int64_t t = first; t <= last; ++t)
    if (!holds(experts.tactics(t), tactic)) return false;
  return true;
}

std::vector<op::Tactic> of_rank_0(const std::vector<op::Tactic>& mine, std::string_view what,
                                  const Rank& rank) {
  return tactics::tactics_from(comm::gather_text(rank.group, tactics::text_of(mine), what).front());
}

const Prepared& Plan::prepared_for(const Layer& layer, Mode mode) const {
  const auto found = std::find_if(prepared.begin(), prepared.end(),
                                  [&](const Prepared& p) { return is_of(p, layer, mode); });
  if (found == prepared.end()) fail(ErrorKind::bug, "nothing was prepared for layer {}", layer.index);
  return *found;
}

std::optional<op::Tactic> Plan::tuned_for(const Layer& layer, Mode mode, std::int64_t tokens) const {
  const std::int64_t bucket = tactics::bucket_of(tokens, max_tokens);
  for (const TunedTactic& tuned : prepared_for(layer, mode).tuned)
    if (tuned.tokens == bucket) return tuned.tactic;
  return std::nullopt;
}

op::Tactic Plan::resolve(const Layer& layer, Mode mode, std::int64_t tokens) const {
  const op::RoutedExperts& experts = layer.experts(mode);
  const op::Tactic chosen =
      layer.sliced_in(mode) ? tactic.tactic : tuned_for(layer, mode, tokens).value_or(op::Tactic{});
  return tactics::tactic_key(chosen, tokens, experts.top_k(), experts.shape().experts);
}

std::optional<op::Tactic> Plan::body_tactic(const Layer& layer, Mode mode, std::int64_t tokens) const {
  const op::Tactic key = resolve(layer, mode, tokens);
  if (!holds(prepared_for(layer, mode).keys, key)) return std::nullopt;
  return key;
}

Plan make_plan(std::span<const Layer> layers, const PlanOptions& options, const Rank& rank) {
  Plan plan;
  comm::agreed(rank.group, "planning", [&] {
    if (options.max_tokens < 1 || options.max_tokens > most_tokens)
      fail(ErrorKind::usage, "a step of {} tokens, wanted 1 to {}", options.max_tokens, most_tokens);
    if (layers.empty()) fail(ErrorKind::bug, "a plan without layers");
    plan.max_tokens = options.max_tokens;
    plan.largest_tile = options.largest_tile;
    plan.calls = rank.calls;
    plan.tail = options.tail;
    StepSizes sizes;
    const std::vector<Bound> kinds = distinct(layers, options.public_op_alone, &plan.prepared);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const op::RoutedExperts& experts = kinds[i].experts();
      sizes.cover(options.public_op_alone ? sizes_at(experts, plan.max_tokens, {})
                                          : prepare(experts, plan, plan.prepared[i].keys));
    }
    allocate(plan, sizes, layers, options.public_op_alone, rank);
  });
  return plan;
}

TacticChoice pin(const Plan& plan, std::span<const Layer> layers, std::span<const op::Tactic> preferred,
                 const std::string& unknown, const Rank& rank) {
  TacticChoice choice;
  choice.of = static_cast<int>(preferred.size());
  std::vector<Bound> sliced = distinct(layers);
  std::erase_if(sliced, [](const Bound& b) { return !b.layer->sliced_in(b.mode); });
  if (sliced.empty()) return choice;
  for (int i = 0; i < choice.of && !choice.pinned; ++i) {
    const op::Tactic tactic = preferred[static_cast<std::size_t>(i)];
    bool mine = false;
    comm::agreed(rank.group, "trying a preferred tactic", [&] {
      mine = std::all_of(sliced.begin(), sliced.end(), [&](const Bound& b) {
        return holds(plan.prepared_for(*b.layer, b.mode).keys, tactic) &&
               runs_always(b.experts(), tactic, 1, plan.max_tokens);
      });
    });
    if (comm::all_min(rank.group, mine ? 1 : 0, "pinning a tactic") == 1)
      choice = {tactic, true, i, choice.of};
  }
  if (!choice.pinned)
    rank.warning(
        choice.of == 0
            ? fmt::format("expert TP: no tactics were measured {}, so the op's default runs", unknown)
            : fmt::format("expert TP: none of {} preferred tactics runs 1 to {} tokens on every rank, so the "
                          "op's default does",
                          choice.of, plan.max_tokens));
  return choice;
}

void warn_of_missing_bodies(const Plan& plan, std::span<const Layer> layers, const Rank& rank) {
  std::vector<op::Tactic> missing;
  for (const Bound& b : distinct(layers))
    for (std::int64_t t = 1; t <= plan.max_tokens; ++t)
      if (!plan.body_tactic(*b.layer, b.mode, t))
        if (const op::Tactic key = plan.resolve(*b.layer, b.mode, t); !holds(missing, key))
          missing.push_back(key);
  std::vector<op::Tactic> said;
  for (const std::string& of_rank :
       comm::gather_text(rank.group, tactics::text_of(missing), "bodies that are not prepared"))
    for (const op::Tactic key : tactics::tactics_from(of_rank)) {
      if (holds(said, key)) continue;
      said.push_back(key);
      rank.warning(
          fmt::format("no body is prepared for tactic tile {}, config {}: steps that come to it run "
                      "the public op, which routes itself, at its default",
                      key.tile, key.config));
    }
}

}  // namespace kerf::decode
