// Work as a block hands it to its warps. An item of the global queue is a group of units of one tile, first
// all of GEMM1's, then all of GEMM2's: whoever waits for a tile's intermediate therefore waits for blocks
// that run. A record is one pass of an item: up to 2 * pairs of the tile's rows. Tiles with more rows take
// several passes, which find the weights in L2.
//
// One warp draws items and writes records; producers and consumers read them. It also fetches weights, so it
// waits for no memory: it asks for an item some time before it needs the number, and the details of a record
// arrive by themselves.
#pragma once

#include "kerf/op/sm90/ptx.cuh"
#include "kerf/op/sm90/w4a4_params.h"
#include "kerf/op/sm90/w4a4_shared.cuh"

namespace kerf::op::sm90::w4a4 {

struct Record {
  int kind;       // of Params::gemm; -1: there is nothing more
  int first_row;  // of the pass, among the permuted rows
  int count;      // of rows: 1 to 2 * pairs
  int expert;
  int first_unit;  // of the item
  int side;        // of the item
  // Details, which come later.
  int tokens[4];
  internal::ExpertScalars scalars;

  [[nodiscard]] __device__ bool any() const { return kind >= 0; }
  [[nodiscard]] __device__ int stage() const { return kind & 1; }  // 0: GEMM1, 1: GEMM2
};
static_assert(sizeof(Record) <= record_words * 4);
inline constexpr int scalar_words = sizeof(internal::ExpertScalars) / 4;

// Arrivals that empty a record's slot: each consumer's warp, and each producer's for weights and for rows.
inline constexpr int record_readers = consumers / 32 + 2 * warpgroups;

template <int pairs, bool few>
class Scheduler {
 public:
  __device__ explicit Scheduler(const Params& p) : p_(p) {}

  // All by a whole warp. What the first items will need and, except for few tokens, the first record.
  __device__ void begin() {
    ask();
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < min(p_.tiles, first_tiles))
      SharedHead::first_tiles()[lane] =
          make_int2(__ldg(p_.tile_to_expert + lane), __ldg(p_.tile_to_limit + lane));
    if (lane == 0) {
      *SharedHead::live_tiles() = __ldg(p_.live_tiles);
      const std::uint64_t launch = __ldcg(&p_.kept->launches) + 1;
      *SharedHead::tag() = {static_cast<std::uint32_t>(launch >> 32), static_cast<std::uint32_t>(launch)};
    }
    if (few && p_.ended.y != nullptr && lane < p_.ended.top_k)
      for (int t = 0; t < p_.ended.tokens; ++t) {  // there when a record's details are
        const int from = t * p_.ended.top_k + lane;
        copy_4(SharedHead::route_rows(t) + lane, p_.ended.map + from, true);
        copy_4(SharedHead::route_weights(t) + lane, p_.ended.weights + from, true);
      }
    __syncwarp();
    if (!few) publish();
  }

  // Asks for what publish() needs to know.
  __device__ void ask() {
    if (kind_ >= 0 && row_ >= limit_ && threadIdx.x % 32 == 0) drawn_ = atomicAdd(&p_.kept->items, 1U);
  }

  // Writes the next record, the last of which says that it is; after that does nothing.
  __device__ void publish() {
    if (kind_ < 0) return;
    if (row_ >= limit_) draw();
    barrier_wait(SharedHead::record_empty(written_), (written_ / record_slots + 1) & 1);
    Record& r = *SharedHead::record(written_);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int count = min(limit_ - row_, 2 * pairs);
    if (lane == 0) {
      r.kind = kind_;
      r.first_row = row_;
      r.count = count;
      r.expert = expert_;
      r.first_unit = first_unit_;
      r.side = side_;
      barrier_arrive(SharedHead::record_full(written_));
    }
    if (kind_ >= 0) {
      if (lane < count) copy_4(r.tokens + lane, p_.permuted_to_token + row_ + lane, true);
      if (lane < scalar_words)
        copy_4(reinterpret_cast<float*>(&r.scalars) + lane,
               reinterpret_cast<const float*>(p_.scalars + expert_) + lane, true);
      barrier_arrive_copied(SharedHead::record_details(written_));
      row_ += count;
    }
    ++written_;
  }

 private:
  // All of this block's items have been handed out. The last block leaves things as the next launch wants
  // them.
  __device__ void end() const {
    if (threadIdx.x % 32 != 0 || atomicAdd(&p_.kept->blocks, 1U) != gridDim.x - 1) return;
    p_.kept->launches += 1;
    p_.kept->items = 0;
    p_.kept->blocks = 0;
  }

  // The item that was asked for. Every live tile has rows.
  __device__ void draw() {
    const int n = static_cast<int>(__shfl_sync(~0U, drawn_, 0));
    const int live = *SharedHead::live_tiles();
    const int blocks = static_cast<int>(gridDim.x);
    const bool spread = few && spreads(p_.gemm, live, blocks, p_.tile);
    const Item item = item_of(p_.gemm, live, blocks, spread, n);
    kind_ = item.kind;
    if (kind_ < 0) return end();
    tile_ = item.tile;
    first_unit_ = item.first_unit;
    side_ = item.side;
    if (tile_ < first_tiles) {
      const int2 tile = SharedHead::first_tiles()[tile_];
      expert_ = tile.x;
      limit_ = tile.y;
    } else {
      expert_ = __ldg(p_.tile_to_expert + tile_);
      limit_ = __ldg(p_.tile_to_limit + tile_);
    }
    row_ = tile_ * p_.tile;
  }

  const Params& p_;
  unsigned written_ = 0;
  unsigned drawn_ = 0;
  int kind_ = 0;
  int tile_ = 0;
  int expert_ = 0;
  int first_unit_ = 0;
  int side_ = 0;
  int row_ = 0;  // of the next pass
  int limit_ = 0;
};

// One reader's way through the records.
class RecordReader {
 public:
  // Waits for the record behind those that were passed.
  __device__ const Record& current() const { return wait(passed_); }
  // Its details are there, or are waited for.
  [[nodiscard]] __device__ bool has_details() const {
    return barrier_test(SharedHead::record_details(passed_), (passed_ / record_slots) & 1);
  }
  __device__ void wait_for_details() const {
    barrier_wait(SharedHead::record_details(passed_), (passed_ / record_slots) & 1);
  }
  // The same as current(), where it is known to be there.
  [[nodiscard]] __device__ const Record& peek() const { return *SharedHead::record(passed_); }
  [[nodiscard]] __device__ unsigned passed() const { return passed_; }
  // The current record is done with, for this warp.
  __device__ void pass() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(SharedHead::record_empty(passed_));
    ++passed_;
  }
  // Waits until all have passed the record that is `slots` before the current one: its partial sums lie where
  // the current one's will.
  __device__ void wait_for_partials(unsigned slots) const {
    if (passed_ < slots) return;
    const unsigned n = passed_ - slots;
    barrier_wait(SharedHead::record_empty(n), (n / record_slots) & 1);
  }

 private:
  __device__ static const Record& wait(unsigned n) {
    barrier_wait(SharedHead::record_full(n), (n / record_slots) & 1);
    return *SharedHead::record(n);
  }

  unsigned passed_ = 0;
};

// A warpgroup's share of a record: segments [begin, end) of a unit; none where there is no such part or unit.
// few: units may be spread.
template <bool few>
struct Share {
  int unit = 0;
  int begin = 0;
  int end = 0;

  __device__ Share(const Gemm& g, const Record& r, int warpgroup) {
    const int part = (warpgroup & (g.parts - 1)) + (few ? r.side * g.parts : 0);
    const int of_block = g.unit_of(warpgroup);
    unit = r.first_unit + of_block;
    begin = g.part_begin(part);
    end = (!few || of_block < g.block_units) && unit < g.units ? g.part_end(part) : begin;
  }
  [[nodiscard]] __device__ bool any() const { return begin < end; }
};

}  // namespace kerf::op::sm90::w4a4
