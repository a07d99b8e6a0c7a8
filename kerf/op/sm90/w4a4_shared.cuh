// The places in a block's shared memory. Functions without state: nothing of them needs a register.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kerf/op/sm90/w4a4_params.h"

namespace kerf::op::sm90::w4a4 {

struct Record;

// What a slot of rows holds.
struct RowsAre {
  int count;           // of tokens
  int blocks;          // of the segment, where they are the intermediate's, else 0
  const uint4* first;  // where that stands, the first token's
};
static_assert(sizeof(RowsAre) == 16);

__device__ inline std::byte* shared_at(int offset) {
  extern __shared__ __align__(1024) std::byte memory[];
  return memory + offset;
}

// What does not depend on how many tokens a pass takes.
struct SharedHead {
  using Places = SharedPlaces<1>;
  __device__ static std::uint64_t* barriers() {
    return reinterpret_cast<std::uint64_t*>(shared_at(Places::barriers));
  }
  __device__ static std::uint64_t* ring_full(int warpgroup) { return barriers() + warpgroup * most_stages; }
  __device__ static std::uint64_t* ring_empty(int warpgroup) { return ring_full(warpgroups + warpgroup); }
  __device__ static std::uint64_t* record_full(unsigned n) {
    return ring_full(2 * warpgroups) + n % record_slots;
  }
  __device__ static std::uint64_t* record_empty(unsigned n) { return record_full(n) + record_slots; }
  __device__ static std::uint64_t* rows_full(int warpgroup) {
    return ring_full(2 * warpgroups) + 2 * record_slots + warpgroup * most_row_slots;
  }
  __device__ static std::uint64_t* rows_empty(int warpgroup) { return rows_full(warpgroups + warpgroup); }
  __device__ static std::uint64_t* record_details(unsigned n) {
    return rows_full(2 * warpgroups) + n % record_slots;
  }
  __device__ static Record* record(unsigned n) {
    return reinterpret_cast<Record*>(
        shared_at(Places::records + static_cast<int>(n % record_slots) * record_words * 4));
  }
  __device__ static int2* first_tiles() { return reinterpret_cast<int2*>(shared_at(Places::tiles)); }
  __device__ static Tag* tag() { return reinterpret_cast<Tag*>(first_tiles() + w4a4::first_tiles); }
  __device__ static int* live_tiles() { return reinterpret_cast<int*>(tag() + 1); }
  __device__ static std::int32_t* route_rows(int token) {
    return reinterpret_cast<std::int32_t*>(shared_at(Places::routes)) + token * most_ended_top_k;
  }
  __device__ static float* route_weights(int token) {
    return reinterpret_cast<float*>(route_rows(most_ended_tokens)) + token * most_ended_top_k;
  }
  __device__ static int* arrived() { return reinterpret_cast<int*>(shared_at(Places::arrived)); }
};

template <int pairs>
struct Shared : SharedHead {
  using Places = SharedPlaces<pairs>;
  __device__ static std::byte* operand(int warpgroup, unsigned n) {
    return shared_at(Places::operand) + operand_slot(warpgroup, n) * operand_bytes * pairs;
  }
  // [32][2 * pairs of the pass]
  __device__ static float* scales(int warpgroup, unsigned n) {
    return reinterpret_cast<float*>(shared_at(Places::scales)) +
           operand_slot(warpgroup, n) * 2 * pairs * numeric::blocks_per_segment;
  }
  // [4]: how many parts of a unit are there, for each warp's rows.
  __device__ static int* arrived(unsigned n, int unit) {
    const int slot = static_cast<int>(n % Places::partial_slots);
    return SharedHead::arrived() + (slot * warpgroups + unit) * 4;
  }
  // [2 * pairs][row_bytes], or [2 * pairs][most_row_bytes] of the intermediate
  __device__ static std::byte* rows(int warpgroup, unsigned n) {
    const int slot = static_cast<int>(n % Places::row_slots);
    return shared_at(Places::rows) + (warpgroup * Places::row_slots + slot) * Places::row_slot_bytes;
  }
  __device__ static RowsAre* rows_are(std::byte* rows) {
    return reinterpret_cast<RowsAre*>(rows + 2 * pairs * most_row_bytes);
  }
  // [2 * pairs][128]
  __device__ static float* partials(unsigned n, int warpgroup) {
    const int slot = static_cast<int>(n % Places::partial_slots);
    return reinterpret_cast<float*>(shared_at(Places::partials)) +
           (slot * warpgroups + warpgroup) * 2 * pairs * warpgroup_threads;
  }
  // [stages][chunk_bytes]: codes, scales
  __device__ static std::byte* ring(const Params& p, int warpgroup) {
    return shared_at(Places::ring) + warpgroup * p.plan.stages * chunk_bytes;
  }
  // [levels][2 * pairs][consumers]
  __device__ static float* stack(const Params& p) {
    return reinterpret_cast<float*>(shared_at(p.plan.stack));
  }

 private:
  __device__ static int operand_slot(int warpgroup, unsigned n) {
    return warpgroup * static_cast<int>(Places::operand_slots) + static_cast<int>(n % Places::operand_slots);
  }
};

}  // namespace kerf::op::sm90::w4a4
