#include "kerf/cuda/launch.cuh"
#include "kerf/op/sm90/w4a4_kernel.cuh"
#include "kerf/op/sm90/w4a4_launch.h"

namespace kerf::op::sm90::w4a4 {

namespace {
auto kernel_for(Variant variant) {
  switch (variant) {
    case Variant::few_tokens:
      return kernel<1, true>;
    case Variant::pairs_of_two:
      return kernel<2, false>;
    case Variant::pairs_of_one:
      break;
  }
  return kernel<1, false>;
}
}  // namespace

void prepare() {
  for (const Variant v : {Variant::few_tokens, Variant::pairs_of_one, Variant::pairs_of_two})
    cuda::check(cudaFuncSetAttribute(kernel_for(v), cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared),
                "shared memory of the W4A4 kernel");
}

void launch(const Params& params, Variant variant, int blocks, cuda::StreamHandle stream) {
  cuda::launch(
      kernel_for(variant),
      {dim3(static_cast<unsigned>(blocks)), dim3(threads), static_cast<std::size_t>(params.plan.bytes)},
      stream, "the W4A4 kernel", params);
}

}  // namespace kerf::op::sm90::w4a4
