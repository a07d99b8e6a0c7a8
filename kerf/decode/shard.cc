#include "kerf/decode/shard.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/internal/row_gated.h"
#include "kerf/decode/startup.h"
#include "kerf/expert_tp/expert_tp.h"
#include "kerf/layout/geometry.h"

namespace kerf::decode {

namespace {

constexpr const char* no_nvfp4 = "expert TP needs at least one layer of NVFP4 experts; BF16 layers stay EP";

}  // namespace

Verdict shardable(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers, int tp,
                  const layout::Fit& fit) {
  const bool any = std::any_of(layers.begin(), layers.end(), [&](std::int64_t index) {
    return from.layer(index).kind() == checkpoint::ExpertKind::nvfp4;
  });
  if (!any) return because(ErrorKind::unsupported, "{}", no_nvfp4);
  const checkpoint::ModelConfig& config = from.config();
  if (tp < 2) {
    std::vector<std::int64_t> legal = layout::legal_tp(config.intermediate);
    std::erase(legal, 1);
    return because(ErrorKind::unsupported, "expert TP needs at least 2 ranks, got {}; legal for I = {}: {}",
                   tp, config.intermediate,
                   legal.empty() ? "none" : fmt::format("{}", fmt::join(legal, ", ")));
  }
  return layout::cuttable(config.hidden, config.intermediate, tp, fit);
}

void cut(Layer& layer, const std::string& backend, const Rank& rank, bool uneven) {
  comm::agreed(rank.group, "the layer to cut", [&] { (void)layer.nvfp4(); });
  comm::in_context(fmt::format("layer {}", layer.index), [&] {
    layer.sliced.emplace(expert_tp::reshard(layer.nvfp4(), {rank.group, rank.row()}, layer.ep->num_experts(),
                                            rank.weights(), uneven, &rank.memory));
  });
  const internal::RowGated gated(layer.gated, rank.row());
  comm::agreed(rank.group, fmt::format("binding the sliced experts of layer {}", layer.index), [&] {
    layer.tp = op::backend(backend).bind(op::Nvfp4Args{layer.sliced->view(), layer.ep->num_experts(),
                                                       layer.ep->top_k(), layer.input, gated.all()});
  });
}

ShardReport shard(std::span<Layer> layers, const ShardOptions& options, const Rank& rank) {
  ShardReport report;
  report.nvfp4_layers = std::count_if(layers.begin(), layers.end(), [](const Layer& layer) {
    return layer.kind == checkpoint::ExpertKind::nvfp4;
  });
  report.bf16_layers = static_cast<std::int64_t>(layers.size()) - report.nvfp4_layers;
  if (report.nvfp4_layers == 0) fail(ErrorKind::unsupported, "{}", no_nvfp4);

  report.min_rel_l2 = std::numeric_limits<double>::infinity();
  double seconds = 0;
  std::int64_t done = 0;
  const std::int64_t stock = rank.weights().current();
  rank.weights().reset_peak();
  rank.group.barrier("the first layer's reshard");
  for (Layer& layer : layers) {
    if (layer.kind != checkpoint::ExpertKind::nvfp4) continue;
    {
      const Timing timing(seconds);
      cut(layer, options.backend, rank, options.uneven);
    }
    const Timing timing(report.probe_seconds);
    report.bytes_per_rank += layer.sliced->bytes();
    const double value = probe(layer, options.probe, rank);
    if (rank.group.rank() == 0)
      rank.log.debug(fmt::format("layer {}: probe rel L2 {:.6f}", layer.index, value));
    report.probes.push_back({layer.index, value});
    report.min_rel_l2 = std::min(report.min_rel_l2, value);
    report.max_rel_l2 = std::max(report.max_rel_l2, value);
    comm::agreed(rank.group, "the next layer's reshard", [&] {
      if (options.progress) options.progress(++done, report.nvfp4_layers);
    });
  }
  const std::int64_t ns =
      comm::all_max(rank.group, static_cast<std::int64_t>(seconds * 1e9), "the reshard's time");
  report.seconds = static_cast<double>(ns) * 1e-9;
  report.bytes_per_rank = comm::all_max(rank.group, report.bytes_per_rank, "the reshard's bytes");
  report.peak_extra_bytes =
      comm::all_max(rank.group, rank.weights().peak() - stock, "the reshard's peak memory");
  return report;
}

}  // namespace kerf::decode
