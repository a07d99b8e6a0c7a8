// The sum over ranks on its own.
#include "kerf/cuda/launch.cuh"
#include "kerf/tail/device.h"
#include "kerf/tail/device_vector.cuh"
#include "kerf/tail/internal/device_checks.h"
#include "kerf/tail/internal/device_load.h"

namespace kerf::tail {

namespace {

constexpr int kThreads = 128;

// A thread for each vector. An output may be a part: each thread reads its vector everywhere before it
// writes.
template <int most>
__global__ void __launch_bounds__(kThreads)
    sum_parts(const __grid_constant__ DeviceSum sum, std::int64_t first, std::int64_t vectors) {
  cuda::begin_overlapped();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  device::Vector term[most];
#pragma unroll
  for (int r = 0; r < most; ++r) {
    term[r] = {0, 0, 0, 0};
    if (r < sum.parts) term[r] = reinterpret_cast<const device::Vector*>(sum.part[r])[first + i];
  }
  const device::Vector total = device::rank_sum(sum.order, term);
  for (int o = 0; o < sum.outs; ++o) reinterpret_cast<device::Vector*>(sum.out[o])[first + i] = total;
}

}  // namespace

void internal::load_sums() { cuda::load(sum_parts<8>, sum_parts<16>); }

void device_sum(const DeviceSum& sum, cuda::StreamHandle stream) {
  if (sum.count == 0) return;
  internal::check(sum);
  const std::int64_t first = sum.first / device::values_per_vector;
  const std::int64_t vectors = sum.count / device::values_per_vector;
  const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
  if (sum.parts <= 8)
    cuda::launch(sum_parts<8>, {dim3(blocks), dim3(kThreads)}, stream, "the sum's kernel", sum, first,
                 vectors);
  else
    cuda::launch(sum_parts<16>, {dim3(blocks), dim3(kThreads)}, stream, "the sum's kernel", sum, first,
                 vectors);
}

}  // namespace kerf::tail
