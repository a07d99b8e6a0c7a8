// What a decode step of one layer costs, against what reading its weights costs: the measurement of `kerf
// bench`. The layer is made up (made_experts.h); a step is the runtime's, as decode runs it: routes that are
// prepared, quantisation of the rows, metadata, the op, the tail and the sum over ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kerf/base/error.h"
#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/layout/experts.h"
#include "kerf/op/op.h"
#include "kerf/tools/chart.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// What is measured: a made-up layer's sizes, ranks and batches.
struct BenchRequest {
  std::string backend = "cpu";
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;       // what the experts are, and what they are given
  layout::ExpertsShape shape;                             // of the whole layer: E, H, I
  std::int64_t top_k = 0;                                 // K
  std::vector<std::int64_t> batches = {1, 4, 8, 16, 32};  // tokens of the steps, 1 to decode::most_tokens
  std::vector<decode::Mode> modes = {decode::Mode::ep};   // tp: NVFP4 experts on at least 2 ranks
  std::vector<std::int64_t> sizes;                        // intermediate widths, measured at batches.front()
  std::int64_t pairs = 9;                                 // 1 to 100 000
  std::uint64_t seed = 1;
  std::int64_t memory = 0;                                           // bytes that all ranks together may take
  std::function<void(std::int64_t done, std::int64_t of)> progress;  // called on rank 0, may be empty
};

// One batch, mode and width. Medians over the pairs, of which each has a step and then a plain read of as
// many bytes by the same threads. A time runs from the first rank's start to the last one's end; bytes are
// those of all ranks together.
struct BenchStep {
  std::int64_t intermediate = 0;
  std::int64_t batch = 0;
  decode::Mode mode = decode::Mode::ep;
  std::int64_t experts_distinct = 0;    // that the step's routes reach; of an even number the lower median
  std::int64_t bytes = 0;               // their weights and block scales
  std::int64_t busiest_rank_bytes = 0;  // of the busiest rank (decode/traffic.h)
  double us = 0;                        // microseconds of the step
  double read_us = 0;                   // of the read
  double fraction = 0;                  // of each pair read / step; least and most are the pairs' extremes
  double fraction_least = 0;
  double fraction_most = 0;
  double gbps = 0;  // 10^9 bytes a second
  double read_gbps = 0;
};

// What was measured, each beside a plain read of as many bytes.
struct BenchReport {
  std::int64_t threads = 0;      // of all ranks together
  std::vector<BenchStep> steps;  // by width (that of the shape first), batch, mode
};

// Nothing, or why it cannot be measured on `ranks` ranks of `workers` threads: usage (numbers that make no
// sense, no such backend), unsupported (a shape that the layout, the backend or the ranks cannot have),
// memory, with the sum. Looks at nothing but the request.
Verdict bench_refused(const BenchRequest& request, int ranks, int workers);

// Collective; the requests must be the same on every rank, and so are the reports. The ranks are threads of
// one process: times are of its clock. Errors, the same on every rank: bench_refused()'s reason, before
// anything is allocated; those of decode::Runtime::adopt(); memory.
BenchReport bench(const BenchRequest& request, const decode::Rank& rank);

// The fraction against tokens, and where sizes were asked for against the intermediate width: a curve a mode.
Chart bench_chart(const BenchRequest& request, const BenchReport& report);

}  // namespace kerf::tools
#pragma GCC visibility pop
