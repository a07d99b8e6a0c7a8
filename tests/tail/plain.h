// The tail's arithmetic written out plainly, one value at a time: what the tests hold kerf's own against.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "kerf/numeric/bf16.h"
#include "kerf/tail/tail.h"

namespace kerf::test {

inline float f32(std::uint16_t bits) { return numeric::bf16_to_f32(bits); }
inline std::uint16_t bf16(float v) { return numeric::f32_to_bf16(v); }

inline float plain_square_sum(const std::vector<float>& s) {
  std::vector<float> p(256, 0.0F);
  for (std::size_t h = 0; h < s.size(); ++h) p[h % 256] = std::fmaf(s[h], s[h], p[h % 256]);
  while (p.size() > 1) {
    std::vector<float> half(p.size() / 2);
    for (std::size_t m = 0; m < half.size(); ++m) half[m] = p[m] + p[m + half.size()];
    p = half;
  }
  return p[0];
}

inline std::vector<float> plain_norm(std::span<const std::uint16_t> row, const tail::RouteNorm& norm) {
  const bool first = norm.gain_before_norm && !norm.gain.empty();
  const bool last = !norm.gain_before_norm && !norm.gain.empty();
  std::vector<float> t;
  float largest = 0;
  for (std::size_t h = 0; h < row.size(); ++h) {
    t.push_back(first ? f32(bf16(f32(row[h]) * f32(norm.gain[h]))) : f32(row[h]));
    if (std::isnan(t.back()) || std::fabs(t.back()) > largest) largest = std::fabs(t.back());
  }
  int q = 0;
  if (largest > 0 || std::isnan(largest)) {
    q = std::isfinite(largest) ? std::ilogb(largest) : 126;
    q = q < -60 ? -60 : q;
    q = q > 126 ? 126 : q;
  }
  for (float& v : t) v = std::ldexp(v, -q);
  const float mean = plain_square_sum(t) / static_cast<float>(row.size());
  const float eps = std::ldexp(std::ldexp(norm.eps, -q), -q);
  const float inv = 1.0F / std::sqrt(mean + eps);
  for (std::size_t h = 0; h < t.size(); ++h) {
    t[h] = t[h] * inv;
    if (last) t[h] = t[h] * f32(norm.gain[h]);
  }
  return t;
}

// One token from its rows, k ascending; nullptr: that route is skipped.
inline std::vector<std::uint16_t> plain_token(const std::vector<const std::uint16_t*>& rows,
                                              std::span<const float> weights, std::size_t hidden,
                                              const std::optional<tail::RouteNorm>& norm) {
  std::vector<float> sum(hidden, 0.0F);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (rows[k] == nullptr) continue;
    const std::span<const std::uint16_t> row(rows[k], hidden);
    std::vector<float> y;
    if (norm)
      y = plain_norm(row, *norm);
    else
      for (const std::uint16_t v : row) y.push_back(f32(v));
    for (std::size_t h = 0; h < hidden; ++h) sum[h] = std::fmaf(weights[k], y[h], sum[h]);
  }
  std::vector<std::uint16_t> out;
  for (const float v : sum) out.push_back(bf16(v));
  return out;
}

// The sum over ranks of one element.
inline std::uint16_t plain_rank_sum(const std::vector<std::uint16_t>& terms) {
  float sum = 0.0F;
  for (const std::uint16_t v : terms) sum = sum + f32(v);
  return bf16(sum);
}

// What one rank's op gave, with its memory. Rows that no route names hold NaN.
struct RankRows {
  std::int64_t tokens, top_k, hidden;
  std::vector<std::uint16_t> rows;
  std::vector<float> weights;
  std::vector<std::int32_t> map;

  [[nodiscard]] op::Unfinalized view() const { return {tokens, top_k, hidden, rows, weights, map}; }
  [[nodiscard]] const std::uint16_t* row(std::size_t route) const {
    return map[route] < 0 ? nullptr : rows.data() + map[route] * hidden;
  }
};

// Rows for the routes that `here` names, in a shuffled order among padding rows; values about 2^exponent.
inline RankRows make_rows(std::int64_t tokens, std::int64_t top_k, std::int64_t hidden,
                          const std::vector<float>& weights, unsigned seed,
                          const std::function<bool(std::size_t)>& here, int exponent = 0) {
  std::mt19937 random(seed);
  const auto routes = static_cast<std::size_t>(tokens * top_k);
  const std::size_t held = 2 * routes + 3;
  RankRows out{tokens,  top_k,
               hidden,  std::vector<std::uint16_t>(held * static_cast<std::size_t>(hidden), 0xFFFF),
               weights, std::vector<std::int32_t>(routes, -1)};
  std::vector<std::int32_t> places(held);
  for (std::size_t i = 0; i < held; ++i) places[i] = static_cast<std::int32_t>(i);
  for (std::size_t i = held - 1; i > 0; --i) std::swap(places[i], places[random() % (i + 1)]);
  for (std::size_t i = 0; i < routes; ++i) {
    if (!here(i)) continue;
    out.map[i] = places[i];
    for (std::int64_t h = 0; h < hidden; ++h) {
      const float v = std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), exponent - 31);
      out.rows[static_cast<std::size_t>(places[i] * hidden + h)] = bf16(v);
    }
  }
  return out;
}

inline std::vector<float> make_weights(std::size_t routes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> weights(routes);
  for (float& w : weights) w = static_cast<float>(random() % 100000) / 50000.0F - 0.5F;
  return weights;
}

}  // namespace kerf::test
