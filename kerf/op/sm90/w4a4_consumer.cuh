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

  __device__ Consumer(const Params& p, const Shared& shared)
      : p_(p),
        shared_(shared),
        warpgroup_(static_cast<int>(threadIdx.x) / warpgroup_threads),
        ring_(shared.ring + warpgroup_ * p.plan.stages * chunk_bytes),
        full_(shared.ring_full + warpgroup_ * most_stages),
        reader_(shared),
        operand_(shared, warpgroup_),
        sums_(shared) {}

  __device__ void run() {
    bool more = begin();
    while (more) {
      const Record& r = reader_.current();
      const Gemm& g = p_.gemm[r.stage];
      const Share share(g, r, warpgroup_);
      float v[values];
      bool fetched = false;
      for (int segment = share.begin; segment < share.end; ++segment) {
        const bool last = segment + 1 == share.end;
        named_barrier(warpgroup_, warpgroup_threads);  // the operand is there, the other buffer is free
        if (last) {
          fetched = look_ahead();
        } else {
          operand_.fetch(p_, r, segment + 1);
          fetched = true;
        }
        multiply(g.chunks(segment));
        buffer_ ^= 1;
        if (fetched) operand_.build(buffer_);
        chains_.sum(v);
        sums_.add(v, last);
      }
      if (join(g, v)) {
        if (r.stage == 0) {
          finish_intermediate<pairs>(p_, r, share.unit, v);
          finished_.add(p_, r.tile);
        } else {
          finish_rows<pairs>(p_, r, share.unit, v);
        }
      }
      reader_.pass();
      if (!fetched || reader_.current().stage != 0) finished_.tell(p_);
      more = fetched || begin();
    }
  }

 private:
  // Passes records without a share for this warpgroup, waits for what the first one with a share needs and
  // makes its operand. False at the end.
  __device__ bool begin() {
    for (;; reader_.pass()) {
      const Record& r = reader_.current();
      if (r.stage < 0) return false;
      const Share share(p_.gemm[r.stage], r, warpgroup_);
      if (!share.any()) continue;
      if (r.ready == 0) wait_for_intermediate(p_, r);
      operand_.fetch(p_, r, share.begin);
      operand_.build(buffer_);
      return true;
    }
  }

  // Fetches the operand of the next record, if it is known to be there.
  __device__ bool look_ahead() {
    const Record& r = reader_.next();
    if (r.stage < 0 || r.ready == 0) return false;
    const Share share(p_.gemm[r.stage], r, warpgroup_);
    if (!share.any()) return false;
    operand_.fetch(p_, r, share.begin);
    return true;
  }

  // A segment's chunks, into the chains.
  __device__ void multiply(int chunks) {
    constexpr int chunk_step = operand_bytes * pairs / segment_chunks / 16;  // descriptors count 16 bytes
    std::uint64_t operand =
        operand_descriptor(shared_.operand + (warpgroup_ * 2 + buffer_) * operand_bytes * pairs);
    const float* scales = shared_.scales + (warpgroup_ * 2 + buffer_) * values * 32;
    chains_.clear();
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      barrier_wait(full_ + slot_, parity_);
      chains_.add(ring_ + slot_ * chunk_bytes, operand, scales, full_ + slot_ + warpgroups * most_stages);
      operand += chunk_step;
      scales += 8;
      if (++slot_ == p_.plan.stages) {
        slot_ = 0;
        parity_ ^= 1;
      }
    }
  }

  // Where warpgroups share a unit: leaves this part's sums for the others, or, as the last to come, adds all
  // up. True where v has the unit's sums then. Each warp for its own rows.
  __device__ bool join(const Gemm& g, float (&v)[values]) {
    if (g.parts_in_use == 1) return true;
    const int slot = static_cast<int>(reader_.passed() % partial_slots);
    reader_.wait_passed(reader_.passed() - partial_slots);
    const int thread = static_cast<int>(threadIdx.x) % warpgroup_threads;
    const auto partial = [&](int warpgroup, int j) -> float& {
      return shared_.partials[((slot * warpgroups + warpgroup) * values + j) * warpgroup_threads + thread];
    };
#pragma unroll
    for (int j = 0; j < values; ++j) partial(warpgroup_, j) = v[j];
    __threadfence_block();
    __syncwarp();
    const int unit = warpgroup_ / g.parts;
    int before = 0;
    if (threadIdx.x % 32 == 0) {
      int* const arrived = shared_.arrived + (slot * warpgroups + unit) * 4 + thread / 32;
      before = atomicAdd_block(arrived, 1);
      if (before == g.parts_in_use - 1) *arrived = 0;
    }
    before = __shfl_sync(~0U, before, 0);
    if (before != g.parts_in_use - 1) return false;
    __threadfence_block();
    const int first = unit * g.parts;
#pragma unroll
    for (int j = 0; j < values; ++j) {
      v[j] = __fadd_rn(partial(first, j), partial(first + 1, j));
      if (g.parts_in_use == 3) v[j] = __fadd_rn(v[j], partial(first + 2, j));
      if (g.parts_in_use == 4)
        v[j] = __fadd_rn(v[j], __fadd_rn(partial(first + 2, j), partial(first + 3, j)));
    }
    return true;
  }

  const Params& p_;
  const Shared& shared_;
  int warpgroup_;
  std::byte* ring_;
  std::uint64_t* full_;
  RecordReader reader_;
  Operand<pairs> operand_;
  Chains<pairs> chains_;
  SegmentSums<values> sums_;
  Finished finished_;
  int slot_ = 0;
  unsigned parity_ = 0;
  int buffer_ = 0;
};

}  // namespace kerf::op::sm90::w4a4
