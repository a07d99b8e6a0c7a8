// The sm_90a backend: Hopper GPUs.
#pragma once

#include <vector>

#include "kerf/op/op.h"

namespace kerf::op::sm90 {

inline constexpr std::string_view backend_name = "cuda";

// "cuda", where this build and machine have it; otherwise nothing.
std::vector<const Backend*> backends();

}  // namespace kerf::op::sm90
