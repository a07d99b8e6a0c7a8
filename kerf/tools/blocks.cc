#include "kerf/tools/blocks.h"

#include <algorithm>
#include <mutex>
#include <span>

#include "kerf/base/error.h"
#include "kerf/numeric/block_scan.h"
#include "kerf/numeric/e4m3.h"

namespace kerf::tools {

namespace {

using checkpoint::ExpertKind;
using checkpoint::ExpertViews;
using checkpoint::MoeLayer;

std::span<const std::uint8_t> bytes_of(const tensor::TensorView& view) {
  return {reinterpret_cast<const std::uint8_t*>(view.bytes.data()), view.bytes.size()};
}

ScaleRange look_at(const tensor::TensorView& codes, const tensor::TensorView& scales, float global,
                   ExpertBlocks& sum) {
  const numeric::BlockScan scan = numeric::scan_blocks(bytes_of(codes), bytes_of(scales));
  sum.blocks += scan.blocks;
  sum.zeros += scan.zeros;
  if (scan.most == 0) return {};
  return {numeric::e4m3_to_f32(scan.least) * global, numeric::e4m3_to_f32(scan.most) * global};
}

}  // namespace

ScaleRange ScaleRange::with(const ScaleRange& other) const {
  if (!other.known()) return *this;
  if (!known()) return other;
  return {std::min(least, other.least), std::max(most, other.most)};
}

ExpertBlocks LayerBlocks::total() const {
  ExpertBlocks sum;
  for (const ExpertBlocks& e : experts) {
    sum.blocks += e.blocks;
    sum.zeros += e.zeros;
    sum.gate = sum.gate.with(e.gate);
    sum.up = sum.up.with(e.up);
    sum.down = sum.down.with(e.down);
  }
  return sum;
}

std::vector<LayerBlocks> look_at_blocks(
    const checkpoint::Checkpoint& checkpoint, const Workers& workers,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  struct Task {
    const MoeLayer* layer;
    const checkpoint::LayerScales* scales;
    std::size_t expert;
    ExpertBlocks* out;
  };
  const auto experts = static_cast<std::size_t>(checkpoint.config().experts);
  const std::size_t layers = checkpoint.moe_layers().size();
  std::vector<LayerBlocks> out(layers);
  std::vector<checkpoint::LayerScales> scales(layers);
  std::vector<Task> tasks;
  for (std::size_t l = 0; l < layers; ++l) {
    const MoeLayer& layer = checkpoint.layer(checkpoint.moe_layers()[l]);
    out[l].layer = layer.index();
    if (layer.kind() != ExpertKind::nvfp4) continue;
    checkpoint::Faults ignored;
    scales[l] = layer.scales(ignored);
    out[l].experts.resize(experts);
    for (std::size_t e = 0; e < experts; ++e) tasks.push_back({&layer, &scales[l], e, &out[l].experts[e]});
  }

  std::mutex mutex;
  std::int64_t done = 0;
  workers.for_each(tasks.size(), [&](std::size_t t, int) {
    const Task& task = tasks[t];
    const Verdict unusable = attempt([&] {
      const ExpertViews v = task.layer->expert(static_cast<std::int64_t>(task.expert));
      ExpertBlocks sum;
      sum.gate = look_at(v.gate, v.gate_sf, task.scales->ws2_gate[task.expert], sum);
      sum.up = look_at(v.up, v.up_sf, task.scales->ws2_up[task.expert], sum);
      sum.down = look_at(v.down, v.down_sf, task.scales->ws2_down[task.expert], sum);
      *task.out = sum;
    });
    if (unusable && unusable->kind != ErrorKind::checkpoint && unusable->kind != ErrorKind::unsupported)
      throw Error(unusable->kind, unusable->text);
    if (!progress) return;
    const std::scoped_lock lock(mutex);
    progress(++done, std::ssize(tasks));
  });
  return out;
}

}  // namespace kerf::tools
