// How the ranks of a program ended, and which of them is the cause to report.
#pragma once

#include <chrono>
#include <span>

#include "kerf/base/error.h"

namespace kerf::comm::internal {

struct Ended {
  Verdict reason;             // nothing: it returned
  bool group_failed = false;  // it ended because of another rank
};

// The lowest rank's own error before what only tells of another, led by "rank R: " where it is another's than
// `me`'s alone; of equal ones it says nothing who has it.
Verdict root_cause(std::span<const Ended> ends, int me);

// The same where the ranks `missing` have not said how they ended after so long.
Verdict settled_cause(std::span<const Ended> ends, int me, std::span<const int> missing,
                      std::chrono::milliseconds waited);

}  // namespace kerf::comm::internal
