// A model's routes as sums of segments, what of them each rank of a placement holds, and what an exact tail
// makes of them on any placement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "tests/tail/cases.h"

namespace kerf::test {

// Experts of `segments` segments each; of every route, the segments' sums.
struct Model {
  std::int64_t tokens, top_k, hidden, experts, segments;
  std::vector<std::int32_t> ids;  // [T, K], some -1
  std::vector<float> weights;     // [T, K], NaN where the route goes nowhere
  std::vector<float> g2_alphas;   // [E]
  std::vector<float> sums;        // [segments, T * K, H]

  [[nodiscard]] std::int64_t routes() const { return tokens * top_k; }
  [[nodiscard]] std::size_t at(std::int64_t segment, std::int64_t route, std::int64_t h) const {
    return static_cast<std::size_t>((segment * routes() + route) * hidden + h);
  }
};

inline Model make_model(std::int64_t tokens, std::int64_t top_k, std::int64_t segments, unsigned seed,
                        std::int64_t hidden = 24, std::int64_t experts = 1680) {
  std::mt19937 random(seed);
  Model m{tokens, top_k, hidden, experts, segments, {}, {}, {}, {}};
  for (std::int64_t i = 0; i < m.routes(); ++i) {
    const bool nowhere = random() % 7 == 3 || (tokens > 4 && i / top_k == 2);
    m.ids.push_back(nowhere ? -1 : static_cast<std::int32_t>(random() % static_cast<unsigned>(experts)));
    m.weights.push_back(nowhere ? std::numeric_limits<float>::quiet_NaN()
                                : static_cast<float>(random() % 1000) / 500.0F - 0.5F);
  }
  for (std::int64_t e = 0; e < experts; ++e)
    m.g2_alphas.push_back(1e-9F * static_cast<float>(1 + random() % 1000));
  for (std::int64_t i = 0; i < segments * m.routes() * hidden; ++i)
    m.sums.push_back(static_cast<float>(static_cast<std::int32_t>(random())));
  return m;
}

// The tree's rule over segments [first, first + count) of one value, written out.
inline float tree(const Model& m, std::int64_t route, std::int64_t h, std::int64_t first,
                  std::int64_t count) {
  if (count == 1) return m.sums[m.at(first, route, h)];
  std::int64_t left = 1;
  while (2 * left < count) left *= 2;
  return tree(m, route, h, first, left) + tree(m, route, h, first + left, count - left);
}

inline Rows finished_row(const Model& m, std::int64_t route) {
  const float scale = m.g2_alphas[static_cast<std::size_t>(m.ids[static_cast<std::size_t>(route)])];
  Rows row;
  for (std::int64_t h = 0; h < m.hidden; ++h) row.push_back(bf16(scale * tree(m, route, h, 0, m.segments)));
  return row;
}

inline Rows oracle(const Model& m, const std::optional<tail::RouteNorm>& norm) {
  Rows out;
  for (std::int64_t t = 0; t < m.tokens; ++t) {
    std::vector<Rows> rows(static_cast<std::size_t>(m.top_k));
    std::vector<const std::uint16_t*> there;
    for (std::int64_t k = 0; k < m.top_k; ++k) {
      Rows& row = rows[static_cast<std::size_t>(k)];
      if (m.ids[static_cast<std::size_t>(t * m.top_k + k)] >= 0) row = finished_row(m, t * m.top_k + k);
      there.push_back(row.empty() ? nullptr : row.data());
    }
    const auto token = plain_token(there,
                                   std::span(m.weights).subspan(static_cast<std::size_t>(t * m.top_k),
                                                                static_cast<std::size_t>(m.top_k)),
                                   static_cast<std::size_t>(m.hidden), norm);
    out.insert(out.end(), token.begin(), token.end());
  }
  return out;
}

struct Placement {
  int ep, tp;
  [[nodiscard]] int ranks() const { return ep * tp; }
};

// What the op gives one rank: rows in a shuffled order among others that hold NaN.
struct Held {
  std::vector<std::int32_t> map;
  Rows rows;
  std::vector<float> sums;
  std::vector<float> g2_alphas;  // of its row's experts

  [[nodiscard]] op::Unfinalized view(const Model& m) const {
    return {m.tokens, m.top_k, m.hidden, rows, m.weights, map, m.ids, sums};
  }
};

inline Held held_by(const Model& m, const Placement& p, int rank) {
  const std::int64_t row = rank / p.tp;
  const std::int64_t slice = rank % p.tp;
  const std::int64_t local = m.experts / p.ep;
  const std::int64_t width = m.segments / p.tp;
  std::mt19937 random(static_cast<unsigned>(rank + 50));
  Held out;
  out.map.assign(static_cast<std::size_t>(m.routes()), -1);
  out.g2_alphas.assign(m.g2_alphas.begin() + row * local, m.g2_alphas.begin() + (row + 1) * local);
  std::vector<std::int32_t> places(static_cast<std::size_t>(m.routes() + 3));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
  std::shuffle(places.begin(), places.end(), random);
  const std::size_t values = places.size() * static_cast<std::size_t>(m.hidden);
  if (p.tp > 1)
    out.sums.assign(values, std::numeric_limits<float>::quiet_NaN());
  else
    out.rows.assign(values, numeric::bf16_nan);
  for (std::int64_t i = 0; i < m.routes(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (m.ids[at] < 0 || m.ids[at] / local != row) continue;
    out.map[at] = places[at];
    const auto to = places[at] * m.hidden;
    if (p.tp == 1) {
      const Rows finished = finished_row(m, i);
      std::copy(finished.begin(), finished.end(), out.rows.begin() + to);
    }
    for (std::int64_t h = 0; p.tp > 1 && h < m.hidden; ++h)
      out.sums[static_cast<std::size_t>(to + h)] = tree(m, i, h, slice * width, width);
  }
  return out;
}

}  // namespace kerf::test
