#pragma once

#include "kerf/op/sm90/ahead.h"

namespace kerf::op::sm90 {

// Bytes to L2: a multiple of 16, from an address that is one.
__device__ inline void prefetch_l2(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// By one warp of each of `blocks` blocks: the block's share of the pieces, in the order in which the step
// reads its experts, all of GEMM1's before GEMM2's. Waits for nothing but the ids.
__device__ inline void fetch_ahead(const Ahead& a, std::uint32_t block, std::uint32_t blocks) {
  if (a.ids == nullptr) return;
  constexpr std::int64_t piece = 16 * 1024;
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::int64_t left = a.most_bytes;
  std::uint32_t turn = block;  // how many pieces before this block's next
#pragma unroll 1
  for (int gemm = 0; gemm < 2; ++gemm) {
    std::uint32_t from = 0;  // experts below have been seen
    while (left > 0) {
      std::uint32_t expert = ~0U;
      for (int i = lane; i < a.routes; i += 32) {
        const auto e = static_cast<std::uint32_t>(a.ids[i]) - static_cast<std::uint32_t>(a.first_expert);
        if (e >= from && e < expert) expert = e;
      }
      expert = __reduce_min_sync(0xFFFFFFFFU, expert);
      if (expert >= static_cast<std::uint32_t>(a.experts)) break;
      from = expert + 1;
#pragma unroll 1
      for (int m = 0; m < 2; ++m) {
        const AheadMatrix& matrix = a.matrices[gemm][m];
        const std::uint8_t* const at = matrix.first + static_cast<std::int64_t>(expert) * matrix.bytes;
        const std::int64_t all = matrix.bytes < left ? matrix.bytes : left / 16 * 16;
        const auto pieces = static_cast<std::uint32_t>((all + piece - 1) / piece);
        for (std::uint32_t p = turn + lane * blocks; p < pieces; p += 32 * blocks) {
          const std::int64_t bytes = all - p * piece;
          prefetch_l2(at + p * piece, static_cast<std::uint32_t>(bytes < piece ? bytes : piece));
        }
        turn = turn >= pieces ? turn - pieces : blocks - 1 - (pieces - 1 - turn) % blocks;
        left -= all;
      }
    }
  }
}

}  // namespace kerf::op::sm90
