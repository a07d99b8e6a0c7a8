#include "kerf/tools/internal/xor_words.h"

#include <algorithm>
#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/tools/internal/xor_words.cc"
#include <hwy/foreach_target.h>
// clang-format off: these need the line above
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kerf::tools::internal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kLine = 64;
constexpr std::size_t kAhead = 2048;  // bytes between asking for a line and reading it

// Four streams, a quarter of the run each, so that four pages are open at a time and four sums do not wait
// for each other. Each asks for its lines early: what a processor foresees by itself ends at every page.
// (What is asked for beyond the end of a stream is the next one's beginning; behind the last one, 2 KiB of
// half a MiB.)
std::uint64_t xor_words(std::span<const std::byte> bytes) {
  const hn::CappedTag<std::uint64_t, kLine / 8> d;
  const std::size_t step = 8 * hn::Lanes(d);
  const std::size_t part = bytes.size() / 4 / kLine * kLine;
  const std::byte* p = bytes.data();
  auto s0 = hn::Zero(d);
  auto s1 = s0;
  auto s2 = s0;
  auto s3 = s0;
  const auto load = [&](std::size_t at) {
    return hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(p + at));
  };
  const auto ask = [&](std::size_t at) { hwy::Prefetch(p + at + kAhead); };
  for (std::size_t line = 0; line < part; line += kLine) {
    ask(line);
    ask(part + line);
    ask(2 * part + line);
    ask(3 * part + line);
    for (std::size_t at = line; at < line + kLine; at += step) {
      s0 = hn::Xor(s0, load(at));
      s1 = hn::Xor(s1, load(part + at));
      s2 = hn::Xor(s2, load(2 * part + at));
      s3 = hn::Xor(s3, load(3 * part + at));
    }
  }
  std::array<std::uint64_t, kLine / 8> lanes{};
  hn::StoreU(hn::Xor(hn::Xor(s0, s1), hn::Xor(s2, s3)), d, lanes.data());
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum ^= lane;
  for (std::size_t at = 4 * part; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + at, std::min<std::size_t>(8, bytes.size() - at));
    sum ^= word;
  }
  return sum;
}

}  // namespace
}  // namespace kerf::tools::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kerf::tools::internal {

HWY_EXPORT(xor_words);

std::uint64_t xor_words(std::span<const std::byte> bytes) { return HWY_DYNAMIC_DISPATCH(xor_words)(bytes); }

}  // namespace kerf::tools::internal
#endif
