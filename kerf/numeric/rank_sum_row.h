// The sum over ranks in rank order, on vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kerf::numeric {

// sum[i] = rank_sum_bf16 of terms[r][first + i], r ascending; any number of terms. sum must not overlap any
// of them. The same bits on every instruction set.
void rank_sum_row(std::span<const std::uint16_t* const> terms, std::size_t first,
                  std::span<std::uint16_t> sum);

}  // namespace kerf::numeric
