#include <algorithm>
#include <cmath>

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

// Nothing where every route is here.
Verdict unserved(const RouteRows& rows, std::int64_t top_k) {
  const auto missing = std::count(rows.local.begin(), rows.local.end(), false);
  if (missing == 0) return std::nullopt;
  const std::int64_t first = std::find(rows.local.begin(), rows.local.end(), false) - rows.local.begin();
  return because(ErrorKind::probe,
                 "the TP experts did not serve {} of {} routes, the first token {} route {}", missing,
                 rows.local.size(), first / top_k, first % top_k);
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

double probe_rel_l2(const op::Unfinalized& ep, const op::Unfinalized& tp, comm::Group& group) {
  const FpGuard guard;  // bf16 subnormals count
  RouteRows ep_rows;
  RouteRows tp_rows;
  std::vector<std::uint16_t> summed;
  comm::agreed(group, "probe: rows", [&] {
    if (ep.tokens != tp.tokens || ep.top_k != tp.top_k || ep.hidden != tp.hidden)
      fail(ErrorKind::bug, "probe: EP rows of [{}, {}, {}], TP rows of [{}, {}, {}]", ep.tokens, ep.top_k,
           ep.hidden, tp.tokens, tp.top_k, tp.hidden);
    ep_rows = route_rows(ep);
    tp_rows = route_rows(tp);
    require(unserved(tp_rows, tp.top_k));
    summed.resize(tp_rows.rows.size());
  });
  const std::array<internal::Fact, 3> facts = {
      {{"tokens", tp.tokens}, {"routes a token", tp.top_k}, {"hidden width", tp.hidden}}};
  require(internal::differing(facts, group, "probe: shapes"));

  group.all_reduce_sum(tp_rows.rows, summed, "probe: sum of TP rows");
  const Sums mine = square_sums(ep_rows, summed, static_cast<std::size_t>(tp.hidden));
  std::array<double, 2> sums = {mine.difference, mine.wanted};
  comm::all_sum(group, sums, "probe: squared sums");
  if (sums[0] == 0 && sums[1] == 0) return 0;
  return std::sqrt(sums[0] / sums[1]);
}

}  // namespace kerf::expert_tp
