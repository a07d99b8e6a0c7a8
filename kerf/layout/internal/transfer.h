// The copies that conversion is made of. Each is an overload pair whose direction follows from which side is
// const, so that restoring is the same loop as converting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kerf::layout::internal {

inline void transfer(const std::byte* logical, std::byte* converted, std::int64_t bytes) {
  std::memcpy(converted, logical, static_cast<std::size_t>(bytes));
}
inline void transfer(std::byte* logical, const std::byte* converted, std::int64_t bytes) {
  std::memcpy(logical, converted, static_cast<std::size_t>(bytes));
}

// Scales of the 128 converted rows from m: k_tiles tiles of 512 bytes, 4 bytes a row in each.
template <typename Rows, typename T>
void weave_tile(const Rows& logical, std::int64_t m, T* tile, std::int64_t k_tiles) {
  for (std::int64_t k = 0; k < k_tiles; ++k)
    for (std::int64_t r = 0; r < 32; ++r)
      for (std::int64_t g = 0; g < 4; ++g)
        transfer(logical(m + 32 * g + r) + 4 * k, tile + 512 * k + 16 * r + 4 * g, 4);
}

inline void finish() {}

}  // namespace kerf::layout::internal
