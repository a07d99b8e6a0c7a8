// The W4A4 kernel: GEMM1, activation, requantisation and GEMM2 of a step in one persistent launch, one block
// a multiprocessor. Four warpgroups multiply, the warps of a fifth fetch weights for one of them each. Any
// number of blocks works, also where some of them start late: a block draws its work when it runs.
#pragma once

#include "kerf/cuda/launch.cuh"
#include "kerf/op/sm90/w4a4_consumer.cuh"
#include "kerf/op/sm90/w4a4_producer.cuh"

namespace kerf::op::sm90::w4a4 {

// By one warp.
__device__ inline void init_barriers() {
  constexpr int ring = 2 * warpgroups * most_stages;
  constexpr int all = ring + 3 * record_slots + 2 * warpgroups * most_row_slots;
  const std::uint64_t* const records = SharedHead::record_full(0);
  const std::uint64_t* const rows = SharedHead::rows_full(0);
  const std::uint64_t* const rows_empty = SharedHead::rows_empty(0);
  const std::uint64_t* const details = SharedHead::record_details(0);
#pragma unroll 1
  for (std::uint64_t* at = SharedHead::barriers() + threadIdx.x % 32; at < SharedHead::barriers() + all;
       at += 32) {
    unsigned arrivals = 32;  // details
    if (at < SharedHead::ring_full(warpgroups))
      arrivals = 1;
    else if (at < records)
      arrivals = warpgroup_threads / 32;
    else if (at < records + record_slots)
      arrivals = 1;
    else if (at < rows)
      arrivals = record_readers;
    else if (at < rows_empty)
      arrivals = row_arrivals;
    else if (at < details)
      arrivals = warpgroup_threads / 32;
    barrier_init(at, arrivals);
  }
  barrier_init_fence();
  proxy_fence();
}

// pairs: of tokens in a pass, 1 or 2. few: for steps of few tokens, whose work may be spread and whose tokens
// may be ended; in less code, which such a step, whose code runs once, is not long enough to hide the
// fetching of.
template <int pairs, bool few>
__global__ void __launch_bounds__(threads, 1) kernel(const __grid_constant__ Params p) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == consumers / 32) {
    init_barriers();
    if (threadIdx.x % 32 == 0) {
      tensor_prefetch(&p.codes[0]);
      tensor_prefetch(&p.codes[1]);
    }
  } else if (warp < consumers / 32) {
    auto* const operand = reinterpret_cast<uint4*>(Shared<pairs>::operand(0, 0));
    constexpr int all = SharedPlaces<pairs>::scales - SharedPlaces<pairs>::operand;
    for (int i = static_cast<int>(threadIdx.x); i < all / 16; i += consumers)
      operand[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < most_partial_slots * warpgroups * 4) SharedHead::arrived()[threadIdx.x] = 0;
    proxy_fence();
  }
  __syncthreads();
  cuda::begin_overlapped();
  // What 640 threads have, 96 registers each, goes where it is needed.
  if (warp >= consumers / 32) {
    registers_down<64>();
    produce<pairs, few>(p, warp - consumers / 32);
  } else {
    registers_up<104>();
    Consumer<pairs, few>(p, warp / 4).run();
  }
}

}  // namespace kerf::op::sm90::w4a4
