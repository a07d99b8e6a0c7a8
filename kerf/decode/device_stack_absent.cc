// Without the CUDA part there is no device to have a stack on.
#include "kerf/cuda/absent.h"
#include "kerf/decode/device_stack.h"

namespace kerf::decode {

Verdict no_device_stack(const Rank& /*rank*/) { return cuda::library(); }

std::unique_ptr<DeviceStack> make_device_stack(std::span<const Layer* const> /*layers*/, const Plan& /*plan*/,
                                               std::span<const StackStep> /*steps*/, const Rank& /*rank*/) {
  cuda::absent();
}

}  // namespace kerf::decode
