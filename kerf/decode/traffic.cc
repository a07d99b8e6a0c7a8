#include "kerf/decode/traffic.h"

#include <algorithm>
#include <vector>

#include "kerf/layout/geometry.h"

namespace kerf::decode {

std::int64_t busiest_rank_bytes(const Layer& layer, Mode mode, std::span<const std::int32_t> ids,
                                const Rank& rank) {
  const op::RoutedExperts& experts = layer.experts(mode);
  const std::int64_t all = experts.num_experts();
  std::vector<bool> routed(static_cast<std::size_t>(all));
  for (const std::int32_t id : ids)
    if (id >= 0 && id < all) routed[static_cast<std::size_t>(id)] = true;
  // What shares an expert's bytes: a row of ranks where they are sliced, one rank otherwise. Each holds a
  // contiguous block of them.
  const int sharing = layer.sliced_in(mode) ? rank.row().size() : 1;
  const std::int64_t block = all / (rank.group.size() / sharing);
  std::int64_t busiest = 0;
  for (auto first = routed.begin(); first != routed.end(); first += block)
    busiest = std::max<std::int64_t>(busiest, std::count(first, first + block, true));
  // An expert's bytes are as many times its width on every rank.
  const std::int64_t widest = layout::slice_of(layer.width(), sharing, 0).width;
  return busiest * (layer.expert_bytes(mode) / experts.shape().intermediate * widest);
}

}  // namespace kerf::decode
