#include "kerf/tools/verify.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kerf/base/format.h"

namespace kerf::tools {

namespace {

using checkpoint::ExpertKind;
using checkpoint::ExpertViews;
using checkpoint::Faults;
using checkpoint::MoeLayer;

// BF16 words whose exponent is all ones: infinities and NaN. Files need not align them.
void scan_bf16(const tensor::TensorView& view, std::string_view where, Faults& faults) {
  constexpr std::size_t run = 4096;  // words looked at together before any of them is looked at alone
  const std::size_t words = view.bytes.size() / 2;
  const std::int64_t columns = view.shape.rank() == 2 ? view.shape[1] : 1;
  std::array<std::uint16_t, run> buffer{};
  for (std::size_t first = 0; first < words; first += run) {
    const std::size_t count = std::min(run, words - first);
    std::memcpy(buffer.data(), view.bytes.data() + 2 * first, 2 * count);
    unsigned bad = 0;
    for (std::size_t i = 0; i < count; ++i) bad += (buffer[i] & 0x7F80U) == 0x7F80U ? 1U : 0U;
    if (bad == 0) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if ((buffer[i] & 0x7F80U) != 0x7F80U) continue;
      const auto at = static_cast<std::int64_t>(first + i);
      faults.add("BF16 weight that is not finite", fmt::format("{}, row {}, column {}, bits 0x{:04X}", where,
                                                               at / columns, at % columns, buffer[i]));
    }
  }
}

// One expert: its bytes that were looked at.
std::int64_t check_expert(const MoeLayer& layer, std::int64_t e, Faults& faults) {
  ExpertViews views;
  try {
    views = layer.expert(e);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::checkpoint && error.kind() != ErrorKind::unsupported) throw;
    faults.add("tensor that cannot be used", error.what());
    return 0;
  }
  if (layer.kind() == ExpertKind::nvfp4) {
    layer.scan_block_scales(e, faults);
    return static_cast<std::int64_t>(views.gate_sf.bytes.size() + views.up_sf.bytes.size() +
                                     views.down_sf.bytes.size());
  }
  std::int64_t bytes = 0;
  for (const auto& [name, view] :
       {std::pair{"gate", &views.gate}, {"up", &views.up}, {"down", &views.down}}) {
    scan_bf16(*view, fmt::format("layer {}, expert {}, {}", layer.index(), e, name), faults);
    bytes += static_cast<std::int64_t>(view->bytes.size());
  }
  return bytes;
}

}  // namespace

VerifyReport verify(const checkpoint::Checkpoint& checkpoint, const Workers& workers,
                    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  struct Task {
    const MoeLayer* layer;
    std::int64_t expert;
    Faults faults;
    std::int64_t bytes = 0;
  };
  const std::int64_t experts = checkpoint.config().experts;
  VerifyReport report;
  std::vector<Task> tasks;
  for (const std::int64_t index : checkpoint.moe_layers())
    for (std::int64_t e = 0; e < experts; ++e) tasks.push_back({&checkpoint.layer(index), e, {}, 0});
  report.layers = static_cast<std::int64_t>(checkpoint.moe_layers().size());
  report.experts = static_cast<std::int64_t>(tasks.size());

  std::mutex mutex;
  std::int64_t done = 0;
  workers.for_each(tasks.size(), [&](std::size_t t, int) {
    Task& task = tasks[t];
    task.bytes = check_expert(*task.layer, task.expert, task.faults);
    if (!progress) return;
    const std::scoped_lock lock(mutex);
    progress(++done, report.experts);
  });

  for (Task& task : tasks) {
    if (task.expert == 0 && task.layer->kind() == ExpertKind::nvfp4) {
      const checkpoint::LayerScales scales = task.layer->scales(report.faults);
      const std::int64_t inputs = scales.weight_only ? 0 : 3;
      report.bytes_checked += 4 * experts * (3 + inputs);
    }
    report.faults.merge(task.faults);
    report.bytes_checked += task.bytes;
  }
  return report;
}

}  // namespace kerf::tools
