// A small checkpoint of Muse Spark's names.
#pragma once

#include <cstdint>
#include <filesystem>

#include "kerf/tools/synth.h"

namespace kerf::test {

// 16 experts of 256 x 256, top 4; layer 1 of `layers` has BF16 experts.
inline void write_muse_spark(const std::filesystem::path& path, std::int64_t layers) {
  tools::SynthOptions options = tools::synth_defaults(tools::SynthModel::muse_spark);
  options.experts = 16;
  options.hidden = 256;
  options.intermediate = 256;
  options.layers = layers;
  options.top_k = 4;
  options.bf16_layers = {1};
  tools::synth(path, options, Workers(1));
}

}  // namespace kerf::test
