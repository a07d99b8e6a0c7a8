// The sum over ranks of a run of bf16 values that lie in the ranks' own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kerf::comm::internal {

// Most values of one call of sum_run: what fits a buffer on the stack.
inline constexpr std::size_t reduce_chunk = 1024;

// sum[i] = rank_sum_bf16 over terms[r][first + i], ranks ascending; sum must not overlap any of the terms.
void sum_run(std::span<const std::uint16_t* const> terms, std::size_t first, std::span<std::uint16_t> sum);

}  // namespace kerf::comm::internal
