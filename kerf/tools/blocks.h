// Looks at every block of a checkpoint's NVFP4 experts, weights included: how many hold nothing but zeros,
// and between what the scales lie that values are decoded with.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/tools/chart.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// Of blocks that are not all zeros: block scale times global scale in f32, smallest and largest. NaN where
// there is no such block, or no usable global scale.
struct ScaleRange {
  float least = std::numeric_limits<float>::quiet_NaN();
  float most = std::numeric_limits<float>::quiet_NaN();

  // Whether there is one.
  [[nodiscard]] bool known() const { return !std::isnan(most); }
  // The smallest that holds both.
  [[nodiscard]] ScaleRange with(const ScaleRange& other) const;
};

// One expert's blocks of 16 values.
struct ExpertBlocks {
  std::int64_t blocks = 0;
  std::int64_t zeros = 0;  // all 16 values zero
  ScaleRange gate, up, down;

  // Of all three projections.
  [[nodiscard]] ScaleRange all() const { return gate.with(up).with(down); }
};

// One layer's experts.
struct LayerBlocks {
  std::int64_t layer = 0;
  std::vector<ExpertBlocks> experts;  // [E]; empty for a BF16 layer

  // All experts' together.
  [[nodiscard]] ExpertBlocks total() const;
};

// All layers with experts, ascending. Experts whose tensors cannot be used count no blocks; nothing here is a
// fault (verify() tells those). `progress` as in verify(). The same at any thread count. Of an export, whose
// experts are converted, no blocks are counted. Error{checkpoint} where global scales cannot be read,
// Error{memory}.
std::vector<LayerBlocks> look_at_blocks(
    const checkpoint::Checkpoint& checkpoint, const Workers& workers,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

// The ranges as a chart: of each layer by matrix, over its experts, and of each expert of each layer.
Chart scale_chart(const std::string& name, const std::vector<LayerBlocks>& layers);

}  // namespace kerf::tools
#pragma GCC visibility pop
