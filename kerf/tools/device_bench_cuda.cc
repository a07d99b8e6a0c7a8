#include "kerf/tools/device_bench.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/cuda/device.h"
#include "kerf/decode/inputs.h"
#include "kerf/numeric/median.h"
#include "kerf/tools/internal/bench_steps.h"
#include "kerf/tools/internal/device_share.h"

namespace kerf::tools {

namespace {

using decode::Mode;
using internal::DeviceShare;
using internal::Draw;

constexpr int most_graph_layers = 8;
constexpr double large_step = 4e8;  // bytes from which on two steps a graph are enough

int layers_of(double bytes) { return bytes > large_step ? 2 : most_graph_layers; }

}  // namespace

Verdict device_bench_refused(const BenchRequest& r, const decode::Rank& rank) {
  if (rank.device == nullptr) return because(ErrorKind::bug, "a device's bench without a device");
  if (rank.group.size() != 1)
    return because(ErrorKind::unsupported,
                   "{} ranks of one device take turns on it: each rank's share is timed alone (busiest rank)",
                   rank.group.size());
  BenchRequest one = r;
  one.modes = {Mode::ep};
  one.memory = cuda::facts().free;
  return bench_refused(one, 1, rank.workers.size());
}

BenchReport device_bench(const BenchRequest& r, const decode::Rank& rank) {
  require(device_bench_refused(r, rank));
  BenchReport report;
  report.threads = rank.workers.size();
  for (const std::int64_t width : internal::widths(r)) {
    const std::vector<std::int64_t> batches = internal::batches_at(r, width);
    DeviceShare share({r.arithmetic, {r.shape.experts, r.shape.hidden, width}, 0, r.shape.experts, r.top_k},
                      r.seed, *std::ranges::max_element(batches), rank);
    internal::ColdExperts cold(r.shape.experts, 1);
    for (const std::int64_t batch : batches) {
      const std::vector<std::uint16_t> x = decode::make_rows(r.seed, 0, batch, r.shape.hidden);
      std::vector<double> us, read_us, fractions, distinct;
      for (std::int64_t draw = 0; draw < r.pairs; ++draw) {
        const Draw drawn{r.seed, draw, batch, r.shape.experts, r.top_k};
        const double bytes = share.bytes(drawn.inputs().ids);
        const DeviceShare::Times t =
            share.time(batch, internal::cold_steps(drawn, cold, layers_of(bytes)), x);
        us.push_back(t.us);
        read_us.push_back(t.read_us);
        fractions.push_back(t.read_us / t.us);
        distinct.push_back(bytes / share.expert_bytes());
      }
      BenchStep s;
      s.intermediate = width;
      s.batch = batch;
      s.experts_distinct = static_cast<std::int64_t>(numeric::median(distinct));
      s.bytes = static_cast<std::int64_t>(static_cast<double>(s.experts_distinct) * share.expert_bytes());
      s.busiest_rank_bytes = s.bytes;
      const auto [least, most] = std::minmax_element(fractions.begin(), fractions.end());
      s.fraction_least = *least;
      s.fraction_most = *most;
      s.us = numeric::median(us);
      s.read_us = numeric::median(read_us);
      s.fraction = numeric::median(fractions);
      s.gbps = 1e-3 * static_cast<double>(s.bytes) / s.us;
      s.read_gbps = 1e-3 * static_cast<double>(s.bytes) / s.read_us;
      report.steps.push_back(s);
    }
  }
  return report;
}

namespace {

// Times of one placement: [batch][draw], of each draw the slowest rank; and each rank's mean.
struct Placement {
  std::vector<ShareStep> steps;
  std::vector<std::vector<double>> rank_us;  // [batch][rank]
};

Placement time_placement(const BenchRequest& r, int ranks, bool cut, const decode::Rank& rank) {
  const auto draws = static_cast<std::size_t>(r.pairs);
  std::vector<std::vector<ShareStep>> slowest(r.batches.size(), std::vector<ShareStep>(draws));
  Placement out;
  out.rank_us.resize(r.batches.size());
  const std::int64_t local = cut ? r.shape.experts : r.shape.experts / ranks;
  const layout::ExpertsShape shape{local, r.shape.hidden,
                                   cut ? r.shape.intermediate / ranks : r.shape.intermediate};
  for (int member = 0; member < ranks; ++member) {
    DeviceShare share({r.arithmetic, shape, cut ? 0 : local * member, r.shape.experts, r.top_k},
                      r.seed + static_cast<std::uint64_t>(cut ? member : 0),
                      *std::ranges::max_element(r.batches), rank);
    internal::ColdExperts cold(r.shape.experts, cut ? 1 : ranks);
    for (std::size_t b = 0; b < r.batches.size(); ++b) {
      const std::vector<std::uint16_t> x = decode::make_rows(r.seed, 0, r.batches[b], r.shape.hidden);
      double sum = 0;
      for (std::size_t draw = 0; draw < draws; ++draw) {
        const Draw drawn{r.seed, static_cast<std::int64_t>(draw), r.batches[b], r.shape.experts, r.top_k};
        const double bytes = share.bytes(drawn.inputs().ids);
        const DeviceShare::Times t =
            share.time(r.batches[b], internal::cold_steps(drawn, cold, most_graph_layers), x);
        ShareStep& s = slowest[b][draw];
        s.bytes = std::max(s.bytes, bytes);
        s.us = std::max(s.us, t.us);
        s.read_us = std::max(s.read_us, t.read_us);
        sum += t.us / static_cast<double>(draws);
      }
      out.rank_us[b].push_back(sum);
    }
  }
  for (const std::vector<ShareStep>& of_batch : slowest) {
    ShareStep mean;
    for (const ShareStep& s : of_batch) {
      mean.bytes += s.bytes / static_cast<double>(draws);
      mean.us += s.us / static_cast<double>(draws);
      mean.read_us += s.read_us / static_cast<double>(draws);
    }
    out.steps.push_back(mean);
  }
  return out;
}

}  // namespace

std::vector<BusiestStep> busiest_rank(const BenchRequest& r, int ranks, const decode::Rank& rank) {
  require(device_bench_refused(r, rank));
  require(layout::placeable(r.shape.experts, ranks));
  require(layout::cuttable(r.shape.hidden, r.shape.intermediate, ranks, {}));
  if (r.arithmetic == op::Arithmetic::bf16)
    fail(ErrorKind::unsupported, "BF16 experts stay whole: there is no expert TP to compare with");
  Placement ep = time_placement(r, ranks, false, rank);
  Placement tp = time_placement(r, ranks, true, rank);
  std::vector<BusiestStep> out;
  for (std::size_t b = 0; b < r.batches.size(); ++b)
    out.push_back(
        {r.batches[b], ep.steps[b], tp.steps[b], std::move(ep.rank_us[b]), std::move(tp.rank_us[b])});
  return out;
}

}  // namespace kerf::tools
