#include "kerf/layout/internal/kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kerf/layout/internal/kernels.cc"
#include <hwy/foreach_target.h>
// clang-format off: these need the line above
#include <hwy/cache_control.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace kerf::layout::internal::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kLine = 64;

// Bytes from `p` to the next line.
std::int64_t to_next_line(const std::byte* p) {
  return (kLine - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p) % kLine)) % kLine;
}

void copy_few(const std::byte* from, std::byte* to, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// One piece; `next` is what will be copied a little later, in an order that no hardware foresees.
void copy_piece(const std::byte* from, const std::byte* next, std::byte* to, std::int64_t bytes) {
  const hn::CappedTag<std::uint64_t, kLine / 8> d;
  const auto step = static_cast<std::int64_t>(8 * hn::Lanes(d));
  const auto load = [&](const std::byte* p) {
    return hn::LoadU(d, reinterpret_cast<const std::uint64_t*>(p));
  };
  std::int64_t i = std::min(bytes, to_next_line(to));
  if (i > 0) copy_few(from, to, i);
  for (; i + kLine <= bytes; i += kLine) {
    hwy::Prefetch(next + i);
    for (std::int64_t v = 0; v < kLine; v += step)
      hn::Stream(load(from + i + v), d, reinterpret_cast<std::uint64_t*>(to + i + v));
  }
  if (i < bytes) copy_few(from + i, to + i, bytes - i);
}

void copy_pieces(const Pieces& p) {
  constexpr std::int64_t kAhead = 2048;  // bytes between asking and copying
  const auto group = static_cast<std::int64_t>(kGroup);
  const std::int64_t distance = std::max<std::int64_t>(1, kAhead / p.bytes);
  for (std::int64_t at = 0; at < group * p.blocks; ++at) {
    const auto from = [&](std::int64_t n) {
      return p.from[static_cast<std::size_t>(n % group)] + n / group * p.from_step;
    };
    const std::int64_t later = std::min(at + distance, group * p.blocks - 1);
    copy_piece(from(at), from(later), p.to[static_cast<std::size_t>(at % group)] + at / group * p.to_step,
               p.bytes);
  }
}

// 4 x 4 transpose of 32-bit words, a 16-byte piece a row: turns 4 rows of 4 scale groups into 4 k-tiles of 4
// rows, and back.
#if HWY_TARGET == HWY_SCALAR
void transpose(const std::array<const std::byte*, 4>& from, const std::array<std::byte*, 4>& to) {
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j) copy_few(from[i] + 4 * j, to[j] + 4 * i, 4);
}
#else
void transpose(const std::array<const std::byte*, 4>& from, const std::array<std::byte*, 4>& to) {
  const hn::Full128<std::uint32_t> d;
  const auto load = [&](const std::byte* p) {
    return hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(p));
  };
  const auto store = [&](auto v, std::byte* p) { hn::StoreU(v, d, reinterpret_cast<std::uint32_t*>(p)); };
  const auto r0 = load(from[0]);
  const auto r1 = load(from[1]);
  const auto r2 = load(from[2]);
  const auto r3 = load(from[3]);
  const auto low02 = hn::InterleaveLower(d, r0, r2);
  const auto low13 = hn::InterleaveLower(d, r1, r3);
  const auto high02 = hn::InterleaveUpper(d, r0, r2);
  const auto high13 = hn::InterleaveUpper(d, r1, r3);
  store(hn::InterleaveLower(d, low02, low13), to[0]);
  store(hn::InterleaveUpper(d, low02, low13), to[1]);
  store(hn::InterleaveLower(d, high02, high13), to[2]);
  store(hn::InterleaveUpper(d, high02, high13), to[3]);
}
#endif

void weave(const std::array<const std::byte*, 128>& rows, std::int64_t ahead, std::int64_t k_tiles,
           std::byte* tiles) {
  std::int64_t k = 0;
  for (; k + 4 <= k_tiles; k += 4)
    for (std::size_t r = 0; r < 32; ++r) {
      std::array<const std::byte*, 4> from;
      std::array<std::byte*, 4> to;
      for (std::size_t g = 0; g < 4; ++g) {
        from[g] = rows[32 * g + r] + 4 * k;
        to[g] = tiles + 512 * (k + static_cast<std::int64_t>(g)) + 16 * r;
        if (k % 16 == 0) hwy::Prefetch(from[g] + ahead);
      }
      transpose(from, to);
    }
  for (; k < k_tiles; ++k)
    for (std::size_t r = 0; r < 32; ++r)
      for (std::size_t g = 0; g < 4; ++g)
        copy_few(rows[32 * g + r] + 4 * k, tiles + 512 * k + 16 * r + 4 * g, 4);
}

void unweave(const std::byte* tiles, std::int64_t k_tiles, const std::array<std::byte*, 128>& rows) {
  std::int64_t k = 0;
  for (; k + 4 <= k_tiles; k += 4)
    for (std::size_t r = 0; r < 32; ++r) {
      std::array<const std::byte*, 4> from;
      std::array<std::byte*, 4> to;
      for (std::size_t g = 0; g < 4; ++g) {
        from[g] = tiles + 512 * (k + static_cast<std::int64_t>(g)) + 16 * r;
        to[g] = rows[32 * g + r] + 4 * k;
      }
      transpose(from, to);
    }
  for (; k < k_tiles; ++k)
    for (std::size_t r = 0; r < 32; ++r)
      for (std::size_t g = 0; g < 4; ++g)
        copy_few(tiles + 512 * k + 16 * r + 4 * g, rows[32 * g + r] + 4 * k, 4);
}

}  // namespace
}  // namespace kerf::layout::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kerf::layout::internal {

HWY_EXPORT(copy_pieces);
HWY_EXPORT(weave);
HWY_EXPORT(unweave);

void copy_pieces(const Pieces& pieces) { HWY_DYNAMIC_DISPATCH(copy_pieces)(pieces); }
void weave(const std::array<const std::byte*, 128>& rows, std::int64_t ahead, std::int64_t k_tiles,
           std::byte* tiles) {
  HWY_DYNAMIC_DISPATCH(weave)(rows, ahead, k_tiles, tiles);
}
void unweave(const std::byte* tiles, std::int64_t k_tiles, const std::array<std::byte*, 128>& rows) {
  HWY_DYNAMIC_DISPATCH(unweave)(tiles, k_tiles, rows);
}
void finish() { hwy::FlushStream(); }

}  // namespace kerf::layout::internal
#endif
