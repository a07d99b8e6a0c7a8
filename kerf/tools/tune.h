// Measures every tactic of a backend on one rank's experts of some size, and ranks them: what `kerf tune`
// writes and pinning looks up. The experts are made up: how long a step takes does not depend on values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kerf/base/threads.h"
#include "kerf/decode/build.h"
#include "kerf/op/op.h"
#include "kerf/tactics/preferred.h"
#include "kerf/tensor/storage.h"

#pragma GCC visibility push(default)
namespace kerf::tools {

// What is timed: experts of these sizes, as one rank has them.
struct TuneRequest {
  std::string backend = "cpu";
  op::Arithmetic arithmetic = op::Arithmetic::w4a4;
  layout::ExpertsShape shape;    // experts on the rank, H, and I or a slice of it
  std::int64_t num_experts = 0;  // E of the model
  std::int64_t top_k = 0;        // K
  std::vector<std::int64_t> tokens = {1, 2, 4, 8, 16, 32, 64};       // each 1 to decode::most_tokens
  double seconds = 10;                                               // of timing, in all
  std::function<void(std::int64_t done, std::int64_t of)> progress;  // may be empty
};

// One tactic at one number of tokens.
struct TacticTime {
  op::Tactic tactic;
  std::int64_t tokens = 0;
  double us = 0;  // microseconds of a step
};

// What was found.
struct TuneResult {
  // The tactics valid at every number of tokens, best first: by the mean over numbers of tokens of
  // log(time / fastest time), ties (tactics::tie_tolerance) in the backend's order.
  tactics::PreferredList list;
  std::vector<TacticTime> times;  // of every tactic that is valid for so many tokens and has a body
};

// Times the op alone, on the host's clock, the least of several runs. Local. Error{usage} for sizes or a list
// of tokens that make no sense and for a backend that is none, Error{device} for "cuda" where it cannot run,
// Error{unsupported} for a shape that the backend cannot run, Error{memory}.
TuneResult tune(const TuneRequest& request, tensor::Memory& memory, const Workers& workers);

// The same for a backend whose experts lie on a device, on a group of one rank: whole steps, on the device's
// clock, the mean over 5 draws of routes. request.seconds does not count.
TuneResult device_tune(const TuneRequest& request, const decode::Rank& rank);

// What both have in common: those errors of tune() but for memory, and the list that follows from times.
void check_tune(const TuneRequest& request);
tactics::PreferredList ranked_list(const TuneRequest& request, const std::vector<TacticTime>& times);

}  // namespace kerf::tools
#pragma GCC visibility pop
