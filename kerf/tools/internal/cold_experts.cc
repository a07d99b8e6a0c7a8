#include "kerf/tools/internal/cold_experts.h"

#include <algorithm>
#include <numeric>

namespace kerf::tools::internal {

ColdExperts::ColdExperts(std::int64_t experts, std::int64_t blocks)
    : block_(experts / blocks),
      oldest_(static_cast<std::size_t>(blocks)),
      met_(static_cast<std::size_t>(blocks), 0) {
  std::int32_t next = 0;
  for (std::vector<std::int32_t>& block : oldest_) {
    block.resize(static_cast<std::size_t>(block_));
    std::iota(block.begin(), block.end(), next);
    next += static_cast<std::int32_t>(block_);
  }
}

std::vector<std::int32_t> ColdExperts::take(std::size_t block, std::int64_t count) {
  std::vector<std::int32_t>& oldest = oldest_[block];
  const auto end = oldest.begin() + count;
  std::vector<std::int32_t> taken(oldest.begin(), end);
  std::rotate(oldest.begin(), end, oldest.end());
  return taken;
}

void ColdExperts::rename(std::span<std::int32_t> ids) {
  std::vector<std::int32_t> names(static_cast<std::size_t>(block_) * oldest_.size(), -1);
  for (const std::int32_t id : ids) names[static_cast<std::size_t>(id)] = id;
  for (std::size_t b = 0; b < oldest_.size(); ++b) {
    const auto first = names.begin() + static_cast<std::ptrdiff_t>(b) * block_;
    met_[b] = std::count_if(first, first + block_, [](std::int32_t id) { return id >= 0; });
    std::vector<std::int32_t> cold = take(b, met_[b]);
    std::sort(cold.begin(), cold.end());
    std::copy(cold.begin(), cold.end(), oldest_[b].end() - met_[b]);
    auto next = cold.begin();
    for (auto name = first; name != first + block_; ++name)
      if (*name >= 0) *name = *next++;
  }
  for (std::int32_t& id : ids) id = names[static_cast<std::size_t>(id)];
}

std::vector<std::int32_t> ColdExperts::as_many() {
  std::vector<std::int32_t> out;
  for (std::size_t b = 0; b < oldest_.size(); ++b) {
    const std::vector<std::int32_t> taken = take(b, met_[b]);
    out.insert(out.end(), taken.begin(), taken.end());
  }
  return out;
}

std::int64_t ColdExperts::met() const { return std::accumulate(met_.begin(), met_.end(), std::int64_t{0}); }

}  // namespace kerf::tools::internal
