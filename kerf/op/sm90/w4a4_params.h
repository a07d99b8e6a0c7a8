// What one launch of the W4A4 kernel is given.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "kerf/op/internal/gated.h"
#include "kerf/op/sm90/w4a4_shape.h"

namespace kerf::op::sm90::w4a4 {

// The number of a launch, from 1 on: what it writes of the intermediate bears it (24 and 32 bits).
struct Tag {
  std::uint32_t high;
  std::uint32_t low;
};

// Tokens that the kernel ends itself, where y is not null (DeviceRows::tokens).
struct Ended {
  std::uint16_t* y;         // [T, H] bf16
  const std::int32_t* map;  // [T, K] rows, -1: not here
  const float* weights;     // [T, K]
  // [padded rows, H/4] what rows are made of until then: four bf16 values in x and y, the tag in z and w.
  uint4* blocks;
  std::int32_t tokens;
  std::int32_t top_k;  // at most most_ended_top_k
};

// [2]: for GEMM1 and GEMM2. All pointers are to device memory.
struct Params {
  CUtensorMap codes[2];           // [n * rows, K/2] bytes, boxes of a chunk
  const std::uint8_t* scales[2];  // [n, rows, K/16] 128x4
  const std::uint8_t* a;          // [T, H/2]
  const std::uint8_t* a_sf;       // [T, H/16]
  Kept* kept;
  // [padded rows, I/16] the intermediate, which this kernel writes and reads: of 16 values the codes in x and
  // y, the scale's byte and the tag in z and w. They are written and read as a whole, so that who finds the
  // tag has the rest, and nobody waits for a fence.
  uint4* h;
  std::uint16_t* rows;                     // [padded rows, H] bf16; or
  float* sums;                             // [padded rows, H] f32; or
  Ended ended;                             // no rows
  const internal::ExpertScalars* scalars;  // [n]
  const std::uint8_t* zeros;               // half_scale_bytes of them
  const std::int32_t* live_tiles;          // routing::Metadata's
  const std::int32_t* tile_to_expert;
  const std::int32_t* tile_to_limit;
  const std::int32_t* permuted_to_token;
  std::int32_t tile;    // rows of a tile
  std::int32_t tiles;   // at most, as long as the metadata's lists of them are
  uint4* halves;        // [2][most_halves][128] what first sides wait for: two sums, the tag
  Gemm gemm[2 * cuts];  // by kind_of()
  SharedPlan plan;
};

}  // namespace kerf::op::sm90::w4a4
