// The CPU backend: reads the converted layout as it lies in memory, and uses all cores that it is given. One
// backend value per instruction set that this machine can run, all with the same bits for NVFP4 input.
#pragma once

#include <vector>

#include "kerf/op/op.h"

namespace kerf::op::cpu {

// "cpu" (the best instruction set here) first, then "cpu:<isa>" of each table as far as they run
// here.
std::vector<const Backend*> backends();

}  // namespace kerf::op::cpu
