// What a synthetic checkpoint consists of: its tensors in file order, and its two config files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kerf/checkpoint/safetensors.h"
#include "kerf/tools/internal/synth_values.h"
#include "kerf/tools/synth.h"

// Options that are given here list their BF16 layers in ascending order.
namespace kerf::tools::internal {

struct SynthTensor {
  checkpoint::NamedShape shape;
  Source source;
  [[nodiscard]] std::int64_t bytes() const { return tensor::bytes_of(shape.dtype, shape.shape); }
};

// Tensors of one layer, in the order that they are written.
std::vector<SynthTensor> layer_tensors(const SynthOptions& options, std::int64_t layer);

std::string config_json(const SynthOptions& options);
// hf_quant_config.json; empty for a dialect whose tools write none.
std::string quant_config_json(const SynthOptions& options);

}  // namespace kerf::tools::internal
