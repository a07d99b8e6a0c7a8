#include <algorithm>
#include <cmath>
#include <string>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/agree.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/expert_tp/internal/same.h"
#include "kerf/numeric/bf16.h"

namespace kerf::expert_tp {

namespace {

void check_sizes(const op::Unfinalized& output) {
  const std::int64_t routes = output.tokens * output.top_k;
  if (output.tokens < 0 || output.top_k < 1 || output.hidden < 1 ||
      static_cast<std::int64_t>(output.map.size()) != routes)
    fail(ErrorKind::bug, "route rows: {} tokens of {} routes, width {}, {} map entries", output.tokens,
         output.top_k, output.hidden, output.map.size());
}

std::string first_of(std::size_t route, std::int64_t top_k) {
  const auto at = static_cast<std::int64_t>(route);
  return fmt::format("token {} route {}", at / top_k, at % top_k);
}

// Nothing where every route is served by the ranks of one row, all of them, and by no other rank. served:
// each rank's flags [ranks][routes], the same on every rank, and so is the reason.
Verdict misserved(std::span<const std::uint8_t> served, std::size_t routes, const Ranks& ranks,
                  std::int64_t top_k) {
  const auto count = static_cast<std::size_t>(ranks.all.size());
  const auto tp = static_cast<std::size_t>(ranks.row.size());
  std::vector<std::vector<std::size_t>> missing(count);  // routes that a rank does not serve and should
  for (std::size_t i = 0; i < routes; ++i) {
    std::vector<std::size_t> rows;  // that serve route i, in part at least
    for (std::size_t r = 0; r < count; ++r)
      if (served[r * routes + i] != 0 && (rows.empty() || rows.back() != r / tp)) rows.push_back(r / tp);
    if (rows.size() > 1)
      return because(ErrorKind::probe,
                     "{} is served by two rows of ranks, that of rank {} and that of rank {}",
                     first_of(i, top_k), rows[0] * tp, rows[1] * tp);
    for (std::size_t r = 0; r < count; ++r)
      if ((rows.empty() || rows[0] == r / tp) && served[r * routes + i] == 0) missing[r].push_back(i);
  }
  for (std::size_t r = 0; r < count; ++r)
    if (!missing[r].empty())
      return because(ErrorKind::probe, "rank {}: the TP experts did not serve {} of {} routes, the first {}",
                     r, missing[r].size(), routes, first_of(missing[r].front(), top_k));
  return std::nullopt;
}

// Squared sums over the routes that this rank owns.
struct Sums {
  double difference = 0;
  double wanted = 0;
};
Sums square_sums(const RouteRows& ep, std::span<const std::uint16_t> tp, std::size_t hidden) {
  Sums sums;
  for (std::size_t i = 0; i < ep.local.size(); ++i) {
    if (!ep.local[i]) continue;
    for (std::size_t at = i * hidden; at < (i + 1) * hidden; ++at) {
      const double want = numeric::bf16_to_f32(ep.rows[at]);
      const double difference = static_cast<double>(numeric::bf16_to_f32(tp[at])) - want;
      sums.difference += difference * difference;
      sums.wanted += want * want;
    }
  }
  return sums;
}

}  // namespace

RouteRows route_rows(const op::Unfinalized& output) {
  check_sizes(output);
  const auto hidden = static_cast<std::size_t>(output.hidden);
  const std::size_t held = output.rows.size() / hidden;
  RouteRows out{std::vector<std::uint16_t>(output.map.size() * hidden, 0),
                std::vector<bool>(output.map.size(), false)};
  for (std::size_t i = 0; i < output.map.size(); ++i) {
    const std::int32_t row = output.map[i];
    if (row < 0) continue;
    if (static_cast<std::size_t>(row) >= held)
      fail(ErrorKind::bug, "route rows: route {} is row {} of {} rows", i, row, held);
    std::copy_n(output.rows.data() + static_cast<std::size_t>(row) * hidden, hidden,
                out.rows.data() + i * hidden);
    out.local[i] = true;
  }
  return out;
}

double probe_rel_l2(const op::Unfinalized& ep, const op::Unfinalized& tp, const Ranks& ranks) {
  const FpGuard guard;  // bf16 subnormals count
  RouteRows ep_rows;
  RouteRows tp_rows;
  std::vector<std::uint16_t> summed;
  comm::agreed(ranks.all, "probe: rows", [&] {
    if (ep.tokens != tp.tokens || ep.top_k != tp.top_k || ep.hidden != tp.hidden)
      fail(ErrorKind::bug, "probe: EP rows of [{}, {}, {}], TP rows of [{}, {}, {}]", ep.tokens, ep.top_k,
           ep.hidden, tp.tokens, tp.top_k, tp.hidden);
    ep_rows = route_rows(ep);
    tp_rows = route_rows(tp);
    summed.resize(tp_rows.rows.size());
  });
  const std::array<internal::Fact, 3> facts = {
      {{"tokens", tp.tokens}, {"routes a token", tp.top_k}, {"hidden width", tp.hidden}}};
  require(internal::differing(facts, ranks.all, "probe: shapes"));
  const std::vector<std::uint8_t> mine_served(tp_rows.local.begin(), tp_rows.local.end());
  const auto served = comm::gathered(ranks.all, std::span<const std::uint8_t>(mine_served), "probe: routes");
  require(misserved(served, mine_served.size(), ranks, tp.top_k));

  // A row that does not serve a route has zeros for it; so a rank's EP routes are among those of its row.
  ranks.row.all_reduce_sum(tp_rows.rows, summed, "probe: sum of TP rows");
  const Sums mine = square_sums(ep_rows, summed, static_cast<std::size_t>(tp.hidden));
  std::array<double, 2> sums = {mine.difference, mine.wanted};
  comm::all_sum(ranks.all, sums, "probe: squared sums");
  if (sums[0] == 0 && sums[1] == 0) return 0;
  return std::sqrt(sums[0] / sums[1]);
}

}  // namespace kerf::expert_tp
