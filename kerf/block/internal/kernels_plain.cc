// No vector instruction set: the block has its scalar table alone.
#include "kerf/block/internal/kernels.h"

namespace kerf::block::internal {

std::span<const Kernels* const> vector_kernels() { return {}; }

}  // namespace kerf::block::internal
