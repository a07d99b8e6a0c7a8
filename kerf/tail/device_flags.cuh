// The device's side of device_flags.h: the layout of an area, and how a block of threads meets the blocks of
// the same number on the peers.
#pragma once

#include <cstdint>

#include "kerf/tail/device_flags.h"
#include "kerf/tail/device_ptx.cuh"

namespace kerf::tail::device {

inline constexpr int meeting_phases = 2;  // meetings of one step

struct AreaHead {
  std::uint32_t step;    // that the rank's last kernel came to
  std::uint32_t done;    // blocks of the kernel at work that have ended
  std::uint32_t failed;  // not 0: this rank has missed a peer
  std::uint32_t unused[61];
  std::uint32_t flag[meeting_phases][most_meeting_blocks][most_device_ranks];
};
static_assert(sizeof(AreaHead) % 256 == 0);

__device__ inline AreaHead* head_of(const Peers& peers, int rank) {
  return reinterpret_cast<AreaHead*>(peers.area[rank]);
}
// Rank `rank`'s buffer of step `step`.
template <typename T>
__device__ inline T* buffer_of(const Peers& peers, int rank, std::uint32_t step) {
  return reinterpret_cast<T*>(peers.area[rank] + sizeof(AreaHead) + (step & 1U) * peers.half_bytes);
}

// The number of this kernel's step.
__device__ inline std::uint32_t this_step(const Peers& peers) { return head_of(peers, peers.rank)->step + 1; }

// Notes that this rank missed `peer`.
__device__ inline void note_missed(const Peers& peers, AreaHead* own, int peer) {
  *static_cast<volatile std::uint32_t*>(&own->failed) = 1;
  store_release(peers.missed,
                0x80000000U | static_cast<std::uint32_t>(peers.rank) << 8 | static_cast<std::uint32_t>(peer));
}

// Waits until `flag` has come to `step`; false: the time is over, or this rank waits no more.
__device__ inline bool wait_for(const Peers& peers, const AreaHead* own, const std::uint32_t* flag,
                                std::uint32_t step, bool& first_to_give_up) {
  first_to_give_up = false;
  const auto limit = static_cast<std::uint64_t>(peers.limit_us) * 1000;
  const std::uint64_t begin = nanoseconds();
  for (unsigned spins = 1;; ++spins) {
    // Numbers wrap around.
    if (static_cast<std::int32_t>(load_acquire(flag) - step) >= 0) return true;
    if (spins % 16 != 0) continue;
    if (*static_cast<const volatile std::uint32_t*>(&own->failed) != 0) return false;
    if (nanoseconds() - begin > limit) {
      first_to_give_up = true;
      return false;
    }
  }
}

// The whole block, which has at least as many threads as there are ranks: what its threads wrote anywhere is
// seen by the same block of the other ranks when they come out of the same meeting. All of a rank's threads
// come out, also where a peer is missed.
__device__ inline void meet(const Peers& peers, int phase, int block, std::uint32_t step) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.ranks && peer != peers.rank) {
    store_release(&head_of(peers, peer)->flag[phase][block][peers.rank], step);
    AreaHead* const own = head_of(peers, peers.rank);
    bool gave_up = false;
    if (!wait_for(peers, own, &own->flag[phase][block][peer], step, gave_up) && gave_up)
      note_missed(peers, own, peer);
  }
  __syncthreads();
}

// The last thing that each of a rank's `blocks` blocks does: the last one of them ends the step.
__device__ inline void end_step(const Peers& peers, int blocks, std::uint32_t step) {
  if (threadIdx.x != 0) return;
  AreaHead* const own = head_of(peers, peers.rank);
  if (atomicAdd(&own->done, 1U) + 1 < static_cast<std::uint32_t>(blocks)) return;
  own->done = 0;
  own->step = step;
}

}  // namespace kerf::tail::device
