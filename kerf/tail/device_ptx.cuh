// Instructions that the tails' kernels need and C++ has no name for: barriers of a group of threads and of a
// cluster, and the flags between GPUs.
#pragma once

#include <cstdint>

namespace kerf::tail::device {

// A barrier of `threads` threads, whole warps; number 0 is __syncthreads()'s own.
__device__ inline void group_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The cluster's barrier in two halves. arrive_started() promises nothing about memory: after the wait all
// blocks run, so their shared memory may be written.
__device__ inline void cluster_arrive_started() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Which cluster of the grid, and which block of how many in it.
__device__ inline int cluster_number() {
  std::uint32_t value;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(value));
  return static_cast<int>(value);
}
__device__ inline int cluster_block() {
  std::uint32_t value;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
  return static_cast<int>(value);
}
// What `at` in shared memory is in block `block` of the cluster.
template <typename T>
__device__ inline T* in_block(T* at, int block) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(at), "r"(block));
  return there;
}

// A word that another GPU, or the host, writes or reads.
__device__ inline void store_release(std::uint32_t* at, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(at)), "r"(value)
               : "memory");
}
__device__ inline std::uint32_t load_acquire(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(at))
               : "memory");
  return value;
}

// Nanoseconds since some moment.
__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

}  // namespace kerf::tail::device
