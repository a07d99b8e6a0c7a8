#include "kerf/layout/slice.h"

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"

namespace kerf::layout {

std::array<tensor::StridedBytes, 4> slice_views(const Nvfp4View& view, std::int64_t tp, std::int64_t part,
                                                bool uneven) {
  require(malformed(view));
  const auto [n, hidden, whole] = shape_of(view);
  require(cuttable(hidden, whole, tp, {uneven, false}));
  if (part < 0 || part >= tp) fail(ErrorKind::usage, "slice {} of {}: wanted 0 to {}", part, tp, tp - 1);
  const auto [first, width] = slice_of(whole, tp, part);

  // Rows that lie together: one run an expert, two rows for each intermediate index.
  const auto rows = [&](const tensor::TensorView& t, std::int64_t row_bytes) {
    const std::int64_t run = 2 * width * row_bytes;
    return tensor::StridedBytes{
        t.bytes.data() + 2 * first * row_bytes, n, 2 * whole * row_bytes, 1, run, run};
  };
  // A range of columns: one run in each of `lines` lines an expert, `tile` bytes for each 64 values of I.
  const auto columns = [&](const tensor::TensorView& t, std::int64_t lines, std::int64_t tile) {
    const std::int64_t line = whole / 64 * tile;
    return tensor::StridedBytes{
        t.bytes.data() + first / 64 * tile, n, lines * line, lines, line, width / 64 * tile};
  };
  return {rows(view.w13, hidden / 2), rows(view.w13_sf, hidden / 16), columns(view.w2, hidden, 32),
          columns(view.w2_sf, hidden / 128, 512)};
}

}  // namespace kerf::layout
