// The copies as they are described, through the caches.
#include "kerf/layout/internal/kernels.h"

#include <cstring>

namespace kerf::layout::internal {

void copy_pieces(const Pieces& p) {
  for (std::int64_t g = 0; g < p.groups; ++g)
    for (std::int64_t b = 0; b < p.blocks; ++b)
      for (std::size_t i = 0; i < kGroup; ++i)
        std::memcpy(p.to[i] + b * p.to_step + g * p.to_group, p.from[i] + b * p.from_step + g * p.from_group,
                    static_cast<std::size_t>(p.bytes));
}

void weave(const std::array<const std::byte*, 128>& rows, std::int64_t /*ahead*/, std::int64_t k_tiles,
           std::byte* tiles) {
  for (std::int64_t k = 0; k < k_tiles; ++k)
    for (std::size_t row = 0; row < 128; ++row)
      std::memcpy(tiles + 512 * k + 16 * (row % 32) + 4 * (row / 32), rows[row] + 4 * k, 4);
}

void unweave(const std::byte* tiles, std::int64_t /*ahead*/, std::int64_t k_tiles,
             const std::array<std::byte*, 128>& rows) {
  for (std::int64_t k = 0; k < k_tiles; ++k)
    for (std::size_t row = 0; row < 128; ++row)
      std::memcpy(rows[row] + 4 * k, tiles + 512 * k + 16 * (row % 32) + 4 * (row / 32), 4);
}

void finish() {}

}  // namespace kerf::layout::internal
