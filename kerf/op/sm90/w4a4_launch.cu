#include "kerf/cuda/check.h"
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
  kernel_for(pairs)<<<blocks, threads, params.plan.bytes, stream>>>(params);
  cuda::check_launch("the W4A4 kernel");
}

}  // namespace kerf::op::sm90::w4a4
