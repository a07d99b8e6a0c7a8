// kerf bench on a device: steps of one made-up layer as they run in a decode, a graph of several with
// different experts each, beside a graph that reads as many bytes; and what one rank of several would do
// alone.
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/decode/build.h"
#include "kerf/tools/bench.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// Nothing, or why it cannot be measured: bench_refused()'s reasons for one rank, with what the device has
// free for memory; unsupported for several ranks, bug for a rank without a device, device where this build
// has none. request.modes and request.memory do not count.
Verdict device_bench_refused(const BenchRequest& request, const decode::Rank& rank);

// On a group of one rank whose weights are on a device: steps of the whole layer, routes to local tail. Times
// are a layer's, in microseconds on the device's clock: of a graph of 8 steps (2 of more than 400 MB each),
// median of a few replays; medians over request.pairs draws of routes. Errors: device_bench_refused()'s
// reason, memory, device.
BenchReport device_bench(const BenchRequest& request, const decode::Rank& rank);

// One placement at one batch, means over draws. Every rank's share is timed alone; of each draw the slowest
// rank counts.
struct ShareStep {
  double bytes = 0;    // that the busiest rank reads
  double us = 0;       // microseconds of a layer's step on the slowest rank
  double read_us = 0;  // the longest read of a rank's bytes
};

// Both placements at one batch.
struct BusiestStep {
  std::int64_t batch = 0;
  ShareStep ep, tp;
  std::vector<double> ep_rank_us, tp_rank_us;  // [ranks], mean over draws
};

// Experts whole on `ranks` ranks, and cut `ranks` ways, each rank's share of NVFP4 experts alone on the
// device, one after another. Errors of device_bench(), and unsupported for BF16 experts and for a number of
// ranks that experts cannot be placed over or cut into.
std::vector<BusiestStep> busiest_rank(const BenchRequest& request, int ranks, const decode::Rank& rank);

}  // namespace kerf::tools
#pragma GCC visibility pop
