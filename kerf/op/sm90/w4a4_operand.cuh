// The tokens' side of the products. Four lanes share a row of weights, each with two blocks of a chunk's
// eight, so the B operand is block-diagonal: its eight columns are four pairs of blocks by two tokens, zero
// elsewhere, and what a lane accumulates are dots of its own blocks. A warpgroup writes a segment's operand
// (4 KB for each pair of tokens) when its products of the segment before are over; the zeros are written once
// and stay.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kerf/op/sm90/w4a4_records.cuh"

namespace kerf::op::sm90::w4a4 {

// Eight e2m1 codes as e4m3 bytes that stand for 2^-6 times their values: the odd ones and the even ones.
__device__ inline void expand(std::uint32_t codes, std::uint32_t& odd, std::uint32_t& even) {
  const std::uint32_t shifted = codes << 4;
  odd = (codes & 0x80808080U) | ((codes >> 2) & 0x1C1C1C1CU);
  even = (shifted & 0x80808080U) | ((shifted >> 2) & 0x1C1C1C1CU);
}

// Two e4m3 bytes as f32, NaN included.
__device__ inline float2 scales_of(std::uint16_t bytes) {
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(bytes, __NV_E4M3)));
}

// A block of the intermediate: from the slot where it was copied to, or once this launch has written it.
__device__ inline uint4 intermediate(const std::byte* copied, const uint4* original) {
  const Tag tag = *SharedHead::tag();
  uint4 v = *reinterpret_cast<const uint4*>(copied);
  while (v.z >> 8 != tag.high || v.w != tag.low) v = load_whole(original);
  return v;
}

// Writes the operand of the warpgroup's segment number n from its rows' codes and scales: each thread a word
// of eight codes and, half of the threads, a scale, of one token of each of `used` pairs. The warpgroup must
// meet before any of its wgmma reads it.
template <int pairs, int used>
__device__ void build_operand(const Params& p, int warpgroup, unsigned n, std::byte* rows) {
  const int thread = pairs == 2 ? thread_now() : static_cast<int>(threadIdx.x);  // registers are short
  const int word = thread & 63;
  const int second = (thread >> 6) & 1;
  // Of this thread's even codes. For each chunk, block of a pair, and word of a block there is a piece of 32
  // values of K by 8 columns, in the tensor core's order: two runs of [8 columns][16 bytes], even codes and
  // odd ones. Lane t's block has column 2t + token and bytes 4t.
  const int block = word / 2;
  const int lane = (block % 8) / 2;
  const int piece = ((block / 8) * 2 + block % 2) * 2 + word % 2;
  std::byte* const codes =
      Shared<pairs>::operand(warpgroup, n) + piece * used * 256 + (2 * lane + second) * 16 + 4 * lane;
  float* const scales = Shared<pairs>::scales(warpgroup, n) + word * 2 * used + second;
  const RowsAre& are = *Shared<pairs>::rows_are(rows);
#pragma unroll
  for (int q = 0; q < used; ++q) {
    const int token = 2 * q + second;
    std::uint32_t w = 0;
    std::uint32_t scale = 0;
    if (are.blocks == 0) {
      const std::byte* const row = rows + token * row_bytes;
      w = *reinterpret_cast<const std::uint32_t*>(row + 4 * word);
      scale = static_cast<std::uint32_t>(row[row_code_bytes + (word & 31)]);
    } else if (token < are.count) {
      const std::byte* const row = rows + token * most_row_bytes;
      const uint4* const original = are.first + token * (p.gemm[1].k / 16);
      if (block < are.blocks) {
        const uint4 v = intermediate(row + block * block_bytes, original + block);
        w = word % 2 == 0 ? v.x : v.y;
      }
      if (word < are.blocks) scale = intermediate(row + word * block_bytes, original + word).z & 0xFF;
    }
    std::uint32_t odd, even;
    expand(w, odd, even);
    std::byte* const to = codes + q * 256;
    *reinterpret_cast<std::uint32_t*>(to) = even;
    *reinterpret_cast<std::uint32_t*>(to + 128) = odd;
    // 2^12 undoes the powers of two in both operands' bytes.
    if (word < 32) scales[2 * q] = scales_of(static_cast<std::uint16_t>(scale)).x * 0x1p12F;
  }
  proxy_fence();
}

}  // namespace kerf::op::sm90::w4a4
