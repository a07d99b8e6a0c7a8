// What an instruction set brings to the CPU op: a table of kernels, each over one 128-row tile of a converted
// matrix. All tables give the same bits for NVFP4 experts, and all vector tables for BF16 experts.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/op/cpu/expanded.h"
#include "kerf/op/internal/gated.h"

namespace kerf::op::cpu {

inline constexpr int tile_rows = 128;       // rows of a 128x4 scale tile
inline constexpr int most_rows_a_pass = 8;  // token rows that a kernel takes at once

// One 128-row tile of a converted NVFP4 matrix with K columns.
struct Nvfp4Tile {
  const std::uint8_t* codes;   // [128, K/2]
  const std::uint8_t* scales;  // [K/64, 512]: the tile's part of the 128x4 interleave
  std::int64_t k;
};

// One 128-row tile of a block-major BF16 matrix: 64 values of each row, then `block_stride` values to the
// next 64.
struct Bf16Tile {
  const std::uint16_t* values;  // [K/64, 128, 64] with a stride
  std::int64_t block_stride;
  std::int64_t k;
};

struct Kernels {
  const char* isa;
  BlockOrder order;

  // A quantised row of K values in this table's order: the bytes of expand() (expanded.h).
  void (*expand)(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t k, Chunk* out);

  // dots[t * 128 + r] = canonical dot of tile row r and rows[t], t < count <= most_rows_a_pass. `ahead` is
  // the tile that this thread takes next: a kernel asks for its first rows while it works on its last ones.
  // Block scales of the tile must be regular (no NaN, none negative but -0); the scalar table takes any.
  void (*dots_nvfp4)(const Nvfp4Tile& tile, const Nvfp4Tile& ahead, const Chunk* const* rows, int count,
                     float* dots);
  // The same with bf16 rows (W4A16), block dots of 16-bit integers instead of e2m1 values.
  void (*dots_wide)(const Nvfp4Tile& tile, const Nvfp4Tile& ahead, const WideChunk* const* rows, int count,
                    float* dots);
  // BF16 weights; rows hold every 32 values as f32, 16 even ones, then 16 odd ones.
  void (*dots_bf16)(const Bf16Tile& tile, const Bf16Tile& ahead, const float* const* rows, int count,
                    float* dots);

  // The 128 dots of a w13 tile are 64 intermediate values, up and gate. Activates and requantises them into
  // half `half` (0 or 1) of a chunk.
  void (*requantise)(const float* dots, const internal::ExpertScalars& scalars, int half, Chunk& out);

  // Activates and rounds to bf16, as f32: h[64], every 16 values as 8 even, then 8 odd ones.
  void (*activate)(const float* dots, const internal::ExpertScalars& scalars, float* h);

  // The 128 dots of a w2 tile (rows in converted order), times scale, as 128 bf16 values of a row.
  void (*write_row)(const float* dots, float scale, std::uint16_t* out);
};

// Where value k of a row of BF16 experts stands.
constexpr std::int64_t bf16_place(std::int64_t k) { return 32 * (k / 32) + 16 * (k % 2) + (k % 32) / 2; }

const Kernels& scalar_kernels();

// Tables of the vector instruction sets that this CPU runs, best first.
std::span<const Kernels* const> vector_kernels();

}  // namespace kerf::op::cpu
