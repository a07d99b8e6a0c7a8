// A row times a factor, added to a row.
#pragma once

#include <span>

namespace kerf::numeric {

// sum[i] = fma(factor, row[i], sum[i]): one rounding each, the same bits on every instruction set. As many
// values in sum as in row.
void fma_row(float factor, std::span<const float> row, std::span<float> sum);

}  // namespace kerf::numeric
