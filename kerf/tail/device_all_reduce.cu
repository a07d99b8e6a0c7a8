#include "kerf/cuda/launch.cuh"
#include "kerf/tail/device_all_reduce.h"

#include "kerf/tail/device_flags.cuh"
#include "kerf/tail/device_vector.cuh"
#include "kerf/tail/internal/device_checks.h"
#include "kerf/tail/internal/device_launch.cuh"
#include "kerf/tail/internal/device_load.h"

namespace kerf::tail {

namespace {

using device::values_per_vector;
using device::Vector;

constexpr int kThreads = 256;

// Vectors [first, first + count) that a rank sums in two shots.
struct Part {
  int first, count;
};
__device__ inline Part part_of(int vectors, int ranks, int rank) {
  const auto at = [&](int r) { return static_cast<int>(static_cast<std::int64_t>(vectors) * r / ranks); };
  return {at(rank), at(rank + 1) - at(rank)};
}

// The sum of vector v of each rank's values, which lie `stride` vectors apart.
template <int most>
__device__ inline Vector sum_of(const DeviceAllReduce& call, const Vector* received, int stride, int v) {
  Vector term[most];
#pragma unroll
  for (int r = 0; r < most; ++r) {
    term[r] = {0, 0, 0, 0};
    if (r < call.peers.ranks) term[r] = received[r * stride + v];
  }
  return device::rank_sum(call.order, term);
}

// Every thread ends the vectors that it sent: the blocks of the same number on all ranks have the same ones,
// so a meeting of these blocks is enough.
template <int most>
__device__ void one_shot(const DeviceAllReduce& call, int vectors, std::uint32_t step) {
  const Peers& peers = call.peers;
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * kThreads + static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const auto* const mine = reinterpret_cast<const Vector*>(call.mine);
  for (int v = begin; v < vectors; v += stride) {
    const Vector value = mine[v];
    for (int r = 0; r < peers.ranks; ++r)
      device::buffer_of<Vector>(peers, r, step)[peers.rank * vectors + v] = value;
  }
  device::meet(peers, 0, block, step);
  const auto* const received = device::buffer_of<Vector>(peers, peers.rank, step);
  for (int v = begin; v < vectors; v += stride)
    reinterpret_cast<Vector*>(call.sum)[v] = sum_of<most>(call, received, vectors, v);
}

// A buffer holds the ranks' values of this rank's part, `longest` vectors apart, and behind them all sums.
template <int most>
__device__ void two_shot(const DeviceAllReduce& call, int vectors, std::uint32_t step) {
  const Peers& peers = call.peers;
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * kThreads + static_cast<int>(threadIdx.x);
  const int stride = static_cast<int>(gridDim.x) * kThreads;
  const int longest = (vectors + peers.ranks - 1) / peers.ranks;
  const auto* const mine = reinterpret_cast<const Vector*>(call.mine);
  for (int r = 0; r < peers.ranks; ++r) {
    const Part theirs = part_of(vectors, peers.ranks, r);
    Vector* const to = device::buffer_of<Vector>(peers, r, step) + peers.rank * longest;
    for (int i = begin; i < theirs.count; i += stride) to[i] = mine[theirs.first + i];
  }
  device::meet(peers, 0, block, step);
  const Part own = part_of(vectors, peers.ranks, peers.rank);
  const auto* const received = device::buffer_of<Vector>(peers, peers.rank, step);
  for (int i = begin; i < own.count; i += stride) {
    const Vector sum = sum_of<most>(call, received, longest, i);
    for (int r = 0; r < peers.ranks; ++r)
      device::buffer_of<Vector>(peers, r, step)[peers.ranks * longest + own.first + i] = sum;
  }
  device::meet(peers, 1, block, step);
  const Vector* const sums = received + peers.ranks * longest;
  for (int r = 0; r < peers.ranks; ++r) {
    const Part theirs = part_of(vectors, peers.ranks, r);
    for (int i = begin; i < theirs.count; i += stride)
      reinterpret_cast<Vector*>(call.sum)[theirs.first + i] = sums[theirs.first + i];
  }
}

template <int most, int calls>
__global__ void __launch_bounds__(kThreads)
    all_reduce(const __grid_constant__ internal::TogetherOnOne<DeviceAllReduce, calls> ranks) {
  const DeviceAllReduce& call = ranks.call[blockIdx.y];
  const auto vectors = static_cast<int>(call.values / values_per_vector);
  const std::uint32_t step = device::this_step(call.peers);
  if (call.shots == Shots::one_shot)
    one_shot<most>(call, vectors, step);
  else
    two_shot<most>(call, vectors, step);
  device::end_step(call.peers, static_cast<int>(gridDim.x), step);
}

}  // namespace

void internal::load_all_reduces() {
  cuda::load(all_reduce<8, 1>, all_reduce<16, 1>);
  cuda::load(all_reduce<8, most_device_ranks>, all_reduce<16, most_device_ranks>);
}

void device_all_reduce(const DeviceAllReduce& call, cuda::StreamHandle stream) {
  device_all_reduce({&call, 1}, stream);
}

void device_all_reduce(std::span<const DeviceAllReduce> ranks, cuda::StreamHandle stream) {
  for (const DeviceAllReduce& call : ranks) internal::check(call);
  if (ranks.empty() || ranks[0].values == 0) return;
  const int size = ranks[0].peers.ranks;
  const std::int64_t vectors = ranks[0].values / values_per_vector;
  const std::int64_t each = ranks[0].shots == Shots::one_shot ? vectors : (vectors + size - 1) / size;
  const auto blocks =
      static_cast<int>(std::min<std::int64_t>((each + kThreads - 1) / kThreads, most_meeting_blocks));
  if (size <= 8)
    internal::launch_together(all_reduce<8, 1>, all_reduce<8, most_device_ranks>, ranks, blocks, kThreads,
                              stream);
  else
    internal::launch_together(all_reduce<16, 1>, all_reduce<16, most_device_ranks>, ranks, blocks, kThreads,
                              stream);
}

}  // namespace kerf::tail
