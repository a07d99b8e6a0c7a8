// The CPU op's bodies: GEMM1, activation and GEMM2 over the gathered rows, for one table of kernels.
#pragma once

#include <cstddef>
#include <memory>

#include "kerf/op/cpu/kernels.h"
#include "kerf/op/op.h"

namespace kerf::op::cpu {

// What their workspace_bytes() give for a shape: of quantised rows, and of bf16 rows.
std::size_t quantised_workspace(const layout::ExpertsShape& shape, const routing::MetadataShape& step);
std::size_t float_workspace(const layout::ExpertsShape& shape, const routing::MetadataShape& step);

std::unique_ptr<RoutedExperts> bind_nvfp4(const Nvfp4Args& args, const Kernels& kernels);  // W4A4
std::unique_ptr<RoutedExperts> bind_w4a16(const Nvfp4Args& args, const Kernels& kernels);
std::unique_ptr<RoutedExperts> bind_bf16(const Bf16Args& args, const Kernels& kernels);

}  // namespace kerf::op::cpu
