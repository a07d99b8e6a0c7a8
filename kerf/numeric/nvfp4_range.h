// How far NVFP4 values reach under a global scale.
#pragma once

namespace kerf::numeric {

// The largest e4m3 block scale times the largest e2m1 code.
inline constexpr float nvfp4_most = 448.0F * 6.0F;

}  // namespace kerf::numeric
