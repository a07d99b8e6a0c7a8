// The sums over ranks of bf16 values. An f32 accumulator begins at +0 (a single rank is no exception), so
// terms that are all -0 sum to +0, and no sum is ever -0.
//
// rank_sum_bf16() is the one that every ordered group forms: rank 0, rank 1 and so on, rounded to bf16 when
// all are in. The others are those of engines whose bits have to be met; SumOrder names them all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kerf/numeric/bf16.h"

#pragma GCC visibility push(default)
namespace kerf::numeric {

// The sum of ranks 0 to ranks - 1, as raw bf16 bits. terms(r) is rank r's bf16 value (raw bits), here and
// below.
template <typename Terms>
constexpr std::uint16_t rank_sum_bf16(int ranks, Terms terms) {
  float sum = 0.0F;
  for (int r = 0; r < ranks; ++r) sum += bf16_to_f32(terms(r));
  return f32_to_bf16(sum);
}

// Chunks of `chunk` >= 1 ranks are summed from +0 each, ranks ascending; then their sums are, chunks
// ascending; one rounding. The same as rank_sum_bf16() for up to `chunk` ranks.
template <typename Terms>
constexpr std::uint16_t chunked_sum_bf16(int ranks, int chunk, Terms terms) {
  float sum = 0.0F;
  for (int first = 0; first < ranks; first += chunk) {
    float part = 0.0F;
    for (int r = first; r < std::min(first + chunk, ranks); ++r) part += bf16_to_f32(terms(r));
    sum += part;
  }
  return f32_to_bf16(sum);
}

// Ranks ascending, rounded to bf16 after each of them.
template <typename Terms>
constexpr std::uint16_t rounded_sum_bf16(int ranks, Terms terms) {
  std::uint16_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum = f32_to_bf16(bf16_to_f32(sum) + bf16_to_f32(terms(r)));
  return sum;
}

// These orders, by name.
enum class SumOrder : std::uint8_t {
  rank_order,    // rank_sum_bf16
  chunks_of_8,   // chunked_sum_bf16
  chunks_of_16,  // chunked_sum_bf16
  each_add,      // rounded_sum_bf16
};

// The sum in any of them.
template <typename Terms>
constexpr std::uint16_t sum_bf16(SumOrder order, int ranks, Terms terms) {
  switch (order) {
    case SumOrder::chunks_of_8:
      return chunked_sum_bf16(ranks, 8, terms);
    case SumOrder::chunks_of_16:
      return chunked_sum_bf16(ranks, 16, terms);
    case SumOrder::each_add:
      return rounded_sum_bf16(ranks, terms);
    case SumOrder::rank_order:
      break;
  }
  return rank_sum_bf16(ranks, terms);
}

}  // namespace kerf::numeric
#pragma GCC visibility pop
