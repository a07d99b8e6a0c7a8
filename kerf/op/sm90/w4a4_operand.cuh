// The tokens' side of the products. Four lanes share a row of weights, each with two blocks of a chunk's
// eight, so the B operand is block-diagonal: its eight columns are four pairs of blocks by two tokens, zero
// elsewhere, and what a lane accumulates are dots of its own blocks. A warpgroup writes a segment's operand
// (4 KB for each pair of tokens) while it works on the segment before; the zeros are written once and stay.
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

// One thread's share of a segment's operand: a word of eight codes, and for half of the threads a scale, of
// one token of each pair.
template <int pairs>
class Operand {
 public:
  // Asks for a segment's words: what has not arrived is waited for in build().
  __device__ void fetch(const Params& p, const Record& r, int segment) {
    const int stage = r.stage();
    const int k = p.gemm[stage].k;
    const int first = segment * segment_values;
#pragma unroll
    for (int q = 0; q < pairs; ++q) {
      const int token = 2 * q + second();
      codes_[q] = 0;
      scale_[q] = 0;
      if (token >= r.count || first + 8 * word() >= k) continue;
      const std::int64_t row = stage == 0 ? r.tokens[token] : r.first_row + token;
      codes_[q] =
          __ldcg(reinterpret_cast<const unsigned*>(p.a[stage] + row * (k / 2) + first / 2 + 4 * word()));
      if (word() < 32 && first + 16 * word() < k)
        scale_[q] = __ldcg(p.a_sf[stage] + row * (k / 16) + first / 16 + word());
    }
  }

  // Writes what was fetched into buffer 0 or 1. The warpgroup must meet before any of its wgmma reads it.
  __device__ void build(int warpgroup, int buffer) const {
    std::byte* const codes = Shared<pairs>::operand(warpgroup, buffer) + place();
    float* const scales = Shared<pairs>::scales(warpgroup, buffer) + second() * 32 + word();
#pragma unroll
    for (int q = 0; q < pairs; ++q) {
      std::uint32_t odd, even;
      expand(codes_[q], odd, even);
      std::byte* const to = codes + q * 256;
      *reinterpret_cast<std::uint32_t*>(to) = even;
      *reinterpret_cast<std::uint32_t*>(to + 128) = odd;
      // 2^12 undoes the powers of two in both operands' bytes.
      if (word() < 32) scales[2 * q * 32] = scales_of(static_cast<std::uint16_t>(scale_[q])).x * 0x1p12F;
    }
    proxy_fence();
  }

 private:
  __device__ static int word() { return static_cast<int>(threadIdx.x & 63); }
  __device__ static int second() { return static_cast<int>((threadIdx.x >> 6) & 1); }
  // Of this thread's even codes. For each chunk, block of a pair, and word of a block there is a piece of 32
  // values of K by 8 columns, in the tensor core's order: two runs of [8 columns][16 bytes], even codes and
  // odd ones. Lane t's block has column 2t + token and bytes 4t.
  __device__ static int place() {
    const int block = word() / 2;
    const int lane = (block % 8) / 2;
    const int piece = ((block / 8) * 2 + block % 2) * 2 + word() % 2;
    return piece * pairs * 256 + (2 * lane + second()) * 16 + 4 * lane;
  }

  std::uint32_t codes_[pairs];
  std::uint32_t scale_[pairs];
};

}  // namespace kerf::op::sm90::w4a4
