// New weights for a layer that is in use, at the addresses of the old ones: what was planned, prepared and
// captured stays valid. All of a layer or nothing of it, on all ranks alike: the new weights are loaded into
// fresh memory with every check that a start makes (for expert TP they are cut and probed there too), the
// ranks vote, and only then are they copied.
#pragma once

#include <cstdint>
#include <optional>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/adopt.h"
#include "kerf/decode/block.h"
#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

struct RuntimeOptions;

// What a refill did on this rank.
struct RefillReport {
  std::int64_t layer = 0;
  std::int64_t bytes = 0;        // written to the layer's own addresses, on this rank
  std::optional<double> rel_l2;  // what the probe found; nothing where nothing was cut here
  double seconds = 0;            // in all, on this rank
  double landing_seconds = 0;    // from the vote on
};

// A layer, and how it was made.
struct Refillable {
  Layer& layer;
  LayerBlock* block;                      // what stands around its experts; null: nothing
  const RuntimeOptions& options;          // that it was built with
  const checkpoint::ModelConfig* config;  // of the checkpoint that it was built from; null: it was adopted
  ModelSize model;
};

// Both collective, on behalf of Runtime::refill(), which says what is refused. The ranks have found that they
// refill one layer from one source.
RefillReport refill(const Refillable& old, const checkpoint::Checkpoint& source, const Rank& rank);
RefillReport refill(const Refillable& old, const StockLayer& source, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
