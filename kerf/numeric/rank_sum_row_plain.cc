#include "kerf/numeric/rank_sum.h"
#include "kerf/numeric/rank_sum_row.h"

namespace kerf::numeric {

void rank_sum_row(std::span<const std::uint16_t* const> terms, std::size_t first,
                  std::span<std::uint16_t> sum) {
  const auto ranks = static_cast<int>(terms.size());
  for (std::size_t at = 0; at < sum.size(); ++at)
    sum[at] = rank_sum_bf16(ranks, [&](int r) { return terms[r][first + at]; });
}

}  // namespace kerf::numeric
