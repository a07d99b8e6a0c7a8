// What all tails share: a call's arguments, rows of a buffer, and the end of a token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "kerf/base/function_ref.h"
#include "kerf/tail/tail.h"

namespace kerf::tail::internal {

inline constexpr std::int64_t bf16_bytes = 2;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Row `row` of a buffer [n, width].
template <typename T>
std::span<T> row_at(std::span<T> rows, std::int64_t row, std::int64_t width) {
  return rows.subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width));
}
// Rows [first, first + count).
template <typename T>
std::span<T> rows_at(std::span<T> rows, std::int64_t first, std::int64_t count, std::int64_t width) {
  return rows.subspan(static_cast<std::size_t>(first * width), static_cast<std::size_t>(count * width));
}

// The arguments of a tail.
struct Call {
  const op::Unfinalized& rows;
  const std::optional<RouteNorm>& norm;
  const Workers& workers;
  const Scratch& scratch;
  std::span<std::uint16_t> out;  // [T, H]
};

// Route i's finished row [H]; empty: passed over.
using RowOf = FunctionRef<std::span<const std::uint16_t>(std::int64_t route)>;

// The values of one worker: the sum of a token, and the row of the route at hand.
struct Values {
  std::span<float> sum, row;  // [H]
};
Values values_of(const Scratch& scratch, int worker, std::int64_t hidden);

// sum = fma(weight, the row (normed), sum); values as wide as the row, which is whole where there is a norm.
void add_route(std::span<const std::uint16_t> row, float weight, const std::optional<RouteNorm>& norm,
               const Values& values);
// The one rounding.
void round_sum(const Values& values, std::span<std::uint16_t> to);

// Ends tokens [first, first + count) into `to` [count, H]: their routes, k ascending from +0, one rounding. A
// token past the step's last gives zeros.
void end_tokens(const Call& call, std::int64_t first, std::int64_t count, std::span<std::uint16_t> to,
                RowOf row_of);

// Error{bug} unless there is room for what gather_tokens() does: to be asked before the first exchange, after
// which one rank that fails leaves the others waiting.
void check_gather(const Call& call, std::int64_t share, const comm::Group& group);

// Collective: every rank's `share` ended tokens, ranks ascending, into the call's output.
void gather_tokens(const Call& call, std::span<const std::uint16_t> mine, std::int64_t share,
                   comm::Group& group, std::string_view what);

}  // namespace kerf::tail::internal
