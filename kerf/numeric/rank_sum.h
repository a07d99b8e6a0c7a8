// The sum over ranks: from +0, ranks ascending (at one rank too), f32, one rounding to bf16 at the end. Every
// ordered group calls this function, so that "the sum over ranks" has one meaning. All -0.0 gives +0.0.
#pragma once

#include <cstdint>
#include <span>

#include "kerf/numeric/bf16.h"

namespace kerf::numeric {

// terms(r) is rank r's bf16 value (raw bits).
template <typename Terms>
constexpr std::uint16_t rank_sum_bf16(int ranks, Terms terms) {
  float sum = 0.0F;
  for (int r = 0; r < ranks; ++r) sum += bf16_to_f32(terms(r));
  return f32_to_bf16(sum);
}

}  // namespace kerf::numeric
