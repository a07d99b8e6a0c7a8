// The W4A4 kernel: GEMM1, activation, requantisation and GEMM2 of a step in one persistent launch, one block
// a multiprocessor. Four warpgroups multiply, the warps of a fifth fetch weights for one of them each. Any
// number of blocks works, also where some of them start late: a block draws its work when it runs.
#pragma once

#include "kerf/cuda/launch.cuh"
#include "kerf/op/sm90/w4a4_consumer.cuh"
#include "kerf/op/sm90/w4a4_producer.cuh"

namespace kerf::op::sm90::w4a4 {

// By one thread.
__device__ inline void init_barriers(int stages) {
  for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup)
    for (int i = 0; i < stages; ++i) {
      barrier_init(SharedHead::ring_full(warpgroup) + i, 1);
      barrier_init(SharedHead::ring_empty(warpgroup) + i, warpgroup_threads / 32);
    }
  for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup)
    for (int i = 0; i < most_row_slots; ++i) {
      barrier_init(SharedHead::rows_full(warpgroup) + i, row_arrivals);
      barrier_init(SharedHead::rows_empty(warpgroup) + i, warpgroup_threads / 32);
    }
  for (unsigned n = 0; n < record_slots; ++n) {
    barrier_init(SharedHead::record_full(n), 1);
    barrier_init(SharedHead::record_details(n), 32);
    barrier_init(SharedHead::record_empty(n), record_readers);
  }
  barrier_init_fence();
  proxy_fence();
}

// pairs: of tokens in a pass, 1 or 2.
template <int pairs>
__global__ void __launch_bounds__(threads, 1) kernel(const __grid_constant__ Params p) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == consumers / 32) {
    if (threadIdx.x % 32 == 0) {
      init_barriers(p.plan.stages);
      tensor_prefetch(&p.codes[0]);
      tensor_prefetch(&p.codes[1]);
    }
  } else if (warp < consumers / 32) {
    auto* const operand = reinterpret_cast<uint4*>(Shared<pairs>::operand(0, 0));
    for (int i = static_cast<int>(threadIdx.x); i < warpgroups * 2 * operand_bytes * pairs / 16;
         i += consumers)
      operand[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < most_partial_slots * warpgroups * 4) SharedHead::arrived()[threadIdx.x] = 0;
    proxy_fence();
  }
  __syncthreads();
  cuda::begin_overlapped();
  // What 640 threads have, 96 registers each, goes where it is needed.
  if (warp >= consumers / 32) {
    registers_down<64>();
    produce<pairs>(p, warp - consumers / 32);
  } else {
    registers_up<104>();
    Consumer<pairs>(p).run();
  }
}

}  // namespace kerf::op::sm90::w4a4
