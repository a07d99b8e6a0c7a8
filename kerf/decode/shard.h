// Expert TP layer by layer: those of NVFP4 are resharded inside each row of ranks, bound and probed, those of
// BF16 remain EP. Stock experts remain too, for steps that do not take the sliced ones.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/probe.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// How layers are cut.
struct ShardOptions {
  std::string backend = "cpu";
  ProbeOptions probe;
  // Called on every rank, may be empty. What it throws is agreed on by all.
  std::function<void(std::int64_t done, std::int64_t of)> progress;
  bool uneven = false;  // slices may differ by one tile of 64
};

// What the probe found for one layer.
struct LayerProbe {
  std::int64_t layer = 0;
  double rel_l2 = 0;
};

// What the cut did; equal on all ranks.
struct ShardReport {
  std::int64_t nvfp4_layers = 0;
  std::int64_t bf16_layers = 0;
  double seconds = 0;                 // the reshards alone, slowest rank
  double probe_seconds = 0;           // the probes, this rank's
  std::int64_t bytes_per_rank = 0;    // of TP tensors, of the rank with the widest slices, layers added up
  std::int64_t peak_extra_bytes = 0;  // beyond stock, at the highest point, on the rank that had most
  double min_rel_l2 = 0;
  double max_rel_l2 = 0;
  std::vector<LayerProbe> probes;  // of the layers that were cut, in order

  // What a rank moved, in GiB a second; 0 where nothing was timed.
  [[nodiscard]] double gib_per_s() const {
    return seconds > 0 ? static_cast<double>(bytes_per_rank) / seconds / (1U << 30U) : 0;
  }
};

// Nothing where `layers` of a checkpoint can be cut tp ways: there is an NVFP4 layer, at least 2 ranks, a
// slice that is whole. Otherwise unsupported; the reason lists the legal values. Needs no weights.
// Error{usage} for a layer that is not there.
Verdict shardable(const checkpoint::Checkpoint& from, std::span<const std::int64_t> layers, int tp,
                  const layout::Fit& fit = {});

// Collective: reshards one NVFP4 layer inside each row and binds the result. Errors, the same on every rank,
// which name the layer: those of expert_tp::reshard() (unsupported, memory) and of binding; bug for a layer
// without whole NVFP4 experts.
void cut(Layer& layer, const std::string& backend, const Rank& rank, bool uneven = false);

// Collective: cut and probe of every NVFP4 layer. Errors on every rank: unsupported (no NVFP4 layer, a shape
// that cannot be cut), memory, probe.
ShardReport shard(std::span<Layer> layers, const ShardOptions& options, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
