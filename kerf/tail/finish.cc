#include "kerf/tail/internal/finish.h"

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/fma_row.h"
#include "kerf/tail/internal/checks.h"

namespace kerf::tail::internal {

Values values_of(const Scratch& scratch, int worker, std::int64_t hidden) {
  const auto all = scratch.values.as<float>();
  return {row_at(all, 2 * std::int64_t{worker}, hidden), row_at(all, 2 * std::int64_t{worker} + 1, hidden)};
}

void add_route(std::span<const std::uint16_t> row, float weight, const std::optional<RouteNorm>& norm,
               const Values& values) {
  if (norm) {
    norm_row(row, *norm, values.row);
  } else {
    std::transform(row.begin(), row.end(), values.row.begin(), numeric::bf16_to_f32);
  }
  numeric::fma_row(weight, values.row, values.sum);
}

void round_sum(const Values& values, std::span<std::uint16_t> to) {
  std::transform(values.sum.begin(), values.sum.end(), to.begin(), numeric::f32_to_bf16);
}

void end_tokens(const Call& call, std::int64_t first, std::int64_t count, std::span<std::uint16_t> to,
                RowOf row_of) {
  const op::Unfinalized& rows = call.rows;
  call.workers.for_each(static_cast<std::size_t>(count), [&](std::size_t task, int worker) {
    const auto local = static_cast<std::int64_t>(task);
    const auto target = row_at(to, local, rows.hidden);
    const Values values = values_of(call.scratch, worker, rows.hidden);
    std::fill(values.sum.begin(), values.sum.end(), 0.0F);
    const std::int64_t token = first + local;
    const std::int64_t end = token < rows.tokens ? (token + 1) * rows.top_k : 0;
    for (std::int64_t i = token * rows.top_k; i < end; ++i)
      if (const auto row = row_of(i); !row.empty())
        add_route(row, rows.weights[static_cast<std::size_t>(i)], call.norm, values);
    round_sum(values, target);
  });
}

void check_gather(const Call& call, std::int64_t share, const comm::Group& group) {
  const std::int64_t padded = share * group.size();
  if (padded != call.rows.tokens)
    check_room("partial", call.scratch.partial, padded * call.rows.hidden * bf16_bytes);
}

void gather_tokens(const Call& call, std::span<const std::uint16_t> mine, std::int64_t share,
                   comm::Group& group, std::string_view what) {
  const std::int64_t padded = share * group.size();
  const bool even = padded == call.rows.tokens;  // then the output takes the gathered tokens as they come
  const auto all =
      even ? call.out : rows_at(call.scratch.partial.as<std::uint16_t>(), 0, padded, call.rows.hidden);
  group.all_gather(std::as_bytes(mine), std::as_writable_bytes(all), what);
  if (!even) std::copy_n(all.begin(), call.out.size(), call.out.begin());
}

}  // namespace kerf::tail::internal
