// The sum over ranks of a run of bf16 values that lie in the ranks' own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/numeric/rank_sum.h"

namespace kerf::comm::internal {

// Most values of one call of sum_run that a group makes: what fits a buffer on the stack.
inline constexpr std::size_t reduce_chunk = 1024;

// sum[i] = the sum of terms[r][first + i], ranks ascending, in `order`; sum must not overlap any of the
// terms.
void sum_run(std::span<const std::uint16_t* const> terms, std::size_t first, std::span<std::uint16_t> sum,
             numeric::SumOrder order = numeric::SumOrder::rank_order);

}  // namespace kerf::comm::internal
