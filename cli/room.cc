#include "cli/room.h"

#include <algorithm>

namespace kerf::cli {

void require_room(const checkpoint::Checkpoint& from, const RankOptions& options, const Load& load) {
  const decode::GridShape grid = load.expert_tp ? grid_of(options) : decode::GridShape{options.ranks, 1};
  decode::MemoryRequest r = decode::request_for(from, load.layers, load.block);
  r.ranks = options.ranks;
  r.rows = grid.ep;
  r.tp = grid.tp;
  r.fit = options.fit;
  r.tokens = load.tokens;
  r.input = input_of(options);
  r.backend = backend_of(options);
  r.workers = rank_threads(options);
  r.tail = {.kind = load.exact ? tail::Kind::exact : tail::Kind::fast};
  if (load.layer_by_layer) {
    r.nvfp4_layers = std::min<std::int64_t>(r.nvfp4_layers, 1);
    r.bf16_layers = std::min<std::int64_t>(r.bf16_layers, 1);
    r.weight_only_layers = std::min<std::int64_t>(r.weight_only_layers, 1);
  }
  const std::int64_t there = deploy::this_machine().memory;
  if (there == 0) return;  // it does not say
  std::optional<decode::Room> device;
  if (options.device == "cuda") device = decode::Room{cuda::facts().free, "the device"};
  if (device && options.group == "nccl") {  // a device a rank
    device->bytes *= options.ranks;
    device->what = "room on devices like this rank's";
  }
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
