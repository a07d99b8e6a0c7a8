// One launch for several ranks on one GPU, a row of the grid for each; it is cooperative where there is more
// than one, so that all their blocks are there at once.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "kerf/cuda/check.h"
#include "kerf/tail/device.h"

namespace kerf::tail::internal {

// The calls as a kernel's argument.
template <typename Call, int most>
struct TogetherOnOne {
  std::array<Call, most> call;
};

template <typename Call>
void launch_together(void (*one)(TogetherOnOne<Call, 1>),
                     void (*several)(TogetherOnOne<Call, most_device_ranks>), std::span<const Call> calls,
                     int blocks, int threads, cuda::StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(calls.size()));
  if (calls.size() == 1) {
    one<<<grid, threads, 0, stream>>>({{calls[0]}});
    cuda::check_launch("a kernel that waits for peers");
    return;
  }
  TogetherOnOne<Call, most_device_ranks> all{};
  std::copy(calls.begin(), calls.end(), all.call.begin());
  void* arguments[] = {&all};
  cuda::check(
      cudaLaunchCooperativeKernel(several, grid, dim3(static_cast<unsigned>(threads)), arguments, 0, stream),
      "a kernel of several ranks");
}

}  // namespace kerf::tail::internal
