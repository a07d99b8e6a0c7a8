// A warpgroup's way through its shares of the block's records. When it is through with a segment's products
// it makes the operand of the segment behind, also across records, if the rows for it are there.
#pragma once

#include "kerf/op/sm90/w4a4_end.cuh"
#include "kerf/op/sm90/w4a4_finish.cuh"
#include "kerf/op/sm90/w4a4_math.cuh"

namespace kerf::op::sm90::w4a4 {

template <int pairs, bool few>
class Consumer {
 public:
  // warpgroup: the thread's, as a uniform value.
  __device__ Consumer(const Params& p, int warpgroup) : p_(p), warpgroup_(warpgroup), ring_(p, warpgroup) {}

  __device__ void run() {
    if constexpr (few)
      if (p_.ended.y != nullptr && threadIdx.x < 32) end_absent_tokens(p_);
    for (;; reader_.pass()) {
      const Record& r = reader_.current();
      const int kind = uniform(r.kind);
      if (kind < 0) return;
      if constexpr (pairs == 2) {
        if (uniform(r.count) <= 2) {
          work<1>(r, kind);
          continue;
        }
      }
      work<pairs>(r, kind);
    }
  }

 private:
  // A pass of up to 2 * used tokens.
  template <int used>
  __device__ void work(const Record& r, int kind) {
    const Gemm& g = p_.gemm[kind];
    const Share<few> share(g, r, warpgroup());
    const int begin = uniform(share.begin);
    const int n = uniform(share.end) - begin;
    if (n <= 0) return;
    float v[2 * used];
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      if (!built_) {
        barrier_wait(rows_full(), rows_parity());
        build();
      }
      named_barrier(warpgroup(), warpgroup_threads);  // the operand is there; of two, the other is free
      Chains<used> chains;
      chains.multiply(uniform(g.chunks(begin + i)), ring_,
                      operand_descriptor(Shared<pairs>::operand(warpgroup(), segment_)),
                      Shared<pairs>::scales(warpgroup(), segment_));
      ++segment_;
      constexpr bool one_operand = SharedPlaces<pairs>::operand_slots == 1;
      if constexpr (one_operand) {
        chains.sum(v);
        named_barrier(warpgroup(), warpgroup_threads);  // nobody reads the operand any more
      }
      if constexpr (!few) {
        built_ = barrier_test(rows_full(), rows_parity()) && (r.stage() != 0 || !rows_of_intermediate());
        if (built_) build();
      }
      if constexpr (!one_operand) chains.sum(v);
      SegmentSums<used>::add(Shared<pairs>::stack(p_), v, static_cast<unsigned>(i), i + 1 == n);
    }
    if (!join<used>(g, few ? g.side_parts_in_use(r.side) : g.parts_in_use, v)) return;
    if constexpr (few)
      if (g.sides == 2 && !meet<used>(g, r, v)) return;
    reader_.wait_for_details();
    if (r.stage() == 0) return finish_intermediate<used>(p_, r, unit_of(g, r), v);
    if constexpr (few)
      if (p_.ended.y != nullptr) return end_tokens<used>(p_, r, unit_of(g, r), v);
    finish_rows<used>(p_, r, unit_of(g, r), v);
  }

  // Share's, once more: registers are short.
  [[nodiscard]] __device__ int unit_of(const Gemm& g, const Record& r) const {
    return r.first_unit + g.unit_of(warpgroup());
  }

  static constexpr unsigned row_slots = SharedPlaces<pairs>::row_slots;
  __device__ std::uint64_t* rows_full() const {
    return SharedHead::rows_full(warpgroup()) + segment_ % row_slots;
  }
  __device__ unsigned rows_parity() const { return segment_ / row_slots & 1; }

  // Behind the last segment of GEMM1 that may be what this warpgroup itself has still to finish.
  __device__ bool rows_of_intermediate() const {
    return Shared<pairs>::rows_are(Shared<pairs>::rows(warpgroup(), segment_))->blocks != 0;
  }

  // The next segment's operand. Its rows are there, and no product of the segment before last is under way.
  __device__ void build() {
    std::byte* const rows = Shared<pairs>::rows(warpgroup(), segment_);
    if (pairs == 2 && Shared<pairs>::rows_are(rows)->count > 2)
      build_operand<pairs, pairs>(p_, warpgroup(), segment_, rows);
    else
      build_operand<pairs, 1>(p_, warpgroup(), segment_, rows);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(SharedHead::rows_empty(warpgroup()) + segment_ % row_slots);
  }

  // Where warpgroups share a unit: leaves this part's sums for the others or, as the last to come, adds all
  // up. True where v has the unit's sums then. Each warp for its own rows.
  template <int used>
  __device__ bool join(const Gemm& g, int parts_in_use, float (&v)[2 * used]) {
    constexpr int values = 2 * used;
    if (parts_in_use == 1) return true;
    const unsigned n = reader_.passed();
    reader_.wait_for_partials(SharedPlaces<pairs>::partial_slots);
    const int here = few ? thread_now() : static_cast<int>(threadIdx.x);
    const int thread = here % warpgroup_threads;
    float* const mine = Shared<pairs>::partials(n, here / warpgroup_threads) + thread;
#pragma unroll
    for (int j = 0; j < values; ++j) mine[j * warpgroup_threads] = v[j];
    __syncwarp();
    const int unit = g.unit_of(here / warpgroup_threads);
    int before = 0;
    if (thread % 32 == 0) {
      int* const arrived = Shared<pairs>::arrived(n, unit) + thread / 32;
      before = count_shared(arrived, 1);
      if (before == parts_in_use - 1) *arrived = 0;
    }
    before = __shfl_sync(~0U, before, 0);
    if (before != parts_in_use - 1) return false;
    const float* const all = Shared<pairs>::partials(n, unit * g.parts) + thread;
#pragma unroll
    for (int j = 0; j < values; ++j) {
      const auto part = [&](int i) { return all[(i * 2 * pairs + j) * warpgroup_threads]; };
      v[j] = __fadd_rn(part(0), part(1));
      if (parts_in_use == 3) v[j] = __fadd_rn(v[j], part(2));
      if (parts_in_use == 4) v[j] = __fadd_rn(v[j], __fadd_rn(part(2), part(3)));
    }
    return true;
  }

  // Where two blocks share a unit: leaves the second side's sums in memory or, on the first side, adds them.
  // True where v has the unit's sums then. Blocks bear the tag, as the intermediate's do.
  template <int used>
  __device__ bool meet(const Gemm& g, const Record& r, float (&v)[2 * used]) {
    const Tag tag = *SharedHead::tag();
    const unsigned mark = tag.high << 8;
    uint4* at = p_.halves +
                (r.stage() * most_halves + r.first_row / 2 * g.units + unit_of(g, r)) * warpgroup_threads +
                thread_now() % warpgroup_threads;
#pragma unroll
    for (int q = 0; q < used; ++q) {
      float& low = v[q];
      float& high = v[used + q];
      if (r.side == 1) {
        store_whole(at, make_uint4(__float_as_uint(low), __float_as_uint(high), mark, tag.low));
      } else {
        uint4 there;
        do there = load_whole(at);
        while (there.z != mark || there.w != tag.low);
        low = __fadd_rn(low, __uint_as_float(there.x));
        high = __fadd_rn(high, __uint_as_float(there.y));
      }
      at += g.units * warpgroup_threads;
    }
    __syncwarp();
    return r.side == 0;
  }

  [[nodiscard]] __device__ int warpgroup() const { return warpgroup_; }

  // The chunks that the warpgroup's producer fetches.
  class Ring {
   public:
    __device__ Ring(const Params& p, int warpgroup)
        : stages_(p.plan.stages),
          full_(shared_address(SharedHead::ring_full(warpgroup))),
          chunk_(shared_address(Shared<pairs>::ring(p, warpgroup))) {}
    __device__ void wait() const { barrier_wait(full_, parity_); }
    [[nodiscard]] __device__ ChunkPlace chunk() const { return chunk_; }
    // The warp has read it.
    __device__ void release() {
      constexpr std::uint32_t empty = warpgroups * most_stages * 8;  // behind full_
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(full_ + empty);
      const bool around = ++slot_ == stages_;
      const int slots = around ? 1 - stages_ : 1;
      full_ += static_cast<std::uint32_t>(slots * 8);
      chunk_.move(static_cast<std::uint32_t>(slots * chunk_bytes));
      if (around) {
        slot_ = 0;
        parity_ ^= 1;
      }
    }

   private:
    int stages_;
    std::uint32_t full_;
    ChunkPlace chunk_;
    int slot_ = 0;
    unsigned parity_ = 0;
  };

  const Params& p_;
  int warpgroup_;
  RecordReader reader_;
  Ring ring_;
  unsigned segment_ = 0;  // that is multiplied next, of all of the warpgroup's
  bool built_ = false;    // its operand is there, as far as this warp makes it
};

}  // namespace kerf::op::sm90::w4a4
