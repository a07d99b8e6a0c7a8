#include "kerf/decode/internal/start_room.h"

#include <algorithm>
#include <optional>
#include <span>

#include "kerf/base/machine.h"
#include "kerf/comm/agree.h"
#include "kerf/cuda/device.h"

namespace kerf::decode::internal {

Verdict no_room_for(const checkpoint::Checkpoint& from, const std::vector<std::int64_t>& layers,
                    const RuntimeOptions& options, const Rank& rank, std::int64_t used) {
  std::optional<Room> room = options.room;
  if (!room && rank.group.name() == "local")
    room = Room{available_memory(), "this machine, within its cgroup's limit,"};
  if (!room || room->bytes == 0) return std::nullopt;  // nobody says
  room->bytes = std::max<std::int64_t>(room->bytes - used, 1);
  MemoryRequest r = request_for(from, layers, options.block != BlockKind::none);
  r.ranks = rank.group.size();
  r.tp = options.expert_tp ? rank.row().size() : 1;
  r.rows = r.ranks / r.tp;
  r.fit = options.build.fit;
  r.tokens = options.max_tokens;
  r.input = options.build.input;
  r.backend = options.build.backend;
  r.workers = rank.workers.size();
  r.tail = options.tail;
  std::optional<Room> device;
  if (rank.device != nullptr) device = Room{cuda::facts().free, "the device"};
  return no_room(r, *room, device);
}

std::int64_t in_use_of_all(const RuntimeOptions& options, const Rank& rank) {
  if (!options.room) return 0;
  const std::int64_t mine = rank.memory.current();
  std::int64_t all = 0;
  for (const std::int64_t bytes :
       comm::gathered(rank.group, std::span<const std::int64_t>(&mine, 1), "memory in use"))
    all += bytes;
  return all;
}

}  // namespace kerf::decode::internal
