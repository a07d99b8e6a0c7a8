#include "kerf/op/cpu/groups.h"

#include "kerf/base/format.h"

namespace kerf::op::cpu {

std::size_t gather(const routing::MetadataShape& shape, const routing::Metadata& metadata,
                   std::span<Group> groups, std::span<Entry> entries) {
  std::size_t used = 0;
  const auto live = static_cast<std::size_t>(metadata.live_tiles[0]);
  for (std::size_t c = 0; c < live; ++c) {
    const std::int64_t limit = metadata.tile_to_limit[c];
    groups[c] = {metadata.tile_to_expert[c], static_cast<std::int32_t>(used), 0};
    for (std::int64_t r = static_cast<std::int64_t>(c) * shape.tile; r < limit; ++r) {
      if (used == entries.size())
        fail(ErrorKind::bug, "routing metadata has more rows than its {} routes", entries.size());
      entries[used++] = {static_cast<std::int32_t>(r),
                         metadata.permuted_to_token[static_cast<std::size_t>(r)]};
      ++groups[c].count;
    }
  }
  return live;
}

}  // namespace kerf::op::cpu
