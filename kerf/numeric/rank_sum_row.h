// The sum over ranks in rank order, on vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kerf::numeric {

// sum[i] = rank_sum_bf16 of terms[r][first + i] (raw bf16 bits), r ascending; any number of terms, each of at
// least first + sum.size() values. sum must not overlap any of them. The same bits on every instruction set.
void rank_sum_row(std::span<const std::uint16_t* const> terms, std::size_t first,
                  std::span<std::uint16_t> sum);

}  // namespace kerf::numeric
