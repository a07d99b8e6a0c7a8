// What the host's and the device's bench have in common: which widths and batches are measured, and steps of
// one drawn pattern on cold experts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kerf/decode/inputs.h"
#include "kerf/tools/bench.h"
#include "kerf/tools/internal/cold_experts.h"

namespace kerf::tools::internal {

// Widths, each once, that of the shape first.
inline std::vector<std::int64_t> widths(const BenchRequest& r) {
  std::vector<std::int64_t> out = {r.shape.intermediate};
  for (const std::int64_t width : r.sizes)
    if (std::find(out.begin(), out.end(), width) == out.end()) out.push_back(width);
  return out;
}

// All batches at the shape's own width, the first one at the others.
inline std::vector<std::int64_t> batches_at(const BenchRequest& r, std::int64_t width) {
  return width == r.shape.intermediate ? r.batches : std::vector{r.batches.front()};
}

// The routes of one draw, before experts are renamed: renaming changes no rank's number of experts.
struct Draw {
  std::uint64_t seed;
  std::int64_t number;
  std::int64_t tokens;
  std::int64_t experts;
  std::int64_t top_k;

  [[nodiscard]] decode::Inputs inputs() const {
    return decode::make_inputs(seed, number, tokens, checkpoint::ExpertKind::nvfp4, {experts, 0, top_k});
  }
};

// `count` steps of the draw's pattern, each on the experts that were touched longest ago.
inline std::vector<decode::Inputs> cold_steps(const Draw& draw, ColdExperts& cold, int count) {
  std::vector<decode::Inputs> out(static_cast<std::size_t>(count), draw.inputs());
  for (decode::Inputs& step : out) cold.rename(step.ids);
  return out;
}

}  // namespace kerf::tools::internal
