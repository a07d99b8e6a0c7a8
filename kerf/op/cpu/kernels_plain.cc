// No vector instruction set: the CPU op has its scalar table alone.
#include "kerf/op/cpu/kernels.h"

namespace kerf::op::cpu {

std::span<const Kernels* const> vector_kernels() { return {}; }

}  // namespace kerf::op::cpu
