#include "bench/stream_copy.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/stream_copy.cc"
#include <hwy/foreach_target.h>
// clang-format off: these need the line above
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kerf::bench::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void stream(const std::byte* from, std::byte* to, std::size_t bytes) {
  constexpr std::size_t line = 64;
  constexpr std::size_t ahead = 4096;
  const hn::CappedTag<std::uint64_t, line / 8> d;
  for (std::size_t i = 0; i < bytes; i += line) {
    __builtin_prefetch(from + i + ahead, 0, 2);
    for (std::size_t v = 0; v < line; v += 8 * hn::Lanes(d))
      hn::Stream(hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(from + i + v)), d,
                 reinterpret_cast<std::uint64_t*>(to + i + v));
  }
  hwy::FlushStream();
}

}  // namespace
}  // namespace kerf::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kerf::bench {

HWY_EXPORT(stream);
void stream_copy(const std::byte* from, std::byte* to, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(stream)(from, to, bytes);
}

}  // namespace kerf::bench
#endif
