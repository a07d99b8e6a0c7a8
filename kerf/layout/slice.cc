#include "kerf/layout/slice.h"

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"

namespace kerf::layout {

std::array<tensor::StridedBytes, 4> slice_views(const Nvfp4View& view, std::int64_t tp, std::int64_t part) {
  require(malformed(view));
  const auto [n, hidden, whole] = shape_of(view);
  require(cuttable(hidden, whole, tp));
  if (part < 0 || part >= tp) fail(ErrorKind::usage, "slice {} of {}: wanted 0 to {}", part, tp, tp - 1);
  const std::int64_t width = whole / tp;

  // Rows that lie together: one run an expert.
  const auto rows = [&](const tensor::TensorView& t, std::int64_t row_bytes) {
    const std::int64_t run = 2 * width * row_bytes;
    return tensor::StridedBytes{t.bytes.data() + part * run, n, 2 * whole * row_bytes, 1, run, run};
  };
  // A range of columns: one run in each of `lines` lines an expert, which are `whole_bytes` long.
  const auto columns = [&](const tensor::TensorView& t, std::int64_t lines, std::int64_t whole_bytes) {
    const std::int64_t run = whole_bytes / tp;
    return tensor::StridedBytes{t.bytes.data() + part * run, n, lines * whole_bytes, lines, whole_bytes, run};
  };
  return {rows(view.w13, hidden / 2), rows(view.w13_sf, hidden / 16), columns(view.w2, hidden, whole / 2),
          // Every 128-row tile of scales is I/64 k-tiles of 512 bytes.
          columns(view.w2_sf, hidden / 128, whole / 64 * 512)};
}

}  // namespace kerf::layout
