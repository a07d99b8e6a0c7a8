// Which shapes the converted layout can hold, and which cuts of it move bytes only. Sizes are counted in
// elements; H and I are the experts' `hidden` and `intermediate` width, of 2^30 at most. The intermediate
// width is counted in tiles of 64, which no cut divides. A width that does not fit as it is may be made to
// (Fit), if that is asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "kerf/base/error.h"

#pragma GCC visibility push(default)
namespace kerf::layout {

// What may be done about an intermediate width that does not fit.
struct Fit {
  bool uneven = false;  // --uneven: slices may differ by one tile
  bool pad = false;     // --pad: zeros are added up to the next width that fits
};

// The width at which experts of I are converted that will be cut tp ways: I itself, or where zeros are
// allowed the next multiple of 64 * tp (of 64, where slices may be uneven). I, tp >= 1.
std::int64_t converted_width(std::int64_t intermediate, std::int64_t tp, const Fit& fit);

// The intermediate indices [first, first + width) of one slice.
struct Slice {
  std::int64_t first = 0;
  std::int64_t width = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
};
// Slice `part` of `tp`: the tiles of a converted width shared out as evenly as they go, the first slices one
// tile wider where tp does not divide them. Slice 0 is the widest. The width is a multiple of 64, 0 <= part <
// tp <= width / 64: unchecked, cuttable() says so.
Slice slice_of(std::int64_t width, std::int64_t tp, std::int64_t part);

// Nothing where NVFP4 experts of H x I can be converted: H % 128 == 0 and I % 64 == 0, both positive. The
// reason (unsupported, as below) names H, I or both.
Verdict convertible(std::int64_t hidden, std::int64_t intermediate);

// The same for BF16 experts: H % 64 == 0 and I % 64 == 0.
Verdict convertible_bf16(std::int64_t hidden, std::int64_t intermediate);

// Every tp >= 1 for which I / tp is a whole multiple of 64, ascending. Empty where I itself is none.
std::vector<std::int64_t> legal_tp(std::int64_t intermediate);

// Every ep >= 1 that E experts can be placed over whole, ascending: the divisors of E. Empty for E < 1.
std::vector<std::int64_t> legal_ep(std::int64_t experts);

// Nothing where experts can be cut tp ways by moving bytes: convertible, tp divides I, I / tp % 64 == 0; with
// fit.uneven, tp <= I / 64 instead; with fit.pad, I is the width after padding, I % 16 == 0. tp < 1 is a
// usage error. The reason gives the slice's width, why it fails, the legal tp, and --uneven or --pad where
// that would help.
Verdict cuttable(std::int64_t hidden, std::int64_t intermediate, std::int64_t tp, const Fit& fit = {});

// Nothing where experts of an intermediate width can be padded: it is made of whole scale groups, I % 16 == 0
// (NVFP4; BF16 experts have none).
Verdict paddable(std::int64_t intermediate);

// Nothing where E experts can be placed whole over ep ranks (E % ep == 0); ep < 1, and an E that is not 1 to
// 2^30, is a usage error. The reason lists the legal ep.
Verdict placeable(std::int64_t experts, std::int64_t ep);

}  // namespace kerf::layout
#pragma GCC visibility pop
