#include "kerf/tail/device_flags.cuh"

#include "kerf/cuda/launch.cuh"
#include "kerf/tail/internal/device_checks.h"
#include "kerf/tail/internal/device_launch.cuh"
#include "kerf/tail/internal/device_load.h"

namespace kerf::tail {

namespace {

constexpr int kThreads = 32;
static_assert(kThreads >= most_device_ranks);

template <int most>
__global__ void __launch_bounds__(kThreads)
    meeting(const __grid_constant__ internal::TogetherOnOne<Peers, most> ranks) {
  const Peers& peers = ranks.call[blockIdx.y];
  const std::uint32_t step = device::this_step(peers);
  device::meet(peers, 0, 0, step);
  device::end_step(peers, 1, step);
}

}  // namespace

std::int64_t area_bytes(std::int64_t half_bytes) {
  return static_cast<std::int64_t>(sizeof(device::AreaHead)) + 2 * half_bytes;
}

void clear_area(std::byte* area, cuda::StreamHandle stream) {
  cuda::load(meeting<1>);
  cuda::load(meeting<most_device_ranks>);
  internal::load_tails();
  internal::load_sums();
  internal::load_all_reduces();
  cuda::zero(area, sizeof(device::AreaHead), stream);
}

void wait_for_peers(const Peers& peers, cuda::StreamHandle stream) { wait_for_peers({&peers, 1}, stream); }

void wait_for_peers(std::span<const Peers> ranks, cuda::StreamHandle stream) {
  for (const Peers& peers : ranks) internal::check(peers);
  if (ranks.empty() || ranks[0].ranks == 1) return;
  internal::launch_together(meeting<1>, meeting<most_device_ranks>, ranks, 1, kThreads, stream);
}

}  // namespace kerf::tail
