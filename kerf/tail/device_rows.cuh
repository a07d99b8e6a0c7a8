// A route's finished row, a vector at a time, out of the ranks' rows: what RowSource says, for both kernels.
#pragma once

#include <cstdint>

#include "kerf/tail/device.h"
#include "kerf/tail/device_vector.cuh"

namespace kerf::tail::device {

// How a row is made: taken as it is; a sum of bf16 K-partials; a tree's sum of f32, times g2_alpha.
enum class Making { taken, bf16_sum, tree_sum };

// One route in a token's sum. With a norm, y = (t * down) * inv, then perhaps a gain.
struct alignas(16) Term {
  float weight;
  std::int32_t part;  // the first part to take the row from, -1: the route is passed over
  float down, inv;
};

// What a block knows of its token's routes.
struct Routes {
  Term term[most_device_top_k];
  alignas(16) std::int32_t place[most_device_top_k][most_device_ranks];  // row in that part, -1: not there
  float alpha[most_device_top_k];                                        // g2_alpha of its expert
};

// The whole block, which has 64 threads or more; ends with a barrier.
template <Making making>
__device__ inline void read_routes(const DeviceTail& tail, std::int64_t token, Routes& routes) {
  static_assert(most_device_top_k == 32);  // a warp reads a part's places
  const int top_k = static_cast<int>(tail.top_k);
  const int parts = tail.source == RowSource::local ? 1 : tail.parts;
  const bool any = tail.source == RowSource::any || tail.source == RowSource::tree_any;
  const std::int64_t first = token * top_k;
  for (int i = static_cast<int>(threadIdx.x); i < 32 * parts; i += static_cast<int>(blockDim.x)) {
    const int k = i % 32;
    const int p = i / 32;
    if (k >= top_k) break;
    const std::int32_t place = tail.part[p].map[first + k];
    routes.place[k][p] = place;
    if (p == 0 && !any) routes.term[k].part = place < 0 ? -1 : 0;
  }
  // From the other end of the block, so that other warps than the first do it.
  if (const int k = static_cast<int>(blockDim.x - 1 - threadIdx.x); k < top_k) {
    routes.term[k].weight = tail.weights[first + k];
    if constexpr (making == Making::tree_sum) {
      const std::int32_t id = tail.ids[first + k];
      routes.alpha[k] = id < 0 ? 0.0F : tail.g2_alphas[id];
    }
  }
  __syncthreads();
  if (!any) return;
  if (static_cast<int>(threadIdx.x) < top_k) {
    const std::int32_t* const place = routes.place[threadIdx.x];
    const int step = tail.source == RowSource::tree_any ? tail.slices : 1;
    int part = 0;
    while (part < parts && place[part] < 0) part += step;
    routes.term[threadIdx.x].part = part < parts ? part : -1;
  }
  __syncthreads();
}

// Terms [0, count) of four values each by the segment tree's rule (numeric/segment_tree.h): neighbours first,
// then pairs of pairs; a term without a neighbour goes up as it is.
template <int most>
__device__ inline float4 tree(float4 (&term)[most], int count) {
#pragma unroll
  for (int step = 1; step < most; step *= 2)
#pragma unroll
    for (int i = 0; i + step < most; i += 2 * step)
      if (i + step < count)
        term[i] = {term[i].x + term[i + step].x, term[i].y + term[i + step].y, term[i].z + term[i + step].z,
                   term[i].w + term[i + step].w};
  return term[0];
}

// Vectors v[0], v[1], ... of route k, which is not passed over, with all their loads under way at once.
// `most`: parts that are added, or more.
template <Making making, int most, int batch>
__device__ inline void row_vectors(const DeviceTail& tail, const Routes& routes, int k, const int (&v)[batch],
                                   Vector (&out)[batch]) {
  const int first = routes.term[k].part;
  const std::int32_t* const place = routes.place[k];
  if constexpr (making == Making::taken) {
    const auto* const row =
        reinterpret_cast<const Vector*>(tail.part[first].rows + place[first] * tail.hidden);
#pragma unroll
    for (int b = 0; b < batch; ++b) out[b] = row[v[b]];
  } else if constexpr (making == Making::bf16_sum) {
    std::int32_t at[most];
#pragma unroll
    for (int r = 0; r < most; ++r) at[r] = r < tail.parts ? place[r] : -1;
    Vector term[batch][most];
#pragma unroll
    for (int r = 0; r < most; ++r) {
      // Row 0 stands in for one that is not there, so that no load waits for a branch.
      const auto* const row = reinterpret_cast<const Vector*>(
          at[r] < 0 ? tail.part[0].rows + at[0] * tail.hidden : tail.part[r].rows + at[r] * tail.hidden);
#pragma unroll
      for (int b = 0; b < batch; ++b) term[b][r] = row[v[b]];
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
#pragma unroll
      for (int r = 0; r < most; ++r)
        if (at[r] < 0) term[b][r] = {0, 0, 0, 0};
      out[b] = rank_sum<numeric::SumOrder::rank_order>(term[b]);
    }
  } else {
    const int count = tail.source == RowSource::tree_any ? tail.slices : tail.parts;
    const float alpha = routes.alpha[k];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      std::uint32_t word[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 term[most];
#pragma unroll
        for (int r = 0; r < most; ++r) {
          term[r] = {0, 0, 0, 0};
          if (r < count && place[first + r] >= 0) {
            const float* const row = tail.part[first + r].sums + place[first + r] * tail.hidden;
            term[r] = reinterpret_cast<const float4*>(row)[2 * v[b] + half];
          }
        }
        const float4 sum = tree(term, count);
        word[2 * half] = pack(alpha * sum.x, alpha * sum.y);
        word[2 * half + 1] = pack(alpha * sum.z, alpha * sum.w);
      }
      out[b] = {word[0], word[1], word[2], word[3]};
    }
  }
}

// Ends `count` quads (of four values) of a token from quad `first` on: weights and adds what is in `rows`
// [K][stride] quads (in shared memory), k ascending from +0. y(term, quad, value, index) is what to weight
// instead of value `index` of the quad. The whole block.
template <typename Y>
__device__ inline void end_quads(const DeviceTail& tail, const Routes& routes, std::int64_t token, int first,
                                 int count, const uint2* rows, int stride, Y y) {
  const int top_k = static_cast<int>(tail.top_k);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    float sum[4] = {0, 0, 0, 0};
    // No branches, so that the loads of several routes are under way at once; what was read and computed for
    // a route that is passed over is thrown away.
#pragma unroll 4
    for (int k = 0; k < top_k; ++k) {
      const Term term = routes.term[k];
      const uint2 row = rows[k * stride + i];
      const Pair left = unpack(row.x);
      const Pair right = unpack(row.y);
      const float value[4] = {left.low, left.high, right.low, right.high};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float added = __fmaf_rn(term.weight, y(term, i, value[j], j), sum[j]);
        sum[j] = term.part < 0 ? sum[j] : added;
      }
    }
    const uint2 out{pack(sum[0], sum[1]), pack(sum[2], sum[3])};
    for (int o = 0; o < tail.outs; ++o)
      reinterpret_cast<uint2*>(tail.out[o])[token * (tail.hidden / 4) + first + i] = out;
  }
}

}  // namespace kerf::tail::device
