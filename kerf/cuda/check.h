// What a call into the CUDA runtime says, as an Error. For files of the CUDA part only.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

#include "kerf/base/error.h"

namespace kerf::cuda {

// Error{device} (Error{memory} where memory ran out) with `what`, the runtime's own words and the place.
void check(cudaError_t result, std::string_view what,
           std::source_location where = std::source_location::current());

// After a kernel launch: the same, with the kernel's name in words.
inline void check_launch(std::string_view kernel,
                         std::source_location where = std::source_location::current()) {
  check(cudaGetLastError(), kernel, where);
}

}  // namespace kerf::cuda
