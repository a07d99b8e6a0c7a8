#include "kerf/comm/internal/reduce.h"

#include <array>
#include <utility>

#include "kerf/numeric/rank_sum.h"

namespace kerf::comm::internal {

namespace {

constexpr std::size_t kUnrolled = 16;

// The number of ranks as a constant lets the compiler unroll the sum of one value and vectorise over values.
template <std::size_t Ranks>
void sum_fixed(std::span<const std::uint16_t* const> terms, std::size_t first, std::span<std::uint16_t> sum) {
  std::array<const std::uint16_t*, Ranks> from{};
  for (std::size_t r = 0; r < Ranks; ++r) from[r] = terms[r] + first;
  std::uint16_t* __restrict to = sum.data();
  for (std::size_t i = 0; i < sum.size(); ++i)
    to[i] = numeric::rank_sum_bf16(static_cast<int>(Ranks),
                                   [&](int r) { return from[static_cast<std::size_t>(r)][i]; });
}

using Sum = void (*)(std::span<const std::uint16_t* const>, std::size_t, std::span<std::uint16_t>);

template <std::size_t... Index>
constexpr std::array<Sum, sizeof...(Index)> table(std::index_sequence<Index...> /*unused*/) {
  return {&sum_fixed<Index + 1>...};
}

constexpr std::array<Sum, kUnrolled> kSums = table(std::make_index_sequence<kUnrolled>());

}  // namespace

void sum_run(std::span<const std::uint16_t* const> terms, std::size_t first, std::span<std::uint16_t> sum) {
  if (terms.size() <= kUnrolled) {
    kSums[terms.size() - 1](terms, first, sum);
    return;
  }
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = numeric::rank_sum_bf16(static_cast<int>(terms.size()),
                                    [&](int r) { return terms[static_cast<std::size_t>(r)][first + i]; });
}

}  // namespace kerf::comm::internal
