// What one launch of the W4A4 kernel is given.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kerf/op/internal/gated.h"
#include "kerf/op/sm90/w4a4_shape.h"

namespace kerf::op::sm90::w4a4 {

// [2]: for GEMM1 and GEMM2. All pointers are to device memory.
// [4]: GEMM1 and GEMM2 in shared units, then in units alone: a record's kind.
struct Params {
  CUtensorMap codes[2];           // [n * rows, K/2] bytes, boxes of a chunk
  const std::uint8_t* scales[2];  // [n, rows, K/16] 128x4
  const std::uint8_t* a[2];       // [T, H/2]; [padded rows, I/2], h
  const std::uint8_t* a_sf[2];    // [T, H/16]; [padded rows, I/16], h_sf
  std::uint8_t* h;                // the intermediate, which this kernel writes and reads
  std::uint8_t* h_sf;
  std::uint16_t* rows;                     // [padded rows, H] bf16; or
  float* sums;                             // [padded rows, H] f32
  const internal::ExpertScalars* scalars;  // [n]
  const std::uint8_t* zeros;               // half_scale_bytes of them
  const std::int32_t* live_tiles;          // routing::Metadata's
  const std::int32_t* tile_to_expert;
  const std::int32_t* tile_to_limit;
  const std::int32_t* permuted_to_token;
  std::uint32_t* queue;  // items handed out
  std::uint32_t* done;   // [max_tiles] see Record::awaited
  std::int32_t tile;     // rows of a tile
  std::int32_t tiles;    // at most, as long as the metadata's lists of them are
  Gemm gemm[4];
  SharedPlan plan;
};

}  // namespace kerf::op::sm90::w4a4
