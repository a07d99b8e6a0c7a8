#include "kerf/cuda/launch.cuh"
#include "kerf/op/sm90/w4a4_kernel.cuh"
#include "kerf/op/sm90/w4a4_launch.h"

namespace kerf::op::sm90::w4a4 {

namespace {
auto kernel_for(int pairs) { return pairs == 1 ? kernel<1> : kernel<2>; }
}  // namespace

void prepare() {
  for (const int pairs : {1, 2})
    cuda::check(
        cudaFuncSetAttribute(kernel_for(pairs), cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
        "shared memory of the W4A4 kernel");
}

void launch(const Params& params, int pairs, int blocks, cuda::StreamHandle stream) {
  cuda::launch(
      kernel_for(pairs),
      {dim3(static_cast<unsigned>(blocks)), dim3(threads), static_cast<std::size_t>(params.plan.bytes)},
      stream, "the W4A4 kernel", params);
}

}  // namespace kerf::op::sm90::w4a4
