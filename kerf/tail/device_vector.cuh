// Eight bf16 values, as they travel: one load of 16 bytes. And the sum over ranks of such.
#pragma once

#include <bit>
#include <cstdint>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/rank_sum.h"

namespace kerf::tail::device {

inline constexpr int values_per_vector = 8;

using Vector = uint4;

struct Pair {
  float low, high;
};
__device__ inline Pair unpack(std::uint32_t word) {
  return {std::bit_cast<float>(word << 16), std::bit_cast<float>(word & 0xFFFF0000U)};
}
__device__ inline std::uint32_t pack(float low, float high) {
  return numeric::f32_to_bf16(low) | std::uint32_t{numeric::f32_to_bf16(high)} << 16;
}

template <int index>
__device__ inline std::uint32_t word_of(const Vector& v) {
  if constexpr (index == 0) return v.x;
  if constexpr (index == 1) return v.y;
  if constexpr (index == 2) return v.z;
  if constexpr (index == 3) return v.w;
}

// One word (two values) of the sum of `most` ranks' terms. Ranks that are not there are given as +0, which
// changes no bit: no sum is ever -0, and rounding again what is rounded does nothing.
template <numeric::SumOrder order, int most, int word>
__device__ inline std::uint32_t sum_word(const Vector (&term)[most]) {
  const auto low = numeric::sum_bf16(
      order, most, [&](int r) { return static_cast<std::uint16_t>(word_of<word>(term[r])); });
  const auto high = numeric::sum_bf16(
      order, most, [&](int r) { return static_cast<std::uint16_t>(word_of<word>(term[r]) >> 16); });
  return low | std::uint32_t{high} << 16;
}

// The sum over ranks, in numeric/rank_sum.h's order. All of the device's sums of bf16 terms are this one.
template <numeric::SumOrder order, int most>
__device__ inline Vector rank_sum(const Vector (&term)[most]) {
  return {sum_word<order, most, 0>(term), sum_word<order, most, 1>(term), sum_word<order, most, 2>(term),
          sum_word<order, most, 3>(term)};
}

// Up to 16 ranks: an order in chunks of 16 is rank order.
template <int most>
__device__ inline Vector rank_sum(numeric::SumOrder order, const Vector (&term)[most]) {
  switch (order) {
    case numeric::SumOrder::chunks_of_8:
      return rank_sum<numeric::SumOrder::chunks_of_8>(term);
    case numeric::SumOrder::each_add:
      return rank_sum<numeric::SumOrder::each_add>(term);
    case numeric::SumOrder::chunks_of_16:
    case numeric::SumOrder::rank_order:
      break;
  }
  return rank_sum<numeric::SumOrder::rank_order>(term);
}

}  // namespace kerf::tail::device
