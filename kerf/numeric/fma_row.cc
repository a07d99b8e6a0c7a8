#include "kerf/numeric/fma_row.h"

#include <cmath>
#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/numeric/fma_row.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::numeric::HWY_NAMESPACE {

// Compiled once per target: where the processor has the instruction, this loop becomes vectors of it.
void FmaRow(float factor, const float* row, float* sum, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] = std::fma(factor, row[i], sum[i]);
}

}  // namespace kerf::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kerf::numeric {

HWY_EXPORT(FmaRow);

void fma_row(float factor, std::span<const float> row, std::span<float> sum) {
  HWY_DYNAMIC_DISPATCH(FmaRow)(factor, row.data(), sum.data(), row.size());
}

}  // namespace kerf::numeric

#endif  // HWY_ONCE
