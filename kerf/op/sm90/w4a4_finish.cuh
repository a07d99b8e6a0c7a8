// What becomes of a unit's sums: after GEMM1 the activation and its requantisation, after GEMM2 a piece of
// the rows. A warp has 32 rows of the unit, which are 16 intermediate values, one block, or 32 values of H;
// lane 4g + t has the sums of rows g + 8 * (t % 2) (+ 16) and token 2q + t / 2 in [q] (and [pairs + q]).
#pragma once

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/sm90/w4a4_records.cuh"

namespace kerf::op::sm90::w4a4 {

struct LanePlace {
  int g = static_cast<int>(threadIdx.x % 32) / 4;
  int t = static_cast<int>(threadIdx.x % 4);
  int warp = static_cast<int>(threadIdx.x / 32) % 4;
};

// The four runs of eight rows are the even values of up, the even ones of gate, the odd ones of up and of
// gate (layout::w13_source): of a pair of lanes, one finishes value 2g and the other 2g + 1.
template <int pairs>
__device__ void finish_intermediate(const Params& p, const Record& r, int unit,
                                    const float (&sums)[2 * pairs]) {
  const LanePlace at;
  const bool odd = (at.t & 1) != 0;
  const int width = p.gemm[1].k;
  const int block = unit * 4 + at.warp;
#pragma unroll
  for (int q = 0; q < pairs; ++q) {
    const float own = odd ? sums[pairs + q] : sums[q];
    const float other = __shfl_xor_sync(~0U, odd ? sums[q] : sums[pairs + q], 1);
    const float h = internal::gated(odd ? other : own, odd ? own : other, r.scalars);
    // numeric::requantise_block, a value a lane.
    float largest = fabsf(h);
#pragma unroll
    for (const int lanes : {1, 4, 8, 16}) {
      const float there = __shfl_xor_sync(~0U, largest, lanes);
      if (there > largest || there != there) largest = there;
    }
    const std::uint8_t scale = numeric::f32_to_e4m3(largest * (1.0F / 6.0F));
    const float value = numeric::e4m3_to_f32(scale);
    const float factor = value != 0.0F ? 1.0F / value : 0.0F;
    // Lane 4g + t has code 2g or 2g + 1; one lane of a token writes them all.
    unsigned codes = static_cast<unsigned>(numeric::f32_to_e2m1(h * factor))
                     << (at.g % 4 * 8 + (odd ? 4 : 0));
#pragma unroll
    for (const int lanes : {1, 4, 8}) codes |= __shfl_xor_sync(~0U, codes, lanes);
    const unsigned upper_codes = __shfl_down_sync(~0U, codes, 16);
    const int token = 2 * q + at.t / 2;
    if (token >= r.count || odd || at.g != 0) continue;
    const Tag tag = *SharedHead::tag();
    const std::int64_t row = r.first_row + token;
    store_whole(p.h + row * (width / 16) + block,
                make_uint4(codes, upper_codes, tag.high << 8 | scale, tag.low));
  }
}

// Rows of w2 are shuffled so that run i of eight rows holds the values 4g + i of the 32 (layout::w2_source):
// a pair of lanes has four values in a row, and each writes two of them.
template <int pairs>
__device__ void finish_rows(const Params& p, const Record& r, int unit, const float (&sums)[2 * pairs]) {
  const LanePlace at;
  const bool odd = (at.t & 1) != 0;
  const std::int64_t hidden = p.gemm[1].rows;
  const int column = unit * unit_rows + at.warp * 32 + 4 * at.g + (odd ? 2 : 0);
#pragma unroll
  for (int q = 0; q < pairs; ++q) {
    const float other = __shfl_xor_sync(~0U, odd ? sums[q] : sums[pairs + q], 1);
    const float low = odd ? other : sums[q];
    const float high = odd ? sums[pairs + q] : other;
    const int token = 2 * q + at.t / 2;
    if (token >= r.count) continue;
    const std::int64_t place = (r.first_row + token) * hidden + column;
    if (p.sums != nullptr) {
      *reinterpret_cast<float2*>(p.sums + place) = make_float2(low, high);
    } else {
      const float scale = r.scalars.scale_down;
      *reinterpret_cast<std::uint32_t*>(p.rows + place) =
          numeric::f32_to_bf16(scale * low) | static_cast<std::uint32_t>(numeric::f32_to_bf16(scale * high))
                                                  << 16;
    }
  }
}

}  // namespace kerf::op::sm90::w4a4
