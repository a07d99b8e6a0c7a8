#include "kerf/op/cpu/body.h"

#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"

namespace kerf::op::cpu {

void write_row(const float* dots, float scale, std::int64_t tile, std::uint16_t* row) {
  std::uint16_t* out = row + tile * tile_rows;
  for (std::int64_t r = 0; r < tile_rows; ++r)
    out[layout::w2_source(r)] = numeric::f32_to_bf16(scale * dots[r]);
}

void write_sums(const float* dots, std::int64_t tile, float* row) {
  float* out = row + tile * tile_rows;
  for (std::int64_t r = 0; r < tile_rows; ++r) out[layout::w2_source(r)] = dots[r];
}

}  // namespace kerf::op::cpu
