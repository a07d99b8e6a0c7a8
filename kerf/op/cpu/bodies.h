// The CPU op's bodies: GEMM1, activation and GEMM2 over the gathered rows, for one table of kernels.
#pragma once

#include <memory>

#include "kerf/op/cpu/kernels.h"
#include "kerf/op/op.h"

namespace kerf::op::cpu {

std::unique_ptr<RoutedExperts> bind_nvfp4(const Nvfp4Args& args, const Kernels& kernels);  // W4A4
std::unique_ptr<RoutedExperts> bind_w4a16(const Nvfp4Args& args, const Kernels& kernels);
std::unique_ptr<RoutedExperts> bind_bf16(const Bf16Args& args, const Kernels& kernels);

}  // namespace kerf::op::cpu
