#include "kerf/decode/traffic.h"

#include <algorithm>
#include <vector>

namespace kerf::decode {

std::int64_t busiest_rank_bytes(const Layer& layer, Mode mode, std::span<const std::int32_t> ids, int ranks) {
  const op::RoutedExperts& experts = layer.experts(mode);
  const std::int64_t all = experts.num_experts();
  std::vector<bool> routed(static_cast<std::size_t>(all));
  for (const std::int32_t id : ids)
    if (id >= 0 && id < all) routed[static_cast<std::size_t>(id)] = true;
  // A rank's share: every expert where they are sliced, a contiguous block of them otherwise.
  const std::int64_t share = layer.sliced_in(mode) ? all : all / ranks;
  std::int64_t busiest = 0;
  for (auto first = routed.begin(); first != routed.end(); first += share)
    busiest = std::max<std::int64_t>(busiest, std::count(first, first + share, true));
  return busiest * layer.expert_bytes(mode);
}

}  // namespace kerf::decode
