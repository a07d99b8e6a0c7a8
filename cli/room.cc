#include "cli/room.h"

#include <algorithm>

namespace kerf::cli {

namespace {

// Bytes of a layer's block as a rank holds them: as in the file, a bias as f32.
std::int64_t block_bytes(const checkpoint::Checkpoint& from, std::int64_t index) {
  const checkpoint::BlockFiles files = from.layer(index).block(from.config().pool.has_value());
  return files.gate.source.bytes() + files.pre_proj.source.bytes() + files.post_proj.source.bytes() +
         (files.bias ? 4 * from.config().experts : 0);
}

}  // namespace

void require_room(const checkpoint::Checkpoint& from, const RankOptions& options, const Load& load) {
  const checkpoint::ModelConfig& config = from.config();
  const decode::GridShape grid = load.expert_tp ? grid_of(options) : decode::GridShape{options.ranks, 1};
  decode::MemoryRequest r{.experts = config.experts,
                          .hidden = config.hidden,
                          .intermediate = config.intermediate,
                          .top_k = config.top_k,
                          .ranks = options.ranks,
                          .rows = grid.ep,
                          .tp = grid.tp,
                          .fit = options.fit,
                          .tokens = load.tokens,
                          .input = input_of(options),
                          .backend = backend_of(options),
                          .workers = rank_threads(options),
                          .tail = {.kind = load.exact ? tail::Kind::exact : tail::Kind::fast},
                          .exported_slices = decode::holds_slices(from),
                          .norm = config.post_norm.has_value()};
  for (const std::int64_t index : load.layers) {
    (from.layer(index).kind() == checkpoint::ExpertKind::bf16 ? r.bf16_layers : r.nvfp4_layers)++;
    if (load.block) r.block += block_bytes(from, index);
  }
  if (load.layer_by_layer) {
    r.nvfp4_layers = std::min<std::int64_t>(r.nvfp4_layers, 1);
    r.bf16_layers = std::min<std::int64_t>(r.bf16_layers, 1);
  }
  const std::int64_t there = deploy::this_machine().memory;
  if (there == 0) return;  // it does not say
  std::optional<decode::Room> device;
  if (options.device == "cuda") device = decode::Room{cuda::facts().free, "the device"};
  decode::Room room{there, "this machine, within its cgroup's limit,"};
  // Of one process a rank, other hosts have room of their own.
  if (options.host && options.host->ranks < options.ranks) {
    room.bytes = there / options.host->ranks * options.ranks;
    room.what = fmt::format("room as this machine's for {} of {} ranks, within its cgroup's limit,",
                            options.host->ranks, options.ranks);
  }
  require(decode::no_room(r, room, device));
}

}  // namespace kerf::cli
