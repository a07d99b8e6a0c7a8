// The norm of rows that a cluster of blocks holds: each block makes some of a token's rows, takes their
// measure, and hands every block of the cluster its slice of them; then each block ends its slice.
#pragma once

#include <cstdint>

#include "kerf/cuda/launch.cuh"
#include "kerf/numeric/power_of_two.h"
#include "kerf/tail/device_ptx.cuh"
#include "kerf/tail/device_rows.cuh"

namespace kerf::tail::device {

// Threads that take one row's measure: one for each partial sum.
inline constexpr int norm_threads = 256;
inline constexpr int most_norm_groups = 2;  // rows of a block at a time

// What a group of threads shares while it works on a row.
struct alignas(16) GroupRoom {
  float partial[norm_threads];
  std::uint32_t largest[norm_threads / 32];
};

// The larger magnitudes of two words, as bf16 bits in halves; a NaN is the largest.
__device__ inline std::uint32_t larger(std::uint32_t largest, const Vector& v) {
  constexpr std::uint32_t magnitude = 0x7FFF7FFFU;
  largest = __vmaxu2(largest, v.x & magnitude);
  largest = __vmaxu2(largest, v.y & magnitude);
  largest = __vmaxu2(largest, v.z & magnitude);
  return __vmaxu2(largest, v.w & magnitude);
}

__device__ inline std::uint32_t gained_word(std::uint32_t row, std::uint32_t gain) {
  const Pair r = unpack(row);
  const Pair g = unpack(gain);
  return pack(r.low * g.low, r.high * g.high);
}
__device__ inline Vector gained(const Vector& row, const Vector& gain) {
  return {gained_word(row.x, gain.x), gained_word(row.y, gain.y), gained_word(row.z, gain.z),
          gained_word(row.w, gain.w)};
}

// 2^-q of the row whose largest magnitude has these bf16 bits: q is clamped to -60 to 126, 0 for zeros.
__device__ inline float scale_down(std::uint32_t largest) {
  if (largest == 0) return 1.0F;
  const int q = static_cast<int>(largest >> 7) - 127;
  return numeric::power_of_two(-(q < -60 ? -60 : q > 126 ? 126 : q));
}

// The larger of both halves over the group; a group's barrier.
__device__ inline std::uint32_t group_largest(GroupRoom& room, int group, int m, std::uint32_t largest) {
  largest = __reduce_max_sync(0xFFFFFFFFU, max(largest & 0xFFFFU, largest >> 16));
  if (m % 32 == 0) room.largest[m / 32] = largest;
  group_barrier(group + 1, norm_threads);
#pragma unroll
  for (int w = 0; w < norm_threads / 32; ++w) largest = max(largest, room.largest[w]);
  return largest;
}

// Halves 256 partial sums down to one, for the group's first warp.
__device__ inline float halve(const GroupRoom& room, int lane) {
  float p[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) p[j] = room.partial[lane + 32 * j];
#pragma unroll
  for (int width = 4; width > 0; width /= 2)
#pragma unroll
    for (int j = 0; j < width; ++j) p[j] += p[j + width];
#pragma unroll
  for (int width = 16; width > 0; width /= 2) p[0] += __shfl_down_sync(0xFFFFFFFFU, p[0], width);
  return p[0];  // lane 0's
}

// One block of a cluster of C = 2^log; the cluster ends one token. Block c makes routes c, c + C, ... and
// ends values [c, c + 1) * H / C. Shared memory: [groups][H] bf16, rows at hand; [K][H / C] bf16, this
// block's slice.
template <Making making, int most>
__global__ void __launch_bounds__(norm_threads* most_norm_groups, 1)
    norm_and_end(const __grid_constant__ DeviceTail tail, int log) {
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ Routes routes;
  __shared__ GroupRoom group_rooms[most_norm_groups];

  cuda::begin_overlapped();
  cluster_arrive_started();
  const int blocks = 1 << log;
  const int block = cluster_block();
  const std::int64_t token = tail.first + cluster_number();
  const int top_k = static_cast<int>(tail.top_k);
  const int hidden = static_cast<int>(tail.hidden);
  const int vectors = hidden / values_per_vector;
  const int slice = vectors >> log;  // H is a multiple of 64, blocks at most 8

  const int groups = static_cast<int>(blockDim.x) / norm_threads;
  const int group = static_cast<int>(threadIdx.x) / norm_threads;
  const int m = static_cast<int>(threadIdx.x) % norm_threads;
  GroupRoom& mine = group_rooms[group];
  Vector* const row = reinterpret_cast<Vector*>(room) + group * vectors;
  Vector* const slices = reinterpret_cast<Vector*>(room) + groups * vectors;

  const bool gain_first = tail.norm.gain != nullptr && tail.norm.gain_before_norm;
  const bool gain_last = tail.norm.gain != nullptr && !tail.norm.gain_before_norm;
  const auto* const gain = reinterpret_cast<const Vector*>(tail.norm.gain);

  // v / slice by way of f32: exact, since v is below 2^11 and half a vector lies between it and either end.
  const float slices_of_vector = 1.0F / static_cast<float>(slice);
  const auto slice_of = [&](int v) {
    return static_cast<int>((static_cast<float>(v) + 0.5F) * slices_of_vector);
  };

  read_routes<making>(tail, token, routes);
  cluster_wait();  // the others' shared memory is there

  for (int k = block + group * blocks; k < top_k; k += groups * blocks) {
    if (routes.term[k].part < 0) continue;
    std::uint32_t largest = 0;
    // Several loads under way at once, before the stores that they may not pass.
    constexpr int batch = making != Making::tree_sum && most <= 8 ? 2 : 1;
    for (int begin = m; begin < vectors; begin += norm_threads * batch) {
      Vector t[batch];
      Vector g[batch];
      int at[batch];  // a thread that has nothing left to do takes the last vector once more
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        at[b] = min(begin + b * norm_threads, vectors - 1);
        if (gain_first) g[b] = gain[at[b]];
      }
      row_vectors<making, most>(tail, routes, k, at, t);
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int v = begin + b * norm_threads;
        if (v >= vectors) break;
        if (gain_first) t[b] = gained(t[b], g[b]);
        largest = larger(largest, t[b]);
        row[v] = t[b];
        const int to = slice_of(v);
        in_block(slices, to)[k * slice + v - to * slice] = t[b];
      }
    }
    const float down = scale_down(group_largest(mine, group, m, largest));

    const auto* const values = reinterpret_cast<const std::uint16_t*>(row);
    float partial = 0.0F;
#pragma unroll 8
    for (int h = m; h < hidden; h += norm_threads) {
      const float s = numeric::bf16_to_f32(values[h]) * down;
      partial = __fmaf_rn(s, s, partial);
    }
    mine.partial[m] = partial;
    group_barrier(group + 1, norm_threads);
    if (m >= 32) continue;
    const float total = __shfl_sync(0xFFFFFFFFU, halve(mine, m), 0);
    const float mean = __fdiv_rn(total, static_cast<float>(hidden));
    const float inv = __fdiv_rn(1.0F, __fsqrt_rn(mean + (tail.norm.eps * down) * down));
    if (m < blocks) {
      Term* const there = in_block(routes.term, m) + k;
      there->down = down;
      there->inv = inv;
    }
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();

  const int quads = slice * 2;
  const auto* const last = reinterpret_cast<const uint2*>(gain) + block * quads;
  const auto* const own = reinterpret_cast<const uint2*>(slices);
  const auto normed = [](const Term& term, float t) { return t * term.down * term.inv; };
  if (gain_last)
    end_quads(tail, routes, token, block * quads, quads, own, quads,
              [&](const Term& term, int i, float t, int j) {
                const Pair g = unpack(j < 2 ? last[i].x : last[i].y);
                return normed(term, t) * (j % 2 == 0 ? g.low : g.high);
              });
  else
    end_quads(tail, routes, token, block * quads, quads, own, quads,
              [&](const Term& term, int, float t, int) { return normed(term, t); });
}

}  // namespace kerf::tail::device
