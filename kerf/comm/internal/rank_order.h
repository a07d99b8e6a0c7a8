// The sum over ranks in rank order, on vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kerf::comm::internal {

// sum_run for SumOrder::rank_order (numeric::rank_sum_bf16) and any number of ranks; the same bits on every
// instruction set.
void rank_order_sum(std::span<const std::uint16_t* const> terms, std::size_t first,
                    std::span<std::uint16_t> sum);

}  // namespace kerf::comm::internal
