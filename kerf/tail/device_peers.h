// The areas of a group's ranks (device_flags.h), where the ranks are threads of one process or processes of
// one host: each allocates its own in its device's memory, and the others reach it by its address or by a
// name that the processes exchange. With it device_all_reduce() and wait_for_peers() run between them.
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/comm/group.h"
#include "kerf/cuda/device.h"
#include "kerf/cuda/devices.h"
#include "kerf/tail/device_flags.h"

namespace kerf::tail {

// The areas of all ranks, as one rank sees them.
class PeerAreas {
 public:
  // Collective over `group`, of the host's memory; this rank's is the current device. half_bytes: of each of
  // an area's two buffers, a multiple of 256, the same on all ranks; limit_us: microseconds that a rank
  // waits. Areas are cleared and kernels loaded (clear_area()) on all ranks when it returns. Error:
  // unsupported (a rank on another host, too many ranks), device (devices that do not reach each other),
  // memory, bug (half_bytes that differ); the same on all ranks. The memories must outlive it.
  PeerAreas(comm::Group& group, std::int64_t half_bytes, std::int64_t limit_us, cuda::DeviceMemory& memory,
            cuda::PinnedMemory& pinned);
  PeerAreas(const PeerAreas&) = delete;
  PeerAreas& operator=(const PeerAreas&) = delete;
  PeerAreas(PeerAreas&&) = delete;
  PeerAreas& operator=(PeerAreas&&) = delete;
  // Peers write into this rank's area until they are through with what they enqueued: a meeting of all, and a
  // synchronisation, come before.
  ~PeerAreas() = default;

  [[nodiscard]] const Peers& peers() const { return peers_; }
  // Error{peer} where this rank has missed one. After a synchronisation.
  void check() const { report_.check(); }

 private:
  tensor::Tensor area_;
  PeerReport report_;
  std::vector<cuda::ImportedBlock> imported_;
  Peers peers_;
};

}  // namespace kerf::tail
