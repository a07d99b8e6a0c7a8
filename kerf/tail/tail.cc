#include "kerf/tail/tail.h"

#include <algorithm>
#include <cmath>

#include "kerf/base/format.h"
#include "kerf/numeric/bf16.h"
#include "kerf/tail/internal/checks.h"

namespace kerf::tail {

namespace {

constexpr std::int64_t kBf16 = 2;  // bytes

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

std::span<const std::uint16_t> row_at(std::span<const std::uint16_t> rows, std::int64_t row,
                                      std::int64_t hidden) {
  return rows.subspan(static_cast<std::size_t>(row * hidden), static_cast<std::size_t>(hidden));
}
std::span<std::uint16_t> row_at(std::span<std::uint16_t> rows, std::int64_t row, std::int64_t hidden) {
  return rows.subspan(static_cast<std::size_t>(row * hidden), static_cast<std::size_t>(hidden));
}

// The values of one worker: the sum of a token, and the normed row of the route at hand.
struct Values {
  std::span<float> sum, row;  // [H]
};
Values values_of(const Scratch& scratch, int worker, std::int64_t hidden) {
  const auto h = static_cast<std::size_t>(hidden);
  const auto all = scratch.values.as<float>().subspan(2 * h * static_cast<std::size_t>(worker), 2 * h);
  return {all.first(h), all.last(h)};
}

// sum = fma(weight, the row (normed), sum)
void add_route(std::span<const std::uint16_t> row, float weight, const std::optional<RouteNorm>& norm,
               const Values& values) {
  if (norm) {
    norm_row(row, *norm, values.row);
  } else {
    std::transform(row.begin(), row.end(), values.row.begin(), numeric::bf16_to_f32);
  }
  for (std::size_t h = 0; h < row.size(); ++h) values.sum[h] = std::fma(weight, values.row[h], values.sum[h]);
}

// One token's output [H]: its routes that are here, k ascending from +0. row_of(i) is route i's row.
template <typename RowOf>
void finish_token(const op::Unfinalized& rows, std::int64_t token, const std::optional<RouteNorm>& norm,
                  const Values& values, std::span<std::uint16_t> out, RowOf row_of) {
  std::fill(values.sum.begin(), values.sum.end(), 0.0F);
  for (std::int64_t i = token * rows.top_k; i < (token + 1) * rows.top_k; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (rows.map[at] >= 0) add_route(row_of(i), rows.weights[at], norm, values);
  }
  std::transform(values.sum.begin(), values.sum.end(), out.begin(), numeric::f32_to_bf16);
}

void check_values(const Scratch& scratch, const Workers& workers, std::int64_t hidden) {
  internal::check_room("values", scratch.values,
                       std::int64_t{workers.size()} * 2 * hidden * static_cast<std::int64_t>(sizeof(float)));
}

// K-partials in route order [padded * K, H]; zeros for routes that don't exist and tokens that pad.
void gather_rows(const op::Unfinalized& rows, std::int64_t padded, const Workers& workers,
                 std::span<std::uint16_t> to) {
  workers.for_each(static_cast<std::size_t>(padded), [&](std::size_t task, int /*worker*/) {
    const auto token = static_cast<std::int64_t>(task);
    for (std::int64_t i = token * rows.top_k; i < (token + 1) * rows.top_k; ++i) {
      const std::int32_t row = token < rows.tokens ? rows.map[static_cast<std::size_t>(i)] : -1;
      const auto target = row_at(to, i, rows.hidden);
      if (row < 0) {
        std::fill(target.begin(), target.end(), std::uint16_t{0});
      } else {
        const auto source = row_at(rows.rows, row, rows.hidden);
        std::copy(source.begin(), source.end(), target.begin());
      }
    }
  });
}

}  // namespace

Scratch::Scratch(tensor::Memory& memory, std::int64_t tokens, std::int64_t top_k, std::int64_t hidden,
                 int ranks, int workers) {
  if (tokens < 0 || top_k < 1 || hidden < 1 || ranks < 1 || workers < 1)
    fail(ErrorKind::bug, "tail scratch for {} tokens of {} routes, width {}, {} ranks, {} workers", tokens,
         top_k, hidden, ranks, workers);
  const std::int64_t padded = round_up(tokens, ranks);
  rows = tensor::Tensor(memory, tensor::Dtype::bf16, {padded * top_k, hidden});
  reduced = tensor::Tensor(memory, tensor::Dtype::bf16, {padded / ranks * top_k, hidden});
  partial = tensor::Tensor(memory, tensor::Dtype::bf16, {padded, hidden});
  values = tensor::Tensor(memory, tensor::Dtype::f32, {workers, 2, hidden});
}

void finalize(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, const Workers& workers,
              const Scratch& scratch, std::span<std::uint16_t> out) {
  internal::check(rows, norm, out);
  check_values(scratch, workers, rows.hidden);
  workers.for_each(static_cast<std::size_t>(rows.tokens), [&](std::size_t task, int worker) {
    const auto token = static_cast<std::int64_t>(task);
    finish_token(rows, token, norm, values_of(scratch, worker, rows.hidden), row_at(out, token, rows.hidden),
                 [&](std::int64_t i) {
                   return row_at(rows.rows, rows.map[static_cast<std::size_t>(i)], rows.hidden);
                 });
  });
}

void ep_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out) {
  internal::check_room("partial", scratch.partial, static_cast<std::int64_t>(out.size()) * kBf16);
  const auto mine = scratch.partial.as<std::uint16_t>().first(out.size());
  finalize(rows, norm, workers, scratch, mine);
  group.all_reduce_sum(mine, out, "EP tail: sum");
}

// Rank r owns tokens [r * share, (r + 1) * share): it alone receives their summed rows, ends them, and gives
// them to all. Every rank receives each of its rows once.
void tp_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out) {
  internal::check(rows, norm, out);
  const std::int64_t padded = round_up(rows.tokens, group.size());
  const std::int64_t share = padded / group.size();
  const std::int64_t first = share * group.rank();
  const std::int64_t row_bytes = rows.hidden * kBf16;
  check_values(scratch, workers, rows.hidden);
  internal::check_room("rows", scratch.rows, padded * rows.top_k * row_bytes);
  internal::check_room("reduced", scratch.reduced, share * rows.top_k * row_bytes);
  internal::check_room("partial", scratch.partial, padded * row_bytes);

  const auto partials =
      scratch.rows.as<std::uint16_t>().first(static_cast<std::size_t>(padded * rows.top_k * rows.hidden));
  const auto sums =
      scratch.reduced.as<std::uint16_t>().first(static_cast<std::size_t>(share * rows.top_k * rows.hidden));
  gather_rows(rows, padded, workers, partials);
  group.reduce_scatter_sum(partials, sums, "TP tail: sum of rows");

  // Nobody reads the K-partials any more: their memory takes this rank's finished tokens.
  const auto finished = partials.first(static_cast<std::size_t>(share * rows.hidden));
  workers.for_each(static_cast<std::size_t>(share), [&](std::size_t task, int worker) {
    const auto local = static_cast<std::int64_t>(task);
    const auto target = row_at(finished, local, rows.hidden);
    if (first + local >= rows.tokens) {
      std::fill(target.begin(), target.end(), std::uint16_t{0});
      return;
    }
    finish_token(rows, first + local, norm, values_of(scratch, worker, rows.hidden), target,
                 [&](std::int64_t i) { return row_at(sums, i - first * rows.top_k, rows.hidden); });
  });

  const bool even = padded == rows.tokens;  // then the output takes the gathered tokens as they come
  const auto all =
      even ? out : scratch.partial.as<std::uint16_t>().first(static_cast<std::size_t>(padded * rows.hidden));
  group.all_gather(std::as_bytes(finished), std::as_writable_bytes(all), "TP tail: tokens");
  if (!even) std::copy_n(all.begin(), out.size(), out.begin());
}

}  // namespace kerf::tail
