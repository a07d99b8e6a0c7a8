#include "kerf/numeric/e4m3_scan.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/numeric/e4m3_scan.cc"
#include <hwy/foreach_target.h>
// clang-format off: these need the line above
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kerf::numeric::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 2048;  // bytes between asking for a line and looking at it

// Four streams that ask for their lines early, as the plain read does that this is measured against. What
// counts is the largest code, -0 aside: 0x7F and all that is above are no scales.
bool RegularScales(const std::uint8_t* codes, std::size_t n) {
  const hn::CappedTag<std::uint8_t, kLine> d;
  const auto minus_zero = hn::Set(d, std::uint8_t{0x80});
  const auto code = [&](std::size_t at) HWY_ATTR {
    const auto v = hn::LoadU(d, codes + at);
    return hn::IfThenZeroElse(hn::Eq(v, minus_zero), v);
  };
  const std::size_t part = n / 4 / kLine * kLine;
  auto m0 = hn::Zero(d);
  auto m1 = m0;
  auto m2 = m0;
  auto m3 = m0;
  for (std::size_t line = 0; line < part; line += kLine) {
    for (std::size_t stream = 0; stream < 4; ++stream) hwy::Prefetch(codes + stream * part + line + kAhead);
    for (std::size_t at = line; at < line + kLine; at += hn::Lanes(d)) {
      m0 = hn::Max(m0, code(at));
      m1 = hn::Max(m1, code(part + at));
      m2 = hn::Max(m2, code(2 * part + at));
      m3 = hn::Max(m3, code(3 * part + at));
    }
  }
  const auto largest = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
  bool regular = hn::AllFalse(d, hn::Gt(largest, hn::Set(d, std::uint8_t{0x7E})));
  for (std::size_t at = 4 * part; at < n; ++at) regular = regular && regular_scale(codes[at]);
  return regular;
}

}  // namespace
}  // namespace kerf::numeric::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kerf::numeric {

HWY_EXPORT(RegularScales);

bool regular_scales(std::span<const std::uint8_t> codes) {
  return HWY_DYNAMIC_DISPATCH(RegularScales)(codes.data(), codes.size());
}

}  // namespace kerf::numeric

#endif  // HWY_ONCE
