// The answer of a build without the CUDA part. A device is asked for by things that cannot be had here, so
// this is reached by nobody who asked cuda::library() first.
#include "kerf/cuda/absent.h"
#include "kerf/tail/device_all_reduce.h"

namespace kerf::tail {

void device_tail(const DeviceTail& /*tail*/, cuda::StreamHandle /*stream*/) { cuda::absent(); }
void device_sum(const DeviceSum& /*sum*/, cuda::StreamHandle /*stream*/) { cuda::absent(); }

PeerReport::PeerReport(cuda::PinnedMemory& /*memory*/) { cuda::absent(); }
void PeerReport::check() const { cuda::absent(); }
std::int64_t area_bytes(std::int64_t /*half_bytes*/) { cuda::absent(); }
void clear_area(std::byte* /*area*/, cuda::StreamHandle /*stream*/) { cuda::absent(); }
void wait_for_peers(const Peers& /*peers*/, cuda::StreamHandle /*stream*/) { cuda::absent(); }
void wait_for_peers(std::span<const Peers> /*ranks*/, cuda::StreamHandle /*stream*/) { cuda::absent(); }
std::int64_t all_reduce_half_bytes(Shots /*shots*/, int /*ranks*/, std::int64_t /*values*/) {
  cuda::absent();
}
void device_all_reduce(const DeviceAllReduce& /*call*/, cuda::StreamHandle /*stream*/) { cuda::absent(); }
void device_all_reduce(std::span<const DeviceAllReduce> /*ranks*/, cuda::StreamHandle /*stream*/) {
  cuda::absent();
}

}  // namespace kerf::tail
