// The sum over ranks, which every ordered group forms by calling this function: an f32 accumulator begins at
// +0, takes rank 0, rank 1 and so on (a single rank is no exception), and is rounded to bf16 when all are in.
// Terms that are all -0 therefore sum to +0.
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
