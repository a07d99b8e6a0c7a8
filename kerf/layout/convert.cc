#include "kerf/layout/convert.h"

#include <array>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"
#include "kerf/layout/internal/transfer.h"
#include "kerf/layout/rows.h"

namespace kerf::layout {

namespace {

// One span and the number of bytes it must have.
struct Sized {
  const char* name;
  std::size_t got;
  std::int64_t wanted;
};

void check_sizes(std::initializer_list<Sized> spans) {
  for (const Sized& s : spans)
    if (static_cast<std::int64_t>(s.got) != s.wanted)
      fail(ErrorKind::bug, "converting one expert: {} has {} bytes, {} wanted", s.name, s.got, s.wanted);
}

// The logical row that converted row r of w13 (w2) holds; T is the constness, and with it the direction.
template <typename T>
struct W13Rows {
  T* up;
  T* gate;
  std::int64_t row_bytes;
  T* operator()(std::int64_t r) const {
    const W13Row source = w13_source(r);
    return (source.half == Half::up ? up : gate) + source.row * row_bytes;
  }
};
template <typename T>
struct W2Rows {
  T* base;
  std::int64_t row_bytes;
  T* operator()(std::int64_t r) const { return base + w2_source(r) * row_bytes; }
};

template <typename Rows, typename T>
void transfer_rows(const Rows& logical, T* converted, std::int64_t rows, std::int64_t row_bytes) {
  for (std::int64_t r = 0; r < rows; ++r)
    internal::transfer(logical(r), converted + r * row_bytes, row_bytes);
}

// Whole 128-row tiles of whole 4-column k-tiles.
template <typename Rows, typename T>
void transfer_scales(const Rows& logical, T* converted, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t m = 0; m < rows; m += 128)
    internal::weave_tile(logical, m, converted + m * columns, columns / 4);
}

template <typename L, typename C>
void transfer_nvfp4(const LogicalNvfp4<L>& logical, const ConvertedNvfp4<C>& converted, std::int64_t hidden,
                    std::int64_t intermediate) {
  require(convertible(hidden, intermediate));
  const std::int64_t matrix = intermediate * hidden / 2;  // code bytes of one matrix
  const std::int64_t scales = intermediate * hidden / 16;
  check_sizes({{"gate", logical.gate.size(), matrix},
               {"gate_sf", logical.gate_sf.size(), scales},
               {"up", logical.up.size(), matrix},
               {"up_sf", logical.up_sf.size(), scales},
               {"down", logical.down.size(), matrix},
               {"down_sf", logical.down_sf.size(), scales},
               {"w13", converted.w13.size(), 2 * matrix},
               {"w13_sf", converted.w13_sf.size(), 2 * scales},
               {"w2", converted.w2.size(), matrix},
               {"w2_sf", converted.w2_sf.size(), scales}});
  transfer_rows(W13Rows<L>{logical.up.data(), logical.gate.data(), hidden / 2}, converted.w13.data(),
                2 * intermediate, hidden / 2);
  transfer_scales(W13Rows<L>{logical.up_sf.data(), logical.gate_sf.data(), hidden / 16},
                  converted.w13_sf.data(), 2 * intermediate, hidden / 16);
  transfer_rows(W2Rows<L>{logical.down.data(), intermediate / 2}, converted.w2.data(), hidden,
                intermediate / 2);
  transfer_scales(W2Rows<L>{logical.down_sf.data(), intermediate / 16}, converted.w2_sf.data(), hidden,
                  intermediate / 16);
  internal::finish();
}

}  // namespace

void convert(const LogicalNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const ConvertedNvfp4<std::byte>& to) {
  transfer_nvfp4(from, to, hidden, intermediate);
}

void restore(const ConvertedNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalNvfp4<std::byte>& to) {
  transfer_nvfp4(to, from, hidden, intermediate);
}

namespace {

constexpr std::int64_t kBlockBytes = 128;  // 64 values of one row: the block of the block-major layout
constexpr std::int64_t kGroup = 32;        // rows among which the permutation stays

// [rows, columns] BF16 <-> [columns/64, rows, 64]. A group of 32 rows at a time: it is read from a few
// contiguous pieces, stays in a cache, and every one of its blocks is 4 KiB that lie together.
template <typename Rows, typename T>
void transfer_blocks(const Rows& logical, T* converted, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += kGroup)
    for (std::int64_t k = 0; k < columns / 64; ++k) {
      T* block = converted + (k * rows + r0) * kBlockBytes;
      for (std::int64_t r = 0; r < kGroup; ++r)
        internal::transfer(logical(r0 + r) + k * kBlockBytes, block + r * kBlockBytes, kBlockBytes);
    }
}

template <typename L, typename C>
void transfer_bf16(const LogicalBf16<L>& logical, const ConvertedBf16<C>& converted, std::int64_t hidden,
                   std::int64_t intermediate) {
  if (hidden < 1 || hidden % 64 != 0 || intermediate < 1 || intermediate % 64 != 0)
    fail(ErrorKind::unsupported,
         "BF16 experts of hidden {} x intermediate {} do not fit the layout: both must be positive multiples "
         "of "
         "64",
         hidden, intermediate);
  const std::int64_t matrix = intermediate * hidden * 2;
  check_sizes({{"gate", logical.gate.size(), matrix},
               {"up", logical.up.size(), matrix},
               {"down", logical.down.size(), matrix},
               {"w13", converted.w13.size(), 2 * matrix},
               {"w2", converted.w2.size(), matrix}});
  transfer_blocks(W13Rows<L>{logical.up.data(), logical.gate.data(), hidden * 2}, converted.w13.data(),
                  2 * intermediate, hidden);
  transfer_blocks(W2Rows<L>{logical.down.data(), intermediate * 2}, converted.w2.data(), hidden,
                  intermediate);
  internal::finish();
}

}  // namespace

void convert(const LogicalBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const ConvertedBf16<std::byte>& to) {
  transfer_bf16(from, to, hidden, intermediate);
}

void restore(const ConvertedBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalBf16<std::byte>& to) {
  transfer_bf16(to, from, hidden, intermediate);
}

}  // namespace kerf::layout
