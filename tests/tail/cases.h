// Rows on the ranks of a group, and what a fast tail makes of them by a plain statement of its rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tests/tail/plain.h"

namespace kerf::test {

using Rows = std::vector<std::uint16_t>;

// No norm; without gain; gains around 1 and around 0, before and after the norm.
inline std::vector<std::optional<tail::RouteNorm>> all_norms(std::int64_t hidden) {
  std::vector<std::uint16_t> w;
  for (std::int64_t h = 0; h < hidden; ++h) w.push_back(bf16(static_cast<float>(h % 7 - 3) / 8));
  const auto around = [&](float center) { return tail::effective_gain(w, center); };
  return {std::nullopt,
          tail::RouteNorm{{}, true, 1e-5F},
          tail::RouteNorm{around(1), true, 1e-8F},
          tail::RouteNorm{around(1), false, 1e-5F},
          tail::RouteNorm{around(0), true, 1e-5F},
          tail::RouteNorm{around(0), false, 1e-8F}};
}

enum class Placed { ep, tp };

// The op's outputs on every rank. EP: each route that exists is on one rank. TP: on all, as K-partials.
inline std::vector<RankRows> make_ranks(Placed placed, int ranks, std::int64_t tokens, std::int64_t top_k,
                                        std::int64_t hidden) {
  const auto weights = make_weights(static_cast<std::size_t>(tokens * top_k), 9);
  const auto exists = [&](std::size_t i) {
    return i % 6 != 3 && static_cast<std::int64_t>(i) / top_k % 4 != 2;  // token 2 has no route at all
  };
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<RankRows> all;
  for (std::size_t r = 0; r < n; ++r)
    all.push_back(make_rows(
        tokens, top_k, hidden, weights, static_cast<unsigned>(100 + r),
        [&](std::size_t i) { return exists(i) && (placed == Placed::tp || (i * 5 + i / 3) % n == r); }));
  return all;
}

inline Rows plain_tail(Placed placed, const std::vector<RankRows>& ranks,
                       const std::optional<tail::RouteNorm>& norm) {
  const auto hidden = static_cast<std::size_t>(ranks[0].hidden);
  const auto top_k = static_cast<std::size_t>(ranks[0].top_k);
  Rows out;
  for (std::size_t t = 0; t < static_cast<std::size_t>(ranks[0].tokens); ++t) {
    const auto weights = std::span(ranks[0].weights).subspan(t * top_k, top_k);
    if (placed == Placed::ep) {
      std::vector<Rows> partials;
      for (const RankRows& rank : ranks) {
        std::vector<const std::uint16_t*> rows;
        for (std::size_t k = 0; k < top_k; ++k) rows.push_back(rank.row(t * top_k + k));
        partials.push_back(plain_token(rows, weights, hidden, norm));
      }
      for (std::size_t h = 0; h < hidden; ++h) {
        Rows terms;
        for (const Rows& partial : partials) terms.push_back(partial[h]);
        out.push_back(plain_rank_sum(terms));
      }
      continue;
    }
    std::vector<Rows> sums(top_k);
    std::vector<const std::uint16_t*> rows(top_k, nullptr);
    for (std::size_t k = 0; k < top_k; ++k) {
      if (ranks[0].map[t * top_k + k] < 0) continue;
      for (std::size_t h = 0; h < hidden; ++h) {
        Rows terms;
        for (const RankRows& rank : ranks) terms.push_back(rank.row(t * top_k + k)[h]);
        sums[k].push_back(plain_rank_sum(terms));
      }
      rows[k] = sums[k].data();
    }
    const auto token = plain_token(rows, weights, hidden, norm);
    out.insert(out.end(), token.begin(), token.end());
  }
  return out;
}

}  // namespace kerf::test
