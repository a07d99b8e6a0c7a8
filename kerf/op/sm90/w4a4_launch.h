// The W4A4 kernel, as host code sees it.
#pragma once

#include "kerf/cuda/device.h"
#include "kerf/op/sm90/w4a4_params.h"

namespace kerf::op::sm90::w4a4 {

// Once for each device, before the first launch and outside of any capture. Error{device}.
void prepare();
// Enqueues: passes of 2 * pairs tokens (pairs 1 or 2), at most one block a multiprocessor.
void launch(const Params& params, int pairs, int blocks, cuda::StreamHandle stream);

}  // namespace kerf::op::sm90::w4a4
