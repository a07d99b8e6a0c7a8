#include "kerf/decode/tune.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/inputs.h"
#include "kerf/decode/step.h"
#include "kerf/tactics/cache.h"
#include "kerf/tactics/choose.h"
#include "kerf/tactics/setting.h"

namespace kerf::decode {

namespace {

using tactics::CacheEntry;

// One kind of stock experts, by the layer that stands for it.
struct Kind {
  Prepared* prepared;
  const Layer* layer;
};

std::vector<Kind> stock_kinds(Plan& plan, std::span<const Layer> layers) {
  std::vector<Kind> out;
  for (Prepared& p : plan.prepared) {
    if (p.sliced) continue;
    const auto layer = std::ranges::find_if(
        layers, [&](const Layer& l) { return l.runs(Mode::ep) && &plan.prepared_for(l, Mode::ep) == &p; });
    if (layer != layers.end()) out.push_back({&p, &*layer});
  }
  return out;
}

// Whether every rank can run the tactic for all numbers of tokens of the bucket.
bool usable(const Kind& kind, op::Tactic tactic, std::int64_t bucket, const Rank& rank) {
  const std::vector<op::Tactic>& keys = kind.prepared->keys;
  const bool mine = std::find(keys.begin(), keys.end(), tactic) != keys.end() &&
                    runs_always(*kind.layer->ep, tactic, tactics::first_in(bucket), bucket);
  return comm::all_min(rank.group, mine ? 1 : 0, "a candidate of the tuner") == 1;
}

// The winner among the candidates, timed on all ranks; nothing where there is no candidate.
std::optional<op::Tactic> fastest(const Plan& plan, const Kind& kind, std::int64_t bucket, double budget,
                                  const Rank& rank) {
  std::vector<op::Tactic> candidates;
  for (const op::Tactic t : of_rank_0(kind.layer->ep->tactics(bucket), "the tuner's candidates", rank))
    if (usable(kind, t, bucket, rank)) candidates.push_back(t);
  if (candidates.empty()) return std::nullopt;
  std::vector<double> seconds;
  const std::vector<TunedTactic> before = kind.prepared->tuned;
  comm::agreed(rank.group, fmt::format("timing tactics at {} tokens", bucket), [&] {
    const op::RoutedExperts& experts = *kind.layer->ep;
    const Inputs in =
        spread_inputs(0, bucket, {experts.num_experts(), experts.shape().hidden, experts.top_k()});
    const StepInputs step{bucket, in.x, {}, {}, in.ids, in.weights, nullptr, {}, {}};
    kind.prepared->tuned = {{bucket, {}}};
    seconds = tactics::time_candidates(candidates.size(), budget, [&](std::size_t i) {
      kind.prepared->tuned.front().tactic = candidates[i];
      (void)run_experts(*kind.layer, Mode::ep, step, plan, rank.workers);
    });
  });
  kind.prepared->tuned = before;
  for (double& s : seconds)
    s = 1e-9 * static_cast<double>(
                   comm::all_max(rank.group, static_cast<std::int64_t>(s * 1e9), "a candidate's time"));
  return candidates[tactics::best_of(seconds)];
}

}  // namespace

TuneReport tune(Plan& plan, std::span<const Layer> layers, const std::string& backend,
                const TuneOptions& options, const Rank& rank) {
  TuneReport report;
  if (options.seconds <= 0 && options.cache.empty()) return report;
  const std::vector<Kind> kinds = stock_kinds(plan, layers);
  const std::vector<std::int64_t> buckets = tactics::buckets(plan.max_tokens);
  const op::RoutedExperts& first = layers.front().bound();  // E and K are the model's, alike in every layer
  const tactics::CacheSetting setting =
      tactics::cache_setting(op::backend(backend), first.num_experts(), first.top_k(), rank.workers.size());
  const bool keeps = !options.cache.empty() && rank.group.rank() == 0;

  tactics::CacheRead cache;
  if (keeps) cache = tactics::read_cache(options.cache, setting);
  if (cache.refused)
    rank.warning(fmt::format("the tactic cache is not used and {}: {}",
                             cache.stays           ? "stays as it is"
                             : options.seconds > 0 ? "will be replaced"
                                                   : "may be replaced once tactics are timed",
                             cache.refused->text));

  const double budget =
      options.seconds / static_cast<double>(std::max<std::size_t>(kinds.size(), 1) * buckets.size());
  for (const Kind& kind : kinds) {
    const op::Arithmetic arithmetic = kind.prepared->arithmetic();
    const layout::ExpertsShape& shape = kind.prepared->shape;
    for (const std::int64_t bucket : buckets) {
      const auto entry = std::ranges::find_if(cache.entries, [&](const CacheEntry& e) {
        return e.arithmetic == arithmetic && e.shape == shape && e.tokens == bucket;
      });
      std::vector<op::Tactic> known;
      if (entry != cache.entries.end()) known.push_back(entry->tactic);
      known = of_rank_0(known, "the tactic cache", rank);
      if (!known.empty() && usable(kind, known.front(), bucket, rank)) {
        ++report.cached;
        kind.prepared->tuned.push_back({bucket, known.front()});
        continue;
      }
      std::optional<op::Tactic> won;
      if (options.seconds > 0) won = fastest(plan, kind, bucket, budget, rank);
      if (!won) {
        ++report.left;
        continue;
      }
      ++report.timed;
      kind.prepared->tuned.push_back({bucket, *won});
      if (entry != cache.entries.end()) cache.entries.erase(entry);
      cache.entries.push_back({arithmetic, shape, bucket, *won});
    }
  }
  if (keeps && report.timed > 0 && !cache.stays) {
    if (const Verdict v = attempt([&] { tactics::write_cache(options.cache, setting, cache.entries); }))
      rank.warning(fmt::format("the tactic cache is not written: {}", v->text));
  }
  return report;
}

}  // namespace kerf::decode
