// Where a logical row lives in the converted layout, and back. Columns are never permuted. The layout is that
// of trtllm-gen's fused MoE kernels; docs/layout.md draws it. Arguments are not checked: rows from 0 on, in
// matrices whose rows fill whole groups of 32.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace kerf::layout {

// The two projections that w13 holds.
enum class Half : std::uint8_t { up = 0, gate = 1 };

// A row of w13 before conversion: which matrix, and which of its I rows.
struct W13Row {
  Half half = Half::up;
  std::int64_t row = 0;
};

// Every 32-row group of w13 holds 16 intermediate indices, in four runs of eight rows: the even ones of up,
// the even ones of gate, the odd ones of up, the odd ones of gate. What converted row [0, 2I) holds, and
// where row i [0, I) of a half lies.
constexpr W13Row w13_source(std::int64_t converted) {
  const std::int64_t q = (converted % 32) / 8;
  return {q % 2 == 0 ? Half::up : Half::gate, 16 * (converted / 32) + 2 * (converted % 8) + q / 2};
}
constexpr std::int64_t w13_converted(Half half, std::int64_t i) {
  return 32 * (i / 16) + 16 * (i % 2) + 8 * static_cast<std::int64_t>(half) + (i % 16) / 2;
}

// w2: every 32-row block is shuffled. Which row [0, H) a converted row holds, and where row i lies.
constexpr std::int64_t w2_source(std::int64_t converted) {
  return 32 * (converted / 32) + 4 * (converted % 8) + (converted % 32) / 8;
}
constexpr std::int64_t w2_converted(std::int64_t i) { return 32 * (i / 32) + 8 * (i % 4) + (i % 32) / 4; }

// Offset, in bytes, of the scale of (converted row m, k-block k) in the 128x4 interleave of a matrix with
// `columns` k-blocks: tiles of 128 rows and 4 k-blocks, 512 bytes each, [32 rows, 4 groups of them, 4
// k-blocks], as cuBLAS and CUTLASS read block scales.
constexpr std::int64_t scale_offset_128x4(std::int64_t m, std::int64_t k, std::int64_t columns) {
  return ((m / 128) * ((columns + 3) / 4) + k / 4) * 512 + (m % 32) * 16 + ((m % 128) / 32) * 4 + k % 4;
}

// The same for the 8x4 interleave (activations of small tiles).
constexpr std::int64_t scale_offset_8x4(std::int64_t m, std::int64_t k, std::int64_t columns) {
  return ((m / 8) * ((columns + 3) / 4) + k / 4) * 32 + (m % 8) * 4 + k % 4;
}

}  // namespace kerf::layout
#pragma GCC visibility pop
