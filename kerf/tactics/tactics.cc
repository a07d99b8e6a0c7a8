#include "kerf/tactics/tactics.h"

#include <algorithm>
#include <bit>

#include "kerf/base/format.h"

namespace kerf::tactics {

int default_tile(std::int64_t tokens, std::int64_t top_k, std::int64_t local_experts,
                 std::span<const int> candidates) {
  if (tokens < 0 || top_k < 0 || local_experts < 1 || candidates.empty()) {
    fail(ErrorKind::bug, "the default tile of {} tokens, top {}, {} local experts, {} candidate tiles",
         tokens, top_k, local_experts, candidates.size());
  }
  // Whole numbers, so that no rounding can move a border: a tile covers the average exactly when it covers
  // the average's ceiling.
  const std::int64_t average = (tokens * top_k + local_experts - 1) / local_experts;
  const auto centre = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(average)));
  auto covering = std::ranges::find_if(candidates, [&](int tile) { return tile >= centre; });
  if (covering == candidates.end()) --covering;  // the largest is the centre of what no tile covers
  return covering == candidates.begin() ? *covering : *(covering - 1);
}

op::Tactic tactic_key(op::Tactic tactic, std::int64_t tokens, std::int64_t top_k,
                      std::int64_t local_experts) {
  if (tactic.tile != -1 && tactic.config != -1) return tactic;
  return {default_tile(tokens, top_k, local_experts), -1};
}

std::vector<op::Tactic> tactic_keys(std::span<const op::Tactic> valid, std::int64_t tokens,
                                    std::int64_t top_k, std::int64_t local_experts, int largest_tile) {
  std::vector<op::Tactic> keys = {tactic_key({}, tokens, top_k, local_experts)};
  for (const op::Tactic tactic : valid) {
    const op::Tactic key = tactic_key(tactic, tokens, top_k, local_experts);
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  }
  std::erase_if(keys, [&](op::Tactic key) { return key.tile > largest_tile; });
  return keys;
}

}  // namespace kerf::tactics
