// Synthetic checkpoints for the tests of this folder, each written once a process.
#pragma once

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/tools/synth.h"
#include "tests/support/test_env.h"

namespace kerf::test {

// Muse-Spark-like: norm after the experts, three NVFP4 layers and one of BF16 experts (layer 1).
class Synthetic {
 public:
  explicit Synthetic(std::int64_t experts = 16, std::int64_t hidden = 256, std::int64_t intermediate = 256,
                     std::vector<std::int64_t> bf16_layers = {1}, std::int64_t layers = 4,
                     tools::SynthModel model = tools::SynthModel::muse_spark) {
    tools::SynthOptions options = tools::synth_defaults(model);
    options.experts = experts;
    options.hidden = hidden;
    options.intermediate = intermediate;
    options.layers = layers;
    options.top_k = 4;
    options.bf16_layers = std::move(bf16_layers);
    options.seed = 5;
    tools::synth(dir_.path(), options, Workers(1));
  }
  [[nodiscard]] checkpoint::Checkpoint open() const { return checkpoint::Checkpoint::open(dir_.path()); }
  [[nodiscard]] const std::filesystem::path& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

inline const Synthetic& small_model() {
  static const Synthetic model;
  return model;
}

}  // namespace kerf::test
