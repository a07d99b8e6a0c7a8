// The GEMMs of 16-bit rows (BF16 and W4A16), both in one persistent kernel. A block has two warpgroups that
// multiply and two warps that fetch for them into a ring of stages: one weights, without ever waiting for
// anything but room; one the tokens' values, which at the beginning and between the GEMMs are waited for. So
// weights flow while x is being gathered, and GEMM2's while GEMM1 ends. Units come from a queue, one after
// the other. Blocks wait for each other: the grid is no larger than what a device has room for at once.
//
// A row's bits depend on its tile's size and on the split of K alone: each unit has all of K, in ascending
// order.
#pragma once

#include <cstdint>

#include "kerf/cuda/launch.cuh"
#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/op/sm90/half_weights.cuh"
#include "kerf/op/sm90/half_work.h"

namespace kerf::op::sm90 {

inline constexpr int half_consumers = 256;
inline constexpr int half_threads = half_consumers + 64;

// Shared memory of a block: the ring, what one warpgroup hands to the other, barriers, the queue's items.
template <typename Chunk, int tile, int split>
struct HalfShared {
  static constexpr int rows = rows_of_unit(split);
  static constexpr int blocks = Chunk::k / 64;             // of the tokens' values, in a chunk
  static constexpr int depth = Chunk::depth(tile, split);  // chunks of a stage for each part of the split
  static constexpr int chunks = split * depth;             // of a stage
  static constexpr int block_bytes = tile * 128;           // [tile, 64] bf16
  static constexpr int tokens_at = chunks * Chunk::bytes(rows);
  static constexpr int stage_bytes = tokens_at + chunks * blocks * block_bytes;
  static constexpr int exchange_bytes = split == 1 ? 0 : 64 * tile * 4;
  static constexpr int slots = 16;
  // A multiprocessor's 228 KiB, of which the system takes 1 KiB for each block.
  static constexpr int most_bytes = 228 * 1024 / Chunk::resident(tile, split) / 1024 * 1024 - 1024;
  static constexpr int stages = (most_bytes - exchange_bytes - 1024) / stage_bytes;
  static constexpr int bytes = stages * stage_bytes + exchange_bytes + 16 * stages + 12 * slots;
  static_assert(stage_bytes % 1024 == 0 && stages >= 2);
  // Whoever writes an item has fetched at least one stage of each one before it: the slot was read by all.
  static_assert(slots > stages);
  static_assert(bytes <= most_bytes);

  std::uint8_t* ring;
  float* exchange;            // [tile / 2, 128]
  std::uint64_t* full;        // [stages]
  std::uint64_t* empty;       // [stages]
  std::uint64_t* item_there;  // [slots]
  std::int32_t* items;        // [slots] unit, or -1: no more

  __device__ explicit HalfShared(std::uint8_t* base)
      : ring(base),
        exchange(reinterpret_cast<float*>(base + stages * stage_bytes)),
        full(reinterpret_cast<std::uint64_t*>(base + stages * stage_bytes + exchange_bytes)),
        empty(full + stages),
        item_there(empty + stages),
        items(reinterpret_cast<std::int32_t*>(item_there + slots)) {}
  __device__ void begin() const {
    for (int i = 0; i < stages; ++i) {
      barrier_init(full + i, 2);  // weights and tokens
      barrier_init(empty + i, half_consumers / 32);
    }
    for (int i = 0; i < slots; ++i) barrier_init(item_there + i, 1);
    barrier_init_fence();
    proxy_fence();
  }
};

// A place in a ring, and the parity of the barrier there that is waited for.
template <int size>
struct RingPlace {
  int at = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++at == size) {
      at = 0;
      parity ^= 1U;
    }
  }
};

template <typename Chunk, int tile, int split>
class HalfBlock {
  using Shared = HalfShared<Chunk, tile, split>;

 public:
  __device__ HalfBlock(const HalfStep& step, const CUtensorMap* w13, const CUtensorMap* w2,
                       std::uint8_t* base)
      : p_(step),
        w13_(w13),
        w2_(w2),
        shared_(base),
        live_(*step.live_tiles),
        work_(step.hidden, step.intermediate, live_, split) {}

  // What is read of the metadata for a block's first unit, if that is one of GEMM1, before it is known that
  // it is: one wait instead of three.
  static __device__ void ask_for_first_unit(const HalfStep& step) {
    const auto at = static_cast<int>(blockIdx.x) / (2 * step.intermediate / rows_of_unit(split));
    if (at >= step.most_tiles) return;
    asm volatile("prefetch.global.L1 [%0];" ::"l"(step.tile_to_expert + at));
    asm volatile("prefetch.global.L1 [%0];" ::"l"(step.tile_to_limit + at));
    asm volatile("prefetch.global.L1 [%0];" ::"l"(step.permuted_to_token + at * tile));
  }

  // By one thread: hands out units and fetches their weights.
  __device__ void fetch_weights() {
    RingPlace<Shared::stages> stage{0, 1};
    std::uint32_t item = blockIdx.x;
    for (int slot = 0;; slot = (slot + 1) % Shared::slots) {
      const bool more = item < work_.all;
      shared_.items[slot] = more ? static_cast<std::int32_t>(item) : -1;
      barrier_arrive(shared_.item_there + slot);
      if (!more) return;
      const HalfUnit unit = work_.unit(item);
      // The next one, asked for ahead of its time.
      item = gridDim.x + atomicAdd(p_.counters + taken_units, 1U);
      const HalfMatrix w = matrix(unit.second);
      const int expert = p_.tile_to_expert[unit.tile];
      const int chunks = chunks_of(w);
      for (int chunk = 0; chunk < chunks; chunk += Shared::chunks, stage.advance()) {
        barrier_wait(shared_.empty + stage.at, stage.parity);
        std::uint8_t* to = shared_.ring + stage.at * Shared::stage_bytes;
        std::uint64_t* barrier = shared_.full + stage.at;
        std::uint32_t bytes = 0;
        for (int i = 0; i < Shared::chunks && chunk + i < chunks; ++i)
          bytes += Chunk::incoming(w, chunk + i, Shared::rows);
        barrier_expect(barrier, bytes);
        for (int i = 0; i < Shared::chunks && chunk + i < chunks; ++i)
          Chunk::load(to + i * Chunk::bytes(Shared::rows), w, expert, chunk + i, unit.first_row, Shared::rows,
                      barrier);
      }
    }
  }

  // By one warp: the tokens' values, once they are there.
  __device__ void fetch_tokens(int lane) {
    RingPlace<Shared::stages> stage{0, 1};
    RingPlace<Shared::slots> slot;
    for (std::int32_t item; (item = take(slot)) >= 0;) {
      __syncwarp();  // nobody is an item behind, whose slot might be written to
      const HalfUnit unit = work_.unit(static_cast<std::uint32_t>(item));
      if constexpr (Chunk::direct(tile))
        if (p_.direct && !unit.second) {
          put_rows(unit.tile, stage, lane);
          continue;
        }
      const HalfMatrix w = matrix(unit.second);
      const int count = p_.tile_to_limit[unit.tile] - unit.tile * tile;  // rows that exist
      const int blocks = w.k / 64;
      const std::uint16_t* from =
          (unit.second ? p_.h : p_.gathered) + static_cast<std::int64_t>(unit.tile) * w.k * tile;
      if (lane == 0 && unit.second)
        await(half_counters + unit.tile,
              static_cast<std::uint32_t>(work_.first_units * (split == 1 ? 2 : 1)));
      else if (lane == 0)
        await(gathered_shares, gathering_blocks());
      constexpr int a_stage = Shared::chunks * Shared::blocks;
      for (int block = 0; block < blocks; block += a_stage, stage.advance()) {
        if (lane != 0) continue;
        barrier_wait(shared_.empty + stage.at, stage.parity);
        std::uint8_t* to = shared_.ring + stage.at * Shared::stage_bytes + Shared::tokens_at;
        std::uint64_t* barrier = shared_.full + stage.at;
        const int here = min(a_stage, blocks - block);
        barrier_expect(barrier, static_cast<std::uint32_t>(here * count * 128));
        if (count == 0) continue;
        for (int i = 0; i < here; ++i)
          bulk_load(to + i * Shared::block_bytes, from + static_cast<std::int64_t>(block + i) * 64 * tile,
                    static_cast<std::uint32_t>(count * 128), barrier);
      }
    }
  }

  // By the two warpgroups: this block's share of x, into the order of half_place.h. Products wait for it, so
  // a row's limit and token are read before it is known whether its tile is live: what they hold then is not
  // used.
  __device__ void gather() const {
    if (Chunk::direct(tile) && p_.direct) return;
    if (blockIdx.x >= gathering_blocks()) return;
    const int pieces = p_.hidden / 8;  // of a row
    const std::int64_t all = static_cast<std::int64_t>(p_.most_tiles) * tile * pieces;
    const std::int64_t stride = static_cast<std::int64_t>(gathering_blocks()) * half_consumers;
    for (std::int64_t i = blockIdx.x * half_consumers + threadIdx.x; i < all; i += stride) {
      const auto row = static_cast<int>(i / pieces);
      const auto piece = static_cast<int>(i % pieces);
      const std::int32_t limit = p_.tile_to_limit[row / tile];
      const std::int64_t token = p_.permuted_to_token[row];
      if (row / tile >= live_) break;
      if (row >= limit) continue;
      const uint4 x = *reinterpret_cast<const uint4*>(p_.x + token * p_.hidden + 8 * piece);
      const std::uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
      std::uint16_t* to = block_of(p_.gathered, p_.hidden, row / tile, piece / 8);
#pragma unroll
      for (int n = 0; n < 8; ++n)
        to[swizzled(row % tile, Chunk::place(8 * (piece % 8) + n))] =
            static_cast<std::uint16_t>(pairs[n / 2] >> (16 * (n % 2)));
    }
    named_barrier(both_groups, half_consumers);
    if (threadIdx.x == 0) announce(gathered_shares);
  }

  // By the two warpgroups: products, activation, rows.
  __device__ void multiply() {
    const int group = static_cast<int>(threadIdx.x / 128);
    const Lane lane{static_cast<int>(threadIdx.x % 128 / 32), static_cast<int>(threadIdx.x % 32 / 4),
                    static_cast<int>(threadIdx.x % 4)};
    const int group_row = split == 1 ? 64 * group : 0;
    RingPlace<Shared::stages> stage;
    RingPlace<Shared::slots> slot;
    for (std::int32_t item; (item = take(slot)) >= 0;) {
      HalfUnit unit = work_.unit(static_cast<std::uint32_t>(item));
      // What the sums' end will want is on its way meanwhile.
      const internal::ExpertScalars* later = p_.scalars + p_.tile_to_expert[unit.tile];
      asm volatile("prefetch.global.L1 [%0];" ::"l"(later));
      asm volatile("prefetch.global.L1 [%0];" ::"l"(p_.tile_to_limit + unit.tile));
      float sums[tile / 2];
#pragma unroll
      for (float& sum : sums) sum = 0.0F;
      add_products(sums, matrix(unit.second), (unit.first_row + group_row) % 128, stage, group, lane);
      // Worked out again, rather than kept in registers while there are none to spare.
      asm volatile("" : "+r"(item));
      unit = work_.unit(static_cast<std::uint32_t>(item));
      const int count = p_.tile_to_limit[unit.tile] - unit.tile * tile;
      const internal::ExpertScalars& scalars = p_.scalars[p_.tile_to_expert[unit.tile]];
      if constexpr (split == 2) {
        add_groups(sums, group);
        if (group == 1) continue;
      }
      const int first_row = unit.first_row + group_row;
      if (unit.second) {
        if (first_row < p_.hidden) write_rows(sums, unit.tile, first_row, count, scalars.scale_down, lane);
      } else {
        activate(sums, unit.tile, first_row, count, scalars, lane);
        named_barrier(group, 128);
        if (threadIdx.x % 128 == 0) announce(half_counters + unit.tile);
      }
    }
  }

 private:
  static constexpr int both_groups = 2;  // their named barrier; 0 and 1 are each group's own

  __device__ HalfMatrix matrix(bool second) const {
    return {second ? w2_ : w13_, second ? p_.w2_sf : p_.w13_sf, second ? p_.hidden : 2 * p_.intermediate,
            second ? p_.intermediate : p_.hidden};
  }
  static __device__ int chunks_of(const HalfMatrix& w) { return (w.k + Chunk::k - 1) / Chunk::k; }
  // [tile, 64] block `block` of a tile's values, whose rows are `width` wide.
  static __device__ std::uint16_t* block_of(std::uint16_t* values, int width, int tile_index, int block) {
    return values + (static_cast<std::int64_t>(tile_index) * (width / 64) + block) * (64 * tile);
  }
  __device__ std::uint32_t gathering_blocks() const {
    const std::int64_t pieces = static_cast<std::int64_t>(p_.most_tiles) * tile * (p_.hidden / 8);
    return static_cast<std::uint32_t>(
        min(static_cast<std::int64_t>(gridDim.x), (pieces + half_consumers - 1) / half_consumers));
  }

  __device__ std::int32_t take(RingPlace<Shared::slots>& slot) const {
    barrier_wait(shared_.item_there + slot.at, slot.parity);
    const std::int32_t item = shared_.items[slot.at];
    slot.advance();
    return item;
  }
  // This warp has done with a stage.
  __device__ void leave(std::uint64_t* empty, bool first_lane) const {
    __syncwarp();
    if (first_lane) barrier_arrive(empty);
  }

  // What this thread's group (or block) wrote, all of it before a barrier that it was at, may be read by
  // whoever sees the counter.
  __device__ void announce(int counter) const {
    __threadfence();
    atomicAdd(p_.counters + counter, 1U);
  }
  // Until a counter is there. What was written before may then be fetched by bulk copies.
  __device__ void await(int counter, std::uint32_t wanted) const {
    while (static_cast<std::uint32_t>(load_acquire(p_.counters + counter)) < wanted) __nanosleep(64);
    asm volatile("fence.proxy.async;" ::: "memory");
  }

  // By one warp: the values of a tile's tokens, from x into the stages of a unit of GEMM1. Each lane has four
  // loads of 16 bytes under way: of four stages where there is one row, of several rows elsewhere.
  __device__ void put_rows(int tile_index, RingPlace<Shared::stages>& stage, int lane) const {
    constexpr int a_stage = Shared::chunks * Shared::blocks;  // blocks of 64 values
    constexpr int parts = 8 * a_stage / 32;                   // of a row's values in a stage, 8 a lane
    static_assert(8 * a_stage % 32 == 0);
    const int pieces = p_.hidden / 8;  // of a row
    const int first = tile_index * tile;
    const int count = max(p_.tile_to_limit[tile_index] - first, 1);
    const int tokens = lane < count ? p_.permuted_to_token[first + lane] : 0;
    struct Place {
      int piece = 0;  // the first of a stage's
      int row = 0;
      int part = 0;
      __device__ bool begins() const { return row == 0 && part == 0; }
    };
    const auto advance = [&](Place& at) {
      if (++at.part < parts) return;
      at.part = 0;
      if (++at.row < count) return;
      at.row = 0;
      at.piece += 8 * a_stage;
    };
    const auto load = [&](const Place& at) {
      const std::int64_t token = __shfl_sync(0xFFFFFFFFU, tokens, at.row);
      const int piece = at.piece + 32 * at.part + lane;
      return piece < pieces ? *reinterpret_cast<const uint4*>(p_.x + token * p_.hidden + 8 * piece) : uint4{};
    };
    uint4 values[4];
    Place from;
#pragma unroll
    for (uint4& v : values) {
      v = load(from);
      advance(from);
    }
    for (Place to; to.piece < pieces;) {
#pragma unroll
      for (uint4& v : values) {
        if (to.piece >= pieces) break;
        if (to.begins()) barrier_wait(shared_.empty + stage.at, stage.parity);
        const int piece = 32 * to.part + lane;
        if (to.piece + piece < pieces)
          Chunk::put(shared_.ring + stage.at * Shared::stage_bytes + Shared::tokens_at +
                         piece / 8 * Shared::block_bytes,
                     to.row, piece % 8, v);
        v = load(from);
        advance(from);
        advance(to);
        if (!to.begins()) continue;
        proxy_fence();
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_.full + stage.at);
        stage.advance();
      }
    }
  }

  // All of K, a stage at a time; in the end nothing is under way and the stages are left.
  __device__ void add_products(float (&sums)[tile / 2], const HalfMatrix& w, int row_of_128,
                               RingPlace<Shared::stages>& stage, int group, Lane lane) const {
    constexpr int a_stage = Shared::chunks * Shared::blocks;
    const int half = split == 1 ? 0 : group;
    const typename Chunk::template Part<split, tile> part(
        shared_address(shared_.ring) + half * Shared::depth * Chunk::bytes(Shared::rows),
        shared_address(shared_.ring) + Shared::tokens_at +
            half * Shared::depth * Shared::blocks * Shared::block_bytes,
        split == 1 ? 64 * group : 0, row_of_128, lane);
    const bool leaves = lane.g == 0 && lane.t == 0;
    const int all = w.k / 64;
    std::uint32_t at = stage.at * Shared::stage_bytes;
    std::uint64_t* before = nullptr;
    for (int left = all / a_stage; left > 0; --left) {
      barrier_wait(shared_.full + stage.at, stage.parity);
#pragma unroll
      for (int i = 0; i < Shared::depth; ++i) part.template multiply<Shared::blocks>(sums, at, i);
      if (before != nullptr) leave(before, leaves);
      before = shared_.empty + stage.at;
      stage.advance();
      at = stage.at == 0 ? 0 : at + Shared::stage_bytes;
    }
    wgmma_wait<0>();
    if (before != nullptr) leave(before, leaves);
    if (const int rest = all % a_stage; rest > 0) {
      barrier_wait(shared_.full + stage.at, stage.parity);
      const int mine = rest - half * Shared::depth * Shared::blocks;
      for (int i = 0; i < Shared::depth; ++i) {
        if (mine >= (i + 1) * Shared::blocks)
          part.template multiply<Shared::blocks>(sums, at, i);
        else if (mine > i * Shared::blocks)
          part.template multiply<1>(sums, at, i);
        wgmma_wait<0>();
      }
      leave(shared_.empty + stage.at, leaves);
      stage.advance();
    }
    settle(sums);
  }

  // Both groups' sums, in the first: its own, plus the second's.
  __device__ void add_groups(float (&sums)[tile / 2], int group) const {
    float* mine = shared_.exchange + threadIdx.x % 128;
    if (group == 1)
#pragma unroll
      for (int i = 0; i < tile / 2; ++i) mine[128 * i] = sums[i];
    named_barrier(both_groups, half_consumers);
    if (group == 0)
#pragma unroll
      for (int i = 0; i < tile / 2; ++i) sums[i] = sums[i] + mine[128 * i];
    named_barrier(both_groups, half_consumers);
  }

  // Of 64 rows of w13 from first_row on: 32 values of h a token. A thread's two rows are up and gate of one.
  __device__ void activate(const float (&sums)[tile / 2], int tile_index, int first_row, int count,
                           const internal::ExpertScalars& scalars, Lane lane) const {
    const auto i = static_cast<int>(layout::w13_source(first_row + 16 * lane.q + Chunk::row_of(lane.g)).row);
    std::uint16_t* to = block_of(p_.h, p_.intermediate, tile_index, i / 64);
    const int place = Chunk::place(i % 64);
#pragma unroll
    for (int n = 0; n < tile / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = 8 * n + 2 * lane.t + c;
        if (row < count)
          to[swizzled(row, place)] = numeric::f32_to_bf16(internal::gated(
              sums[4 * n + c] * Chunk::unscale, sums[4 * n + 2 + c] * Chunk::unscale, scalars));
      }
  }

  // Of 64 rows of w2 from first_row on: 64 outputs a token. A thread's two rows are neighbours.
  __device__ void write_rows(const float (&sums)[tile / 2], int tile_index, int first_row, int count,
                             float scale, Lane lane) const {
    const std::int64_t o = layout::w2_source(first_row + 16 * lane.q + Chunk::row_of(lane.g));
#pragma unroll
    for (int n = 0; n < tile / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = 8 * n + 2 * lane.t + c;
        if (row >= count) continue;
        const std::uint32_t low = numeric::f32_to_bf16(scale * (sums[4 * n + c] * Chunk::unscale));
        const std::uint32_t high = numeric::f32_to_bf16(scale * (sums[4 * n + 2 + c] * Chunk::unscale));
        *reinterpret_cast<std::uint32_t*>(
            p_.rows + (static_cast<std::int64_t>(tile_index) * tile + row) * p_.hidden + o) = low | high
                                                                                                        << 16;
      }
  }

  const HalfStep& p_;
  const CUtensorMap* w13_;
  const CUtensorMap* w2_;
  Shared shared_;
  int live_;
  HalfWork work_;
};

template <typename Chunk, int tile, int split>
__global__ void __launch_bounds__(half_threads, Chunk::resident(tile, split))
    half_experts(const __grid_constant__ CUtensorMap w13, const __grid_constant__ CUtensorMap w2,
                 const __grid_constant__ HalfStep step) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == half_consumers) {
    HalfShared<Chunk, tile, split>(memory).begin();
    tensor_prefetch(&w13);
    tensor_prefetch(&w2);
  }
  __syncthreads();
  cuda::begin_overlapped();
  if (warp >= half_consumers / 32 && lane == 0) HalfBlock<Chunk, tile, split>::ask_for_first_unit(step);
  HalfBlock<Chunk, tile, split> block(step, &w13, &w2, memory);
  if (warp < half_consumers / 32) {
    block.gather();
    block.multiply();
  } else if (warp == half_consumers / 32) {
    if (lane == 0) block.fetch_weights();
  } else {
    block.fetch_tokens(lane);
  }
}

}  // namespace kerf::op::sm90
