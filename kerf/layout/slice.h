// The cut. Cutting converted experts gives the very bytes that converting cut ones gives: a slice is a run of
// rows in w13 and its scales, a range of columns in w2, and a range of 512-byte tiles along K in w2's scales,
// once for each 128 rows.
#pragma once

#include <array>
#include <cstdint>

#include "kerf/layout/experts.h"
#include "kerf/layout/geometry.h"
#include "kerf/tensor/view.h"

#pragma GCC visibility push(default)
namespace kerf::layout {

// The four weight tensors.
enum class Nvfp4Kind : std::uint8_t { w13 = 0, w13_sf = 1, w2 = 2, w2_sf = 3 };
inline constexpr std::array<const char*, 4> nvfp4_kind_names = {"w13", "w13_sf", "w2", "w2_sf"};

// Views of slice `part` of `tp` of every expert held, one a tensor kind (indexed by Nvfp4Kind), no copy.
// Packed, each is the final tensor of the slice: [n, 2I', H/2], [n, 2I', H/16], [n, H, I'/2], [n, H, I'/16].
// `view` must not be malformed() and (H, I, tp) must be cuttable(), with slices that differ where `uneven`
// allows it: otherwise their reason is thrown. Error{usage} for a part that is not in [0, tp). They point
// into the view's tensors.
std::array<tensor::StridedBytes, 4> slice_views(const Nvfp4View& view, std::int64_t tp, std::int64_t part,
                                                bool uneven = false);

}  // namespace kerf::layout
#pragma GCC visibility pop
