// The fast TP tail of ranks that share memory, as one collective: nothing is packed, and nothing is sent but
// the tokens that are ended.
#pragma once

#include "kerf/tail/internal/finish.h"

namespace kerf::tail::internal {

// Whether the ranks may read each other's rows, and all of them have something to do.
bool can_sum_in_place(const Call& call, const comm::Group& group);

// Collective. The ranks' rows of a route are added where they lie, by numeric/rank_sum.h; then a token's are
// ended, and written to every rank's output.
void sum_in_place(const Call& call, comm::Group& group);

}  // namespace kerf::tail::internal
