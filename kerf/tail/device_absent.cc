// The answer of a build without the CUDA part.
#include "kerf/tail/device_all_reduce.h"

namespace kerf::tail {

namespace {
// A device is asked for by things that cannot be had here, so this is reached by nobody who asked
// cuda::library() first.
[[noreturn]] void absent() {
  require(cuda::library());
  throw Error(ErrorKind::bug, "the CUDA part is absent and says nothing");
}
}  // namespace

void device_tail(const DeviceTail& /*tail*/, cuda::StreamHandle /*stream*/) { absent(); }
void device_sum(const DeviceSum& /*sum*/, cuda::StreamHandle /*stream*/) { absent(); }

PeerReport::PeerReport(cuda::PinnedMemory& /*memory*/) { absent(); }
void PeerReport::check() const { absent(); }
std::int64_t area_bytes(std::int64_t /*half_bytes*/) { absent(); }
void clear_area(std::byte* /*area*/, cuda::StreamHandle /*stream*/) { absent(); }
void wait_for_peers(const Peers& /*peers*/, cuda::StreamHandle /*stream*/) { absent(); }
void wait_for_peers(std::span<const Peers> /*ranks*/, cuda::StreamHandle /*stream*/) { absent(); }
std::int64_t all_reduce_half_bytes(Shots /*shots*/, int /*ranks*/, std::int64_t /*values*/) { absent(); }
void device_all_reduce(const DeviceAllReduce& /*call*/, cuda::StreamHandle /*stream*/) { absent(); }
void device_all_reduce(std::span<const DeviceAllReduce> /*ranks*/, cuda::StreamHandle /*stream*/) {
  absent();
}

}  // namespace kerf::tail
