#include <algorithm>

#include "kerf/base/format.h"
#include "kerf/tools/bench.h"

namespace kerf::tools {

namespace {

// A curve a mode of the steps that are `wanted`, at `x` of each.
template <typename Wanted, typename X>
std::vector<Curve> curves(const BenchRequest& request, const BenchReport& report, const Wanted& wanted,
                          const X& x) {
  std::vector<Curve> out;
  for (const decode::Mode mode : request.modes) {
    Curve curve{std::string(decode::name(mode)), {}};
    for (const BenchStep& s : report.steps)
      if (s.mode == mode && wanted(s))
        curve.points.push_back({static_cast<double>(x(s)), s.fraction, s.fraction_least, s.fraction_most});
    std::ranges::sort(curve.points, {}, &ChartPoint::x);
    out.push_back(std::move(curve));
  }
  return out;
}

}  // namespace

Chart bench_chart(const BenchRequest& request, const BenchReport& report) {
  const layout::ExpertsShape& shape = request.shape;
  const std::string y_label = "fraction of a plain read";
  Chart chart;
  chart.title = "A decode step against a plain read of its weights";
  chart.subtitle =
      fmt::format("{} experts, hidden {}, top {}; {}; {} thread{}; medians and extremes of {} pairs",
                  shape.experts, shape.hidden, request.top_k, op::name(request.arithmetic), report.threads,
                  report.threads == 1 ? "" : "s", request.pairs);
  chart.panels.push_back(
      {fmt::format("Intermediate width {}", shape.intermediate), "tokens of a step", y_label,
       curves(
           request, report, [&](const BenchStep& s) { return s.intermediate == shape.intermediate; },
           [](const BenchStep& s) { return s.batch; })});
  if (request.sizes.empty()) return chart;
  const std::int64_t batch = request.batches.front();
  chart.panels.push_back({fmt::format("{} token{}", batch, batch == 1 ? "" : "s"),
                          "intermediate width of an expert", y_label,
                          curves(
                              request, report,
                              [&](const BenchStep& s) {
                                return s.batch == batch && std::ranges::find(request.sizes, s.intermediate) !=
                                                               request.sizes.end();
                              },
                              [](const BenchStep& s) { return s.intermediate; })});
  return chart;
}

}  // namespace kerf::tools
