// The fast tails.
#include "kerf/tail/tail.h"

#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/tail/internal/checks.h"
#include "kerf/tail/internal/finish.h"
#include "kerf/tail/internal/in_place.h"

namespace kerf::tail {

namespace {

using internal::bf16_bytes;
using internal::Call;
using internal::row_at;
using internal::rows_at;

// The route's row among the op's own; empty where it is not here.
auto own_row(const op::Unfinalized& rows) {
  return [&rows](std::int64_t i) -> std::span<const std::uint16_t> {
    const std::int32_t row = rows.map[static_cast<std::size_t>(i)];
    if (row < 0) return {};
    return row_at(rows.rows, row, rows.hidden);
  };
}

// K-partials in route order, [count, H]; zeros for routes that are not here and routes past the step's last.
void gather_rows(const Call& call, std::int64_t count, std::span<std::uint16_t> to) {
  const std::int64_t routes = call.rows.tokens * call.rows.top_k;
  call.workers.for_each(static_cast<std::size_t>(count), [&](std::size_t task, int /*worker*/) {
    const auto i = static_cast<std::int64_t>(task);
    const auto target = row_at(to, i, call.rows.hidden);
    const auto source = i < routes ? own_row(call.rows)(i) : std::span<const std::uint16_t>();
    if (source.empty())
      std::fill(target.begin(), target.end(), std::uint16_t{0});
    else
      std::copy(source.begin(), source.end(), target.begin());
  });
}

// Row i - first of `sums` for the routes that there are.
auto summed_row(const op::Unfinalized& rows, std::span<const std::uint16_t> sums, std::int64_t first) {
  return [&rows, sums, first](std::int64_t i) -> std::span<const std::uint16_t> {
    if (rows.map[static_cast<std::size_t>(i)] < 0) return {};
    return row_at(sums, i - first, rows.hidden);
  };
}

// Every rank ends every token.
void sum_everywhere(const Call& call, comm::Group& group) {
  const std::int64_t hidden = call.rows.hidden;
  const std::int64_t routes = call.rows.tokens * call.rows.top_k;
  internal::check_room("rows", call.scratch.rows, routes * hidden * bf16_bytes);
  internal::check_room("reduced", call.scratch.reduced, routes * hidden * bf16_bytes);
  const auto partials = rows_at(call.scratch.rows.as<std::uint16_t>(), 0, routes, hidden);
  const auto sums = rows_at(call.scratch.reduced.as<std::uint16_t>(), 0, routes, hidden);
  gather_rows(call, routes, partials);
  group.all_reduce_sum(partials, sums, "TP tail: sum of rows");
  internal::end_tokens(call, 0, call.rows.tokens, call.out, summed_row(call.rows, sums, 0));
}

// This rank's part of the sums of `count` rows in route order. The partials' memory is free afterwards:
// nobody reads it any more.
struct Part {
  std::span<std::uint16_t> partials;  // [count, H]
  std::span<std::uint16_t> sums;      // [count / ranks, H]
};
Part scatter(const Call& call, std::int64_t count, comm::Group& group) {
  const std::int64_t hidden = call.rows.hidden;
  const std::int64_t part = count / group.size();
  internal::check_room("rows", call.scratch.rows, count * hidden * bf16_bytes);
  internal::check_room("reduced", call.scratch.reduced, part * hidden * bf16_bytes);
  const Part out{rows_at(call.scratch.rows.as<std::uint16_t>(), 0, count, hidden),
                 rows_at(call.scratch.reduced.as<std::uint16_t>(), 0, part, hidden)};
  gather_rows(call, count, out.partials);
  group.reduce_scatter_sum(out.partials, out.sums, "TP tail: sum of rows");
  return out;
}

// Rank r owns tokens [r * share, (r + 1) * share): it alone receives their summed rows, ends them, and gives
// them to all. Every rank receives each of its rows once.
void scatter_tokens(const Call& call, comm::Group& group) {
  const op::Unfinalized& rows = call.rows;
  const std::int64_t padded = internal::round_up(rows.tokens, group.size());
  const std::int64_t share = padded / group.size();
  const std::int64_t first = share * group.rank();
  internal::check_gather(call, share, group);
  const Part mine = scatter(call, padded * rows.top_k, group);
  const auto ended = mine.partials.first(static_cast<std::size_t>(share * rows.hidden));
  internal::end_tokens(call, first, share, ended, summed_row(rows, mine.sums, first * rows.top_k));
  internal::gather_tokens(call, ended, share, group, "TP tail: tokens");
}

// Fewer tokens than ranks: every rank owns as many routes, and all get all summed rows. A rank receives each
// row at most twice, and none is left without work.
void scatter_routes(const Call& call, comm::Group& group) {
  const op::Unfinalized& rows = call.rows;
  const Part mine = scatter(call, internal::round_up(rows.tokens * rows.top_k, group.size()), group);
  group.all_gather(std::as_bytes(mine.sums), std::as_writable_bytes(mine.partials), "TP tail: summed rows");
  internal::end_tokens(call, 0, rows.tokens, call.out, summed_row(rows, mine.partials, 0));
}

}  // namespace

void finalize(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, const Workers& workers,
              const Scratch& scratch, std::span<std::uint16_t> out) {
  const Call call{rows, norm, workers, scratch, out};
  internal::check(call, rows.rows.size());
  internal::end_tokens(call, 0, rows.tokens, out, own_row(rows));
}

void ep_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out) {
  internal::check_room("partial", scratch.partial, static_cast<std::int64_t>(out.size()) * bf16_bytes);
  const auto mine = scratch.partial.as<std::uint16_t>().first(out.size());
  finalize(rows, norm, workers, scratch, mine);
  group.all_reduce_sum(mine, out, "EP tail: sum");
}

void tp_tail(const op::Unfinalized& rows, const std::optional<RouteNorm>& norm, comm::Group& group,
             const Workers& workers, const Scratch& scratch, std::span<std::uint16_t> out, RowSum way) {
  const Call call{rows, norm, workers, scratch, out};
  internal::check(call, rows.rows.size());
  if (way == RowSum::all_reduce)
    sum_everywhere(call, group);
  else if (way == RowSum::in_place && internal::can_sum_in_place(call, group))
    internal::sum_in_place(call, group);
  else if (rows.tokens < group.size())
    scatter_routes(call, group);
  else
    scatter_tokens(call, group);
}

}  // namespace kerf::tail
