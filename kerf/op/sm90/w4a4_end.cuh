// A step's tokens, ended by the kernel that makes their rows: instead of rows it leaves blocks of them that
// bear the launch's number, and whoever has the last of a token's rows adds them all up, for its own columns.
// The others are on their way: items are drawn in the order of rows (w4a4_records.cuh), so that who waits
// here waits for blocks that run and do not wait for it.
#pragma once

#include "kerf/op/sm90/w4a4_finish.cuh"

namespace kerf::op::sm90::w4a4 {

// Lane k has the token's route k: its row, -1 where it is not here, and its weight. The block's scheduler
// fetched both.
struct LaneRoute {
  std::int32_t row = -1;
  float weight = 0.0F;

  __device__ LaneRoute(const Ended& e, int token) {
    const int k = thread_now() % 32;
    if (k >= e.top_k) return;
    row = SharedHead::route_rows(token)[k];
    weight = SharedHead::route_weights(token)[k];
  }
};

// A block of a row, once this launch has written it.
__device__ inline uint4 row_block(const uint4* original) {
  const Tag tag = *SharedHead::tag();
  uint4 v;
  do v = load_whole(original);
  while (v.z != tag.high << 8 || v.w != tag.low);
  return v;
}

// One token's value of each lane's own column, of the warp's 32, from the rows of all of the token's routes
// that are here. blocks: of the warp's first column in row 0; width: blocks of a row. Few instructions: they
// run once a launch, so that fetching them is what they cost.
__device__ inline float sum_of_routes(const Ended& e, const LaneRoute& route, const uint4* blocks,
                                      int width) {
  // A lane reads one of the eight blocks of every fourth route; then every lane takes its value of each route
  // from who has it.
  constexpr int lanes = 32 / ended_block_values;
  constexpr int together = 32 / lanes;
  const int lane = thread_now() % 32;
  const int own = lane / ended_block_values;
  float sum = 0.0F;
#pragma unroll 1
  for (int first = 0; first < e.top_k; first += together) {
    const int row = __shfl_sync(~0U, route.row, first + lane / lanes);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row >= 0) v = row_block(blocks + static_cast<std::int64_t>(row) * width + lane % lanes);
    __syncwarp();
#pragma unroll 1
    for (int j = 0; j < together; ++j) {
      const float weight = __shfl_sync(~0U, route.weight, first + j);
      const int from = j * lanes + own;
      const bool here = __shfl_sync(~0U, row, j * lanes) >= 0;
      const std::uint32_t low = __shfl_sync(~0U, v.x, from);
      const std::uint32_t high = __shfl_sync(~0U, v.y, from);
      const std::uint32_t word = lane % 4 >= 2 ? high : low;
      const float added =
          __fmaf_rn(weight, __uint_as_float(lane % 2 == 0 ? word << 16 : word & 0xFFFF0000U), sum);
      if (here) sum = added;
    }
  }
  return sum;
}

// Instead of finish_rows(): a pair of lanes has four values in a row, of which the even one writes a block.
template <int pairs>
__device__ void end_tokens(const Params& p, const Record& r, int unit, const float (&sums)[2 * pairs]) {
  const int thread = thread_now();
  const LanePlace at{thread % 32 / 4, thread % 4, thread / 32 % 4};
  const Ended& e = p.ended;
  const int hidden = p.gemm[1].rows;
  const int width = hidden / ended_block_values;
  const int column = unit * unit_rows + at.warp * 32;
  const bool odd = (at.t & 1) != 0;
  const Tag tag = *SharedHead::tag();
#pragma unroll
  for (int q = 0; q < pairs; ++q) {
    const float other = __shfl_xor_sync(~0U, odd ? sums[q] : sums[pairs + q], 1);
    const float scale = r.scalars.scale_down;
    const float low = scale * (odd ? other : sums[q]);
    const float high = scale * (odd ? sums[pairs + q] : other);
    const std::uint32_t word =
        numeric::f32_to_bf16(low) | static_cast<std::uint32_t>(numeric::f32_to_bf16(high)) << 16;
    const std::uint32_t next = __shfl_down_sync(~0U, word, 1);
    const int token = 2 * q + at.t / 2;
    if (token < r.count && !odd)
      store_whole(e.blocks + static_cast<std::int64_t>(r.first_row + token) * width +
                      column / ended_block_values + at.g,
                  make_uint4(word, next, tag.high << 8, tag.low));
  }

  const uint4* const blocks = e.blocks + column / ended_block_values;
#pragma unroll 1
  for (int i = 0; i < r.count; ++i) {
    const LaneRoute route(e, r.tokens[i]);
    if (__reduce_max_sync(~0U, route.row) != r.first_row + i) continue;
    const float sum = sum_of_routes(e, route, blocks, width);
    e.y[static_cast<std::int64_t>(r.tokens[i]) * hidden + column + thread % 32] = numeric::f32_to_bf16(sum);
  }
}

// Tokens of which nothing is here: nobody else comes by. By a warp of each block.
__device__ inline void end_absent_tokens(const Params& p) {
  const Ended& e = p.ended;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int vectors = p.gemm[1].rows / 8;
  for (int t = static_cast<int>(blockIdx.x); t < e.tokens; t += static_cast<int>(gridDim.x)) {
    if (__any_sync(~0U, lane < e.top_k && __ldg(e.map + t * e.top_k + lane) >= 0)) continue;
    auto* const y = reinterpret_cast<uint4*>(e.y) + static_cast<std::int64_t>(t) * vectors;
#pragma unroll 1
    for (int i = lane; i < vectors; i += 32) y[i] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace kerf::op::sm90::w4a4
