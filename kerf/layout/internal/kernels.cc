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

// Rows are often a power of two apart, so that they compete for a few sets of the first-level cache: what is
// asked for early goes to the second level.
void ask(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

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
    ask(next + i);
    for (std::int64_t v = 0; v < kLine; v += step)
      hn::Stream(load(from + i + v), d, reinterpret_cast<std::uint64_t*>(to + i + v));
  }
  if (i < bytes) copy_few(from + i, to + i, bytes - i);
}

void copy_pieces(const Pieces& p) {
  constexpr std::int64_t kAhead = 4096;  // bytes between asking and copying
  const auto distance = static_cast<std::size_t>(std::clamp<std::int64_t>(kAhead / p.bytes, 1, kGroup));
  for (std::int64_t g = 0; g < p.groups; ++g) {
    for (std::int64_t b = 0; b < p.blocks; ++b) {
      const std::int64_t from = g * p.from_group + b * p.from_step;
      const std::int64_t to = g * p.to_group + b * p.to_step;
      std::int64_t after = from;  // where the 32 pieces after these are
      if (b + 1 < p.blocks)
        after = from + p.from_step;
      else if (g + 1 < p.groups)
        after = (g + 1) * p.from_group;
      for (std::size_t i = 0; i < kGroup; ++i) {
        const std::size_t next = i + distance;
        copy_piece(p.from[i] + from, next < kGroup ? p.from[next] + from : p.from[next - kGroup] + after,
                   p.to[i] + to, p.bytes);
      }
    }
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

// K-tiles in one round of the interleave. A round is put together in the first-level cache and leaves in
// whole lines: stores past the caches are slow where lines are filled in turns.
constexpr std::int64_t kWeaveRound = 4;     // 2 KiB of tiles
constexpr std::int64_t kUnweaveRound = 16;  // a line of every row

void weave(const std::array<const std::byte*, 128>& rows, std::int64_t ahead, std::int64_t k_tiles,
           std::byte* tiles) {
  alignas(kLine) std::array<std::byte, 512 * kWeaveRound> stage;
  for (std::int64_t k = 0, count = 0; k < k_tiles; k += count) {
    count = std::min(kWeaveRound, k_tiles - k);
    // A line of a row lasts 4 rounds; in each of them one row of 4 asks for its next line.
    const std::int64_t line = k / 16 * 16;
    const auto asking = static_cast<std::size_t>((k - line) / 4);
    for (std::size_t r = 0; r < 32; ++r) {
      const std::array<const std::byte*, 4> from = {rows[r] + 4 * k, rows[32 + r] + 4 * k,
                                                    rows[64 + r] + 4 * k, rows[96 + r] + 4 * k};
      ask(rows[32 * asking + r] + 4 * line + ahead);
      std::byte* to = stage.data() + 16 * r;
      if (count == kWeaveRound) {
        transpose(from, {to, to + 512, to + 1024, to + 1536});
        continue;
      }
      for (std::int64_t t = 0; t < count; ++t)
        for (std::size_t g = 0; g < 4; ++g) copy_few(from[g] + 4 * t, to + 512 * t + 4 * g, 4);
    }
    copy_piece(stage.data(), stage.data(), tiles + 512 * k, 512 * count);
  }
}

void unweave(const std::byte* tiles, std::int64_t ahead, std::int64_t k_tiles,
             const std::array<std::byte*, 128>& rows) {
  constexpr std::int64_t kRow = 4 * kUnweaveRound;
  alignas(kLine) std::array<std::byte, 128 * kRow> stage;
  for (std::int64_t k = 0, count = 0; k < k_tiles; k += count) {
    count = std::min(kUnweaveRound, k_tiles - k);
    const std::byte* next = tiles + (k + 2 * kUnweaveRound <= k_tiles ? 512 * (k + kUnweaveRound) : ahead);
    for (std::int64_t r = 0; r < 32; ++r) {
      const std::byte* from = tiles + 512 * k + 16 * r;
      std::byte* to = stage.data() + r * kRow;
      std::int64_t t = 0;
      for (; t + 4 <= count; t += 4) {
        ask(next + (r * 4 + t / 4) * kLine % (512 * count));
        const std::byte* f = from + 512 * t;
        std::byte* s = to + 4 * t;
        transpose({f, f + 512, f + 1024, f + 1536}, {s, s + 32 * kRow, s + 64 * kRow, s + 96 * kRow});
      }
      for (; t < count; ++t)
        for (std::int64_t g = 0; g < 4; ++g) copy_few(from + 512 * t + 4 * g, to + 32 * g * kRow + 4 * t, 4);
    }
    for (std::int64_t row = 0; row < 128; ++row) {
      const std::byte* staged = stage.data() + kRow * row;
      copy_piece(staged, staged, rows[static_cast<std::size_t>(row)] + 4 * k, 4 * count);
    }
  }
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
void unweave(const std::byte* tiles, std::int64_t ahead, std::int64_t k_tiles,
             const std::array<std::byte*, 128>& rows) {
  HWY_DYNAMIC_DISPATCH(unweave)(tiles, ahead, k_tiles, rows);
}
void finish() { hwy::FlushStream(); }

}  // namespace kerf::layout::internal
#endif
