// The tails' kernels, loaded onto the current device (cuda/launch.cuh says why before a meeting).
#pragma once

namespace kerf::tail::internal {

void load_tails();
void load_sums();
void load_all_reduces();

}  // namespace kerf::tail::internal
