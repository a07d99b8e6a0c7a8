#include "kerf/cuda/absent.h"
#include "kerf/tail/device_peers.h"

namespace kerf::tail {

PeerAreas::PeerAreas(comm::Group& /*group*/, std::int64_t /*half_bytes*/, std::int64_t /*limit_us*/,
                     cuda::DeviceMemory& /*memory*/, cuda::PinnedMemory& pinned)
    : report_(pinned) {
  cuda::absent();
}

}  // namespace kerf::tail
