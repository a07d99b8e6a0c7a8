#include "kerf/decode/room.h"

#include <algorithm>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/decode/exported.h"
#include "kerf/layout/geometry.h"

namespace kerf::decode {

namespace {

std::string in_words(std::int64_t bytes) {
  constexpr std::int64_t mib = std::int64_t{1} << 20;
  if (bytes < mib) return fmt::format("{} bytes", bytes);
  if (bytes < 1024 * mib)
    return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / static_cast<double>(mib));
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / static_cast<double>(1024 * mib));
}

// Ranks that take the same: their slices are equally wide.
struct Alike {
  std::int64_t ranks = 0;
  MemoryPlan plan;
};

std::vector<Alike> ranks_of(const MemoryRequest& request) {
  std::vector<Alike> out;
  const std::int64_t all = std::max(request.ranks, request.rows * request.tp);
  MemoryRequest one = request;
  const std::int64_t width = layout::converted_width(request.intermediate, request.tp, request.fit);
  for (std::int64_t part = 0; part < request.tp; part += out.back().ranks / (all / request.tp)) {
    one.part = part;
    std::int64_t count = 1;
    while (request.nvfp4_layers > 0 && part + count < request.tp &&
           layout::slice_of(width, request.tp, part + count).width ==
               layout::slice_of(width, request.tp, part).width)
      ++count;
    if (request.nvfp4_layers == 0) count = request.tp;
    out.push_back({count * (all / request.tp), memory_plan(one)});
  }
  return out;
}

Verdict no_room_in(const std::vector<Alike>& ranks, const Room& room, bool device) {
  std::int64_t total = 0;
  std::string sum;
  for (const Alike& alike : ranks) {
    const StageTerms stage = worst_stage(alike.plan, device);
    if (stage.total > (std::int64_t{1} << 60) / std::max<std::int64_t>(alike.ranks, 1))
      total = std::int64_t{1} << 60;
    total = std::min(total + alike.ranks * stage.total, std::int64_t{1} << 60);
    std::string terms;
    for (const auto& [what, bytes] : stage.terms)
      terms += fmt::format("{}{} {}", terms.empty() ? "" : " + ", what, in_words(bytes));
    sum += fmt::format("{}{} rank{} x ({}) = {} at the stage {}", sum.empty() ? "" : "; ", alike.ranks,
                       alike.ranks == 1 ? "" : "s", terms, in_words(alike.ranks * stage.total), stage.stage);
  }
  if (total <= room.bytes) return std::nullopt;
  return because(ErrorKind::memory, "{} wanted, and {} has {}: {}", in_words(total), room.what,
                 in_words(room.bytes), sum);
}

}  // namespace

MemoryRequest request_for(const checkpoint::Checkpoint& from, const std::vector<std::int64_t>& layers,
                          bool block) {
  const checkpoint::ModelConfig& config = from.config();
  MemoryRequest out{.experts = config.experts,
                    .hidden = config.hidden,
                    .intermediate = config.intermediate,
                    .top_k = config.top_k,
                    .tokens = 1,
                    .exported_slices = holds_slices(from),
                    .norm = config.post_norm.has_value()};
  for (const std::int64_t index : layers) {
    const checkpoint::MoeLayer& layer = from.layer(index);
    (layer.kind() == checkpoint::ExpertKind::bf16 ? out.bf16_layers : out.nvfp4_layers)++;
    if (layer.weight_only()) ++out.weight_only_layers;
    if (!block) continue;
    // As a rank holds it: as in the file, a bias as f32.
    const checkpoint::BlockFiles files = layer.block(config.pool.has_value());
    out.block += files.gate.source.bytes() + files.pre_proj.source.bytes() + files.post_proj.source.bytes() +
                 (files.bias ? 4 * config.experts : 0);
  }
  return out;
}

Verdict no_room(const MemoryRequest& request, const Room& host, const std::optional<Room>& device) {
  if (unsupported(request)) return std::nullopt;
  const std::vector<Alike> ranks = ranks_of(request);
  if (Verdict v = no_room_in(ranks, host, false)) return v;
  return device ? no_room_in(ranks, *device, true) : std::nullopt;
}

}  // namespace kerf::decode
