// The CPU op's bodies: GEMM1, activation and GEMM2 over the gathered rows, for one table of kernels.
#pragma once

#include <cstddef>
#include <memory>

#include "kerf/op/cpu/kernels.h"
#include "kerf/op/op.h"

namespace kerf::op::cpu {

// What their workspace_bytes() give for a shape.
std::size_t nvfp4_workspace(Input input, const layout::ExpertsShape& shape,
                            const routing::MetadataShape& step);
std::size_t bf16_workspace(const layout::ExpertsShape& shape, const routing::MetadataShape& step);

std::unique_ptr<RoutedExperts> bind_nvfp4(const Nvfp4Args& args, const Kernels& kernels);
std::unique_ptr<RoutedExperts> bind_bf16(const Bf16Args& args, const Kernels& kernels);

}  // namespace kerf::op::cpu
