// The copies that conversion is made of, chosen at run time for this processor. Stores of whole cache lines
// go past the caches: a layer is far larger than any of them, and a store that first fetched its line would
// cost half as much again. Any alignment is right; lines that a piece fills in part are stored as usual.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kerf::layout::internal {

// The permutations stay among 32 rows, so rows move 32 at a time.
inline constexpr std::size_t kGroup = 32;

// `groups` times `blocks` times 32 pieces: piece i of block b of group g goes from[i] + b * from_step + g *
// from_group -> to[i] + b * to_step + g * to_group.
struct Pieces {
  std::array<const std::byte*, kGroup> from;
  std::array<std::byte*, kGroup> to;
  std::int64_t bytes = 0;  // of one piece
  std::int64_t blocks = 1;
  std::int64_t from_step = 0;
  std::int64_t to_step = 0;
  std::int64_t groups = 1;
  std::int64_t from_group = 0;
  std::int64_t to_group = 0;
};
void copy_pieces(const Pieces& pieces);

// Scales of 128 rows, 4 * k_tiles bytes each, into (out of) k_tiles tiles of 512 bytes: row 32 g + r holds
// bytes [16 r + 4 g, + 4) of every tile. `ahead` bytes behind its source is
// what the next call will read (0: nothing).
void weave(const std::array<const std::byte*, 128>& rows, std::int64_t ahead, std::int64_t k_tiles,
           std::byte* tiles);
void unweave(const std::byte* tiles, std::int64_t ahead, std::int64_t k_tiles,
             const std::array<std::byte*, 128>& rows);

// Stores that went past the caches are visible to other threads after this.
void finish();

}  // namespace kerf::layout::internal
