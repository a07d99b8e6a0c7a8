#include "kerf/tail/internal/in_place.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kerf/base/format.h"
#include "kerf/numeric/rank_sum_row.h"
#include "kerf/tail/internal/checks.h"

namespace kerf::tail::internal {

namespace {

constexpr int most_ranks = 64;
constexpr std::int64_t line = 32;  // bf16 values of a cache line

// What a rank shows to the others.
struct Shown {
  std::span<const std::uint16_t> rows;  // [n, H]: its K-partials
  std::span<const std::int32_t> map;    // [T, K]
  std::span<std::uint16_t> out;         // [T, H]
};

const Shown& shown_by(comm::Lent lent, int rank) {
  return *reinterpret_cast<const Shown*>(lent(rank).data());
}

// Tokens are cut into runs of columns where they alone would not give every worker of every rank as much; a
// row that is normed stays whole.
class Parts {
 public:
  Parts(const Call& call, int ranks)
      : hidden_(call.rows.hidden), lines_((hidden_ + line - 1) / line), ranks_(ranks) {
    const std::int64_t workers = std::int64_t{ranks} * call.workers.size();
    if (!call.norm) a_token_ = std::min(workers / std::gcd(workers, call.rows.tokens), lines_);
    count_ = call.rows.tokens * a_token_;
  }

  // The first part of a rank.
  [[nodiscard]] std::int64_t first(int rank) const { return count_ * rank / ranks_; }
  [[nodiscard]] std::int64_t token(std::int64_t part) const { return part / a_token_; }
  // A part's columns begin here, and end where the next part's would.
  [[nodiscard]] std::int64_t column(std::int64_t part_of_token) const {
    return std::min(line * (lines_ * part_of_token / a_token_), hidden_);
  }
  [[nodiscard]] std::int64_t of_token(std::int64_t part) const { return part % a_token_; }

 private:
  std::int64_t hidden_;
  std::int64_t lines_;
  std::int64_t ranks_;
  std::int64_t a_token_ = 1;
  std::int64_t count_ = 0;
};

// Ends columns [begin, end) of a token into this rank's own output, which also holds each route's sum for a
// moment.
void end_part(const Call& call, comm::Lent lent, int ranks, std::int64_t token, std::size_t begin,
              std::span<std::uint16_t> to, const Values& values) {
  const op::Unfinalized& rows = call.rows;
  std::fill(values.sum.begin(), values.sum.end(), 0.0F);
  for (std::int64_t i = token * rows.top_k; i < (token + 1) * rows.top_k; ++i) {
    const auto route = static_cast<std::size_t>(i);
    if (rows.map[route] < 0) continue;
    std::array<const std::uint16_t*, most_ranks> terms{};
    std::size_t count = 0;
    for (int r = 0; r < ranks; ++r) {
      const Shown& peer = shown_by(lent, r);
      if (const std::int32_t row = peer.map[route]; row >= 0)
        terms[count++] = row_at(peer.rows, row, rows.hidden).data();
    }
    numeric::rank_sum_row(std::span(terms).first(count), begin, to);
    add_route(to, rows.weights[route], call.norm, values);
  }
  round_sum(values, to);
}

void check_alike(const Call& call, comm::Lent lent, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    const Shown& peer = shown_by(lent, r);
    if (peer.map.size() != call.rows.map.size() || peer.out.size() != call.out.size())
      fail(ErrorKind::bug, "TP tail: member {} of the group has {} routes and {} values, this rank {} and {}",
           r, peer.map.size(), peer.out.size(), call.rows.map.size(), call.out.size());
  }
}

}  // namespace

bool can_sum_in_place(const Call& call, const comm::Group& group) {
  return group.shares_memory() && group.size() <= most_ranks &&
         (!call.norm || call.rows.tokens >= group.size());
}

void sum_in_place(const Call& call, comm::Group& group) {
  const std::int64_t hidden = call.rows.hidden;
  // Not used here; but a scratch for smaller steps is a mistake whatever the ranks have in common.
  check_room("rows", call.scratch.rows, call.rows.tokens * call.rows.top_k * hidden * bf16_bytes);
  const int ranks = group.size();
  const Parts parts(call, ranks);
  const Shown mine{call.rows.rows, call.rows.map, call.out};
  group.lend(
      std::as_bytes(std::span(&mine, 1)),
      [&](comm::Lent lent) {
        check_alike(call, lent, ranks);
        const std::int64_t first = parts.first(group.rank());
        const std::int64_t end = parts.first(group.rank() + 1);
        call.workers.for_each(static_cast<std::size_t>(end - first), [&](std::size_t task, int worker) {
          const std::int64_t part = first + static_cast<std::int64_t>(task);
          const auto begin = static_cast<std::size_t>(parts.column(parts.of_token(part)));
          const std::size_t width = static_cast<std::size_t>(parts.column(parts.of_token(part) + 1)) - begin;
          const std::size_t at = static_cast<std::size_t>(parts.token(part) * hidden) + begin;
          const Values all = values_of(call.scratch, worker, hidden);
          const auto to = call.out.subspan(at, width);
          end_part(call, lent, ranks, parts.token(part), begin, to,
                   {all.sum.first(width), all.row.first(width)});
          for (int r = 0; r < ranks; ++r)
            if (r != group.rank()) std::copy(to.begin(), to.end(), shown_by(lent, r).out.subspan(at).begin());
        });
      },
      "TP tail: sum of rows");
}

}  // namespace kerf::tail::internal
