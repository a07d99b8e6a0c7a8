#include "kerf/op/cpu/body.h"

#include "kerf/layout/rows.h"

namespace kerf::op::cpu {

void write_sums(const float* dots, std::int64_t tile, float* row) {
  float* out = row + tile * tile_rows;
  for (std::int64_t r = 0; r < tile_rows; ++r) out[layout::w2_source(r)] = dots[r];
}

}  // namespace kerf::op::cpu
