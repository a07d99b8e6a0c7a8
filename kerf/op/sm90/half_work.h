// The work of a run of 16-bit rows (BF16 and W4A16), cut into units: some rows of one GEMM's weights times
// one tile of tokens, over all of K. All of GEMM1's come first, so that whoever has a unit of GEMM2 can wait
// for the ones of GEMM1 that it needs: they are done, or somebody is at them.
#pragma once

#include <cstdint>

#include "kerf/op/internal/gated.h"

namespace kerf::op::sm90 {

// Rows of weights that a block of threads works at, 64 for each of its two warpgroups. A config is how often
// K is split: 1, 128 rows and each group has 64 of them; 2, 64 rows and each group has every other chunk of
// K, for where 128 rows would make too few units. The two sums are added in a fixed order.
inline constexpr int splits[] = {1, 2};
constexpr int rows_of_unit(int split) { return 128 / split; }

struct HalfUnit {
  bool second;  // of GEMM2
  int tile;
  int first_row;  // of the expert's weights
};

// What a run is given. All pointers are to device memory. What the metadata says of rows is read on the
// device.
struct HalfStep {
  const std::uint16_t* x;                  // [T, H] bf16
  const std::int32_t* permuted_to_token;   // [max_padded]
  const std::int32_t* tile_to_expert;      // [max_tiles]
  const std::int32_t* tile_to_limit;       // [max_tiles]
  const std::int32_t* live_tiles;          // [1]
  const internal::ExpertScalars* scalars;  // [n]
  const std::uint8_t* w13_sf;              // [n, 2I, H/16] 128x4, NVFP4's
  const std::uint8_t* w2_sf;               // [n, H, I/16] 128x4, NVFP4's
  std::uint16_t* gathered;                 // [max_tiles, H/64, tile, 64] bf16, half_place.h
  std::uint16_t* h;                        // [max_tiles, I/64, tile, 64] bf16, half_place.h
  std::uint16_t* rows;                     // [max_padded, H] bf16
  std::uint32_t* counters;                 // [half_counters + max_tiles], zero at first
  int hidden;
  int intermediate;
  int most_tiles;  // the metadata's max_tiles
  bool direct;     // kernels that can take the tokens' values straight from x do
};

// Of the counters: units handed out, blocks that have gathered their share of x, then for each tile how much
// of GEMM1 is done.
inline constexpr int taken_units = 0;
inline constexpr int gathered_shares = 1;
inline constexpr int half_counters = 2;

// Counts for a number of live tiles.
struct HalfWork {
  int first_units;   // units a tile of GEMM1
  int second_units;  // of GEMM2; rows past H do not exist (64 of the last unit's, where H % 128 is 64)
  std::uint32_t first;
  std::uint32_t all;
  int unit_rows;

  constexpr HalfWork(int hidden, int intermediate, int live, int split)
      : first_units(2 * intermediate / rows_of_unit(split)),
        second_units((hidden + rows_of_unit(split) - 1) / rows_of_unit(split)),
        first(static_cast<std::uint32_t>(live) * static_cast<std::uint32_t>(first_units)),
        all(first + static_cast<std::uint32_t>(live) * static_cast<std::uint32_t>(second_units)),
        unit_rows(rows_of_unit(split)) {}

  [[nodiscard]] constexpr HalfUnit unit(std::uint32_t item) const {
    const bool second = item >= first;
    const auto units = static_cast<std::uint32_t>(second ? second_units : first_units);
    const std::uint32_t i = second ? item - first : item;
    return {second, static_cast<int>(i / units), static_cast<int>(i % units) * unit_rows};
  }
};

}  // namespace kerf::op::sm90
