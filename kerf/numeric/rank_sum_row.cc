#include "kerf/numeric/rank_sum_row.h"

#include <limits>

#include "kerf/numeric/bf16.h"
#include "kerf/numeric/e4m3.h"
#include "kerf/numeric/rank_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/numeric/rank_sum_row.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include "kerf/numeric/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kerf::numeric::HWY_NAMESPACE {

void RankSumRow(const std::uint16_t* const* terms, std::size_t ranks, std::size_t first, std::uint16_t* sum,
                std::size_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> f;
  const hn::RebindToUnsigned<decltype(f)> u;
  const hn::RebindToSigned<decltype(f)> i;
  const hn::Rebind<std::uint16_t, decltype(f)> half;
  const std::size_t lanes = hn::Lanes(f);
  std::size_t at = 0;
  for (; at + lanes <= n; at += lanes) {
    auto total = hn::Zero(f);
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto bits = hn::PromoteTo(u, hn::LoadU(half, terms[r] + first + at));
      total = hn::Add(total, hn::BitCast(f, hn::ShiftLeft<16>(bits)));
    }
    const auto out = hn::ShiftRight<16>(Bf16UpperHalves(f, total));
    hn::StoreU(hn::DemoteTo(half, hn::BitCast(i, out)), half, sum + at);
  }
  for (; at < n; ++at)
    sum[at] = rank_sum_bf16(static_cast<int>(ranks), [&](int r) { return terms[r][first + at]; });
}

}  // namespace kerf::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kerf::numeric {

HWY_EXPORT(RankSumRow);

void rank_sum_row(std::span<const std::uint16_t* const> terms, std::size_t first,
                  std::span<std::uint16_t> sum) {
  HWY_DYNAMIC_DISPATCH(RankSumRow)(terms.data(), terms.size(), first, sum.data(), sum.size());
}

}  // namespace kerf::numeric

#endif  // HWY_ONCE
