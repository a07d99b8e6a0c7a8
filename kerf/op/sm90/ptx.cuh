// The instructions of Hopper that C++ has no name for, one function each: barriers in shared memory, bulk
// copies into it, register hand-over between warpgroups. Names follow the PTX manual's.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace kerf::op::sm90 {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// What lies at an address in shared memory: addresses that are kept and moved on need half the registers of
// pointers.
template <typename T>
__device__ inline const T& shared_value(std::uint32_t address) {
  return *static_cast<const T*>(__cvta_shared_to_generic(address));
}
__device__ inline uint2 shared_pair(std::uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ inline std::uint32_t shared_byte(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
// A value that all threads of the warp have, in a uniform register, as wgmma wants its descriptors. What is
// computed from it, and in code that only such values lead to, is computed once for the warp.
__device__ inline std::uint32_t uniform(std::uint32_t value) { return __reduce_or_sync(0xFFFFFFFF, value); }
__device__ inline int uniform(int value) {
  return static_cast<int>(uniform(static_cast<std::uint32_t>(value)));
}

// mbarrier: arrivals and bytes of one phase. Some by the barrier's address in shared memory, too.
__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) { barrier_arrive(shared_address(barrier)); }
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  barrier_wait(shared_address(barrier), parity);
}

// Whether the phase is over: barrier_wait() would not wait.
__device__ inline bool barrier_test(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Copies of 16 or 4 bytes by a thread, which go on without it; zeros where there is nothing to copy. What the
// thread has begun arrives at the barrier, once, when it is there.
__device__ inline void copy_16(void* to, const void* from, bool any) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(any ? 16 : 0)
               : "memory");
}
__device__ inline void copy_4(void* to, const void* from, bool any) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(any ? 4 : 0)
               : "memory");
}
__device__ inline void barrier_arrive_copied(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Writes by threads to shared memory become visible to bulk copies and wgmma.
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Bulk copies: a box of a tensor map, or contiguous bytes (multiples of 16); both count on the barrier.
__device__ inline void tensor_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void tensor_load(void* to, const CUtensorMap* map, int x, int y, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], "
      "[%4];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void bulk_load(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Barrier 1 + id among `threads` threads.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id + 1), "r"(threads) : "memory");
}

// A warpgroup gives registers back, or takes some. What all take must fit what the launch gave.
template <int registers>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Counts in shared memory, before which this thread's writes are seen and after which the others' are.
__device__ inline int count_shared(int* at, int n) {
  int before;
  asm volatile("atom.acq_rel.cta.shared.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(at)), "r"(n)
               : "memory");
  return before;
}

// threadIdx.x, read here and now: what follows from it and is needed rarely takes no
// registers meanwhile.
__device__ inline int thread_now() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// 16 bytes as a whole, past the caches of this multiprocessor.
__device__ inline void store_whole(uint4* p, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ inline uint4 load_whole(const uint4* p) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// A load that other blocks' earlier writes are visible to.
__device__ inline std::int32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return static_cast<std::int32_t>(v);
}

}  // namespace kerf::op::sm90
