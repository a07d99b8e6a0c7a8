// The table for AArch64 CPUs with dot product instructions. On other processors nothing defines it.
#pragma once

#include "kerf/op/cpu/kernels.h"

namespace kerf::op::cpu {

// Null where this CPU lacks them.
const Kernels* dotprod_kernels();

}  // namespace kerf::op::cpu
