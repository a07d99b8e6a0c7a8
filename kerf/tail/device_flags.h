// How ranks on different GPUs wait for each other. Every rank has an area in its own device memory, which its
// peers reach by peer pointers: flags that they set (one for each peer, block of threads and phase; a flag
// holds the number of the step that its peer has come to) and two buffers that they write into, one for even
// steps and one for odd. A rank that has seen all peers come to step n knows that they have done with step
// n - 1, so what it writes in step n + 1 overwrites nothing that is still read.
//
// Step numbers live in the area, so that a captured graph counts on when it is replayed. All ranks enqueue
// the same meetings in the same order, a rank's own on one stream.
//
// A rank waits for a bounded time. Then it notes whom it missed, in page-locked memory, and goes on without
// waiting ever again; results are worthless from there on, and whoever synchronises with it asks
// PeerReport::check().
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kerf/cuda/device.h"
#include "kerf/tail/device.h"
#include "kerf/tensor/storage.h"

namespace kerf::tail {

// Blocks of threads that a meeting has flags for.
inline constexpr int most_meeting_blocks = 64;

// Where a rank's kernels note the peer that they missed.
class PeerReport {
 public:
  // One word of `memory`, which must outlive it. Error{memory}.
  explicit PeerReport(cuda::PinnedMemory& memory);
  // The word: 0, or whom this rank missed.
  [[nodiscard]] std::uint32_t* word() const { return word_.as<std::uint32_t>().data(); }
  // Error{peer}: "rank a waited for rank b". After a synchronisation.
  void check() const;

 private:
  tensor::Tensor word_;
};

// One rank's view of all ranks' areas. The same number of ranks and half_bytes on all.
struct Peers {
  int rank = 0, ranks = 1;
  std::array<std::byte*, most_device_ranks> area{};  // area[r]: rank r's, at multiples of 256 bytes
  std::int64_t half_bytes = 0;                       // of each of the two buffers
  std::uint32_t* missed = nullptr;                   // PeerReport::word()
  std::int64_t limit_us = 10'000'000;                // microseconds that a rank waits
};

// Bytes of an area with two buffers of half_bytes (a multiple of 256).
std::int64_t area_bytes(std::int64_t half_bytes);
// Before a rank's first meeting, and before any peer's: the caller sees to it that no rank goes on until all
// have done this. It also loads the kernels of tails, sums and meetings onto the current device, since
// loading one later may wait for a kernel that waits for a peer. Whatever else stands behind a meeting has to
// be loaded before it too: run once, say.
void clear_area(std::byte* area, cuda::StreamHandle stream);

// Enqueues a meeting: what is enqueued behind it on this rank begins after all ranks' work in front of theirs
// is done, and sees what that work wrote. Here and below: Error{bug} for areas that are not at multiples of
// 256 bytes and numbers that make no sense, Error{device} where it cannot be launched.
void wait_for_peers(const Peers& peers, cuda::StreamHandle stream);
// The same for ranks that share a GPU: in one cooperative launch, since one of two launches might wait for
// the other without letting it begin.
void wait_for_peers(std::span<const Peers> ranks, cuda::StreamHandle stream);

}  // namespace kerf::tail
