// The tuner of stock experts: before there are steps it finds, for each bucket of token counts, the tactic
// that is fastest on the slowest rank, or takes it from a cache file. Sliced experts are not tuned: theirs is
// pinned, so that nothing timed can come between one start and the next.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "kerf/decode/build.h"
#include "kerf/decode/layer.h"
#include "kerf/decode/plan.h"

#pragma GCC visibility push(default)
namespace kerf::decode {

// How long tactics are timed, and where the results are kept.
struct TuneOptions {
  double seconds = 0;           // of timing, in all; 0: nothing is timed
  std::filesystem::path cache;  // empty: none
};

// How the choices came about; all 0 where neither time nor a cache was given.
struct TuneReport {
  int cached = 0;  // buckets (of each kind of experts) whose tactic the cache had
  int timed = 0;   // those that were timed now
  // Those that run the op's default: nothing was timed (seconds were 0), or no tactic has a body on every
  // rank for the whole bucket.
  int left = 0;
};

// Collective. Fills plan.prepared[...].tuned, with the same tactics on every rank: rank 0 reads the cache,
// and times are the slowest rank's; candidates are the tactics valid for the whole bucket that have a
// prepared body on every rank, and ties (tactics::tie_tolerance) go to the first of the op's list. A cache
// that was made elsewhere (package, device, model or workers), or a file that is no cache, is refused and
// left as it is; a damaged cache is replaced once tactics are timed; all of them, and a file that cannot be
// written, with a warning. Times are of steps on spread_inputs(). Errors: those of op::backend(), and on
// every rank what a timed step throws.
TuneReport tune(Plan& plan, std::span<const Layer> layers, const std::string& backend,
                const TuneOptions& options, const Rank& rank);

}  // namespace kerf::decode
#pragma GCC visibility pop
