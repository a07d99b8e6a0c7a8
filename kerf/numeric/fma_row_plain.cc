#include "kerf/numeric/fma_row.h"

#include <cmath>
#include <cstddef>

namespace kerf::numeric {

void fma_row(float factor, std::span<const float> row, std::span<float> sum) {
  for (std::size_t i = 0; i < row.size(); ++i) sum[i] = std::fma(factor, row[i], sum[i]);
}

}  // namespace kerf::numeric
