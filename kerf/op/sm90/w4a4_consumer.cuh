// A warpgroup's way through its shares of the block's records. While it works on a segment, the operand of
// the one behind it is fetched, also across records.
#pragma once

#include "kerf/op/sm90/w4a4_finish.cuh"
#include "kerf/op/sm90/w4a4_math.cuh"

namespace kerf::op::sm90::w4a4 {

template <int pairs>
class Consumer {
 public:
  static constexpr int values = 2 * pairs;  // sums of a lane

  __device__ explicit Consumer(const Params& p) : p_(p), ring_(p) {}

  __device__ void run() {
    bool more = begin();
    while (more) {
      const Record& r = reader_.current();
      const Gemm& g = p_.gemm[r.kind];
      const Share share(g, r, warpgroup());
      float v[values];
      bool fetched = false;
      for (int segment = share.begin; segment < share.end; ++segment) {
        const bool last = segment + 1 == share.end;
        named_barrier(warpgroup(), warpgroup_threads);  // the operand is there, the other buffer is free
        fetched = !last || look_ahead();
        if (!last) operand_.fetch(p_, r, segment + 1);
        chains_.multiply(g.chunks(segment), ring_,
                         operand_descriptor(Shared<pairs>::operand(warpgroup(), buffer_)),
                         Shared<pairs>::scales(warpgroup(), buffer_));
        buffer_ ^= 1;
        if (fetched) operand_.build(warpgroup(), buffer_);
        chains_.sum(v);
        SegmentSums<pairs>::add(p_, v, static_cast<unsigned>(segment - share.begin), last);
      }
      if (join(g, v)) {
        if (r.stage() == 0) {
          finish_intermediate<pairs>(p_, r, share.unit, v);
          finished_.add(p_, r.tile);
        } else {
          finish_rows<pairs>(p_, r, share.unit, v);
        }
      }
      reader_.pass();
      if (!fetched || reader_.current().stage() != 0) finished_.tell(p_);
      more = fetched || begin();
    }
  }

 private:
  // Passes records without a share for this warpgroup, waits for what the first one with a share needs and
  // makes its operand. False at the end.
  __device__ bool begin() {
    for (;; reader_.pass()) {
      const Record& r = reader_.current();
      if (!r.any()) return false;
      const Share share(p_.gemm[r.kind], r, warpgroup());
      if (!share.any()) continue;
      if (r.ready == 0) wait_for_intermediate(p_, r);
      operand_.fetch(p_, r, share.begin);
      operand_.build(warpgroup(), buffer_);
      return true;
    }
  }

  // Fetches the operand of the next record, if it is known to be there.
  __device__ bool look_ahead() {
    const Record& r = reader_.next();
    if (!r.any() || r.ready == 0) return false;
    const Share share(p_.gemm[r.kind], r, warpgroup());
    if (!share.any()) return false;
    operand_.fetch(p_, r, share.begin);
    return true;
  }

  // Where warpgroups share a unit: leaves this part's sums for the others or, as the last to come, adds all
  // up. True where v has the unit's sums then. Each warp for its own rows.
  __device__ bool join(const Gemm& g, float (&v)[values]) {
    if (g.parts_in_use == 1) return true;
    const unsigned n = reader_.passed();
    reader_.wait_for_partials();
    const int thread = static_cast<int>(threadIdx.x) % warpgroup_threads;
    float* const mine = Shared<pairs>::partials(n, warpgroup()) + thread;
#pragma unroll
    for (int j = 0; j < values; ++j) mine[j * warpgroup_threads] = v[j];
    __syncwarp();
    const int unit = warpgroup() / g.parts;
    int before = 0;
    if (threadIdx.x % 32 == 0) {
      int* const arrived = SharedHead::arrived(n, unit) + thread / 32;
      before = count_shared(arrived, 1);
      if (before == g.parts_in_use - 1) *arrived = 0;
    }
    before = __shfl_sync(~0U, before, 0);
    if (before != g.parts_in_use - 1) return false;
    const float* const all = Shared<pairs>::partials(n, unit * g.parts) + thread;
#pragma unroll
    for (int j = 0; j < values; ++j) {
      const auto part = [&](int i) { return all[(i * values + j) * warpgroup_threads]; };
      v[j] = __fadd_rn(part(0), part(1));
      if (g.parts_in_use == 3) v[j] = __fadd_rn(v[j], part(2));
      if (g.parts_in_use == 4) v[j] = __fadd_rn(v[j], __fadd_rn(part(2), part(3)));
    }
    return true;
  }

  __device__ static int warpgroup() { return static_cast<int>(threadIdx.x) / warpgroup_threads; }

  // The chunks that the warpgroup's producer fetches.
  class Ring {
   public:
    __device__ explicit Ring(const Params& p) : p_(p) {}
    __device__ const std::byte* wait() {
      barrier_wait(SharedHead::ring_full(warpgroup()) + slot_, parity_);
      return chunk();
    }
    [[nodiscard]] __device__ const std::byte* chunk() const {
      return Shared<pairs>::ring(p_, warpgroup()) + slot_ * chunk_bytes;
    }
    // The warp has read it.
    __device__ void release() {
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(SharedHead::ring_empty(warpgroup()) + slot_);
      if (++slot_ == p_.plan.stages) {
        slot_ = 0;
        parity_ ^= 1;
      }
    }

   private:
    const Params& p_;
    int slot_ = 0;
    unsigned parity_ = 0;
  };

  const Params& p_;
  RecordReader reader_;
  Operand<pairs> operand_;
  Chains<pairs> chains_;
  Finished finished_;
  Ring ring_;
  int buffer_ = 0;  // of the operand that is multiplied next
};

}  // namespace kerf::op::sm90::w4a4
