// What one rank's file of an export holds, by its facts.
#pragma once

#include <cstdint>

#include "kerf/base/threads.h"
#include "kerf/checkpoint/export_file.h"
#include "kerf/checkpoint/faults.h"
#include "kerf/layout/experts.h"
#include "kerf/layout/slice.h"

namespace kerf::tools::internal {

struct Holding {
  layout::ExpertsShape nvfp4, bf16;  // as converted: slices are of their own width
  layout::Slice slice;               // of NVFP4 experts, where there are any
  std::int64_t first_nvfp4 = 0;      // of the model's experts
  std::int64_t first_bf16 = 0;
};

Holding holding(const checkpoint::ExportFacts& facts, const checkpoint::ModelConfig& config);

// Dtypes and shapes of a layer's experts in the file, and every value that can be none: NaN and negative
// block scales, BF16 weights that are not finite, with rank, layer, tensor, expert, byte of the expert and
// value.
void check_exported_experts(const checkpoint::ExportFile& file, const checkpoint::ExportedLayer& layer,
                            const checkpoint::ModelConfig& config, const Workers& workers,
                            checkpoint::Faults& faults);

}  // namespace kerf::tools::internal
