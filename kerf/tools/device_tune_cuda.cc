#include <algorithm>

#include "kerf/tools/internal/bench_steps.h"
#include "kerf/tools/internal/device_share.h"
#include "kerf/tools/tune.h"

namespace kerf::tools {

TuneResult device_tune(const TuneRequest& r, const decode::Rank& rank) {
  check_tune(r);
  constexpr int graph_layers = 8;
  constexpr std::int64_t draws = 5;
  TuneResult result;
  internal::DeviceShare share({r.arithmetic, r.shape, 0, r.num_experts, r.top_k}, 1,
                              *std::ranges::max_element(r.tokens), rank);
  internal::ColdExperts cold(r.num_experts, 1);
  std::int64_t done = 0;
  for (const std::int64_t tokens : r.tokens) {
    const std::vector<std::uint16_t> x = decode::make_rows(1, 0, tokens, r.shape.hidden);
    for (const op::Tactic tactic : share.tactics(tokens)) {
      share.choose(tokens, tactic);
      double us = 0;
      for (std::int64_t draw = 0; draw < draws; ++draw) {
        us +=
            share
                .time(tokens,
                      internal::cold_steps({1, draw, tokens, r.num_experts, r.top_k}, cold, graph_layers), x)
                .us /
            static_cast<double>(draws);
      }
      result.times.push_back({tactic, tokens, us});
    }
    if (r.progress) r.progress(++done, static_cast<std::int64_t>(r.tokens.size()));
  }
  result.list = ranked_list(r, result.times);
  return result;
}

}  // namespace kerf::tools
