#include "kerf/layout/convert.h"

#include <array>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"
#include "kerf/layout/internal/kernels.h"
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

using internal::kGroup;

// 32 rows from r0, of `blocks` blocks of `bytes` bytes. A row's blocks lie together on the logical side and
// `stride` bytes apart on the converted side, where row r's first block is at r * bytes.
template <typename Rows>
void transfer_group(const Rows& logical, std::byte* converted, std::int64_t r0, std::int64_t bytes,
                    std::int64_t blocks, std::int64_t stride) {
  internal::Pieces pieces{{}, {}, bytes, blocks, bytes, stride};
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::int64_t r = r0 + static_cast<std::int64_t>(i);
    pieces.from[i] = logical(r);
    pieces.to[i] = converted + r * bytes;
  }
  internal::copy_pieces(pieces);
}
template <typename Rows>
void transfer_group(const Rows& logical, const std::byte* converted, std::int64_t r0, std::int64_t bytes,
                    std::int64_t blocks, std::int64_t stride) {
  internal::Pieces pieces{{}, {}, bytes, blocks, stride, bytes};
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::int64_t r = r0 + static_cast<std::int64_t>(i);
    pieces.from[i] = converted + r * bytes;
    pieces.to[i] = logical(r);
  }
  internal::copy_pieces(pieces);
}

// [rows, blocks * bytes] <-> [blocks, rows, bytes], rows permuted. One block is a plain copy of rows.
template <typename Rows, typename T>
void transfer_rows(const Rows& logical, T* converted, std::int64_t rows, std::int64_t bytes,
                   std::int64_t blocks = 1) {
  for (std::int64_t r = 0; r < rows; r += static_cast<std::int64_t>(kGroup))
    transfer_group(logical, converted, r, bytes, blocks, rows * bytes);
}

template <typename Rows>
void weave(const Rows& logical, std::byte* converted, std::int64_t rows, std::int64_t columns) {
  std::array<const std::byte*, 128> tile;
  for (std::int64_t m = 0; m < rows; m += 128) {
    for (std::int64_t r = 0; r < 128; ++r) tile[static_cast<std::size_t>(r)] = logical(m + r);
    const std::int64_t ahead = m + 128 < rows ? logical(m + 128) - logical(m) : 0;
    internal::weave(tile, ahead, columns / 4, converted + m * columns);
  }
}
template <typename Rows>
void weave(const Rows& logical, const std::byte* converted, std::int64_t rows, std::int64_t columns) {
  std::array<std::byte*, 128> tile;
  for (std::int64_t m = 0; m < rows; m += 128) {
    for (std::int64_t r = 0; r < 128; ++r) tile[static_cast<std::size_t>(r)] = logical(m + r);
    internal::unweave(converted + m * columns, m + 128 < rows ? 128 * columns : 0, columns / 4, tile);
  }
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
  weave(W13Rows<L>{logical.up_sf.data(), logical.gate_sf.data(), hidden / 16}, converted.w13_sf.data(),
        2 * intermediate, hidden / 16);
  transfer_rows(W2Rows<L>{logical.down.data(), intermediate / 2}, converted.w2.data(), hidden,
                intermediate / 2);
  weave(W2Rows<L>{logical.down_sf.data(), intermediate / 16}, converted.w2_sf.data(), hidden,
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

template <typename L, typename C>
void transfer_bf16(const LogicalBf16<L>& logical, const ConvertedBf16<C>& converted, std::int64_t hidden,
                   std::int64_t intermediate) {
  require(convertible_bf16(hidden, intermediate));
  const std::int64_t matrix = intermediate * hidden * 2;
  check_sizes({{"gate", logical.gate.size(), matrix},
               {"up", logical.up.size(), matrix},
               {"down", logical.down.size(), matrix},
               {"w13", converted.w13.size(), 2 * matrix},
               {"w2", converted.w2.size(), matrix}});
  transfer_rows(W13Rows<L>{logical.up.data(), logical.gate.data(), hidden * 2}, converted.w13.data(),
                2 * intermediate, kBlockBytes, hidden / 64);
  transfer_rows(W2Rows<L>{logical.down.data(), intermediate * 2}, converted.w2.data(), hidden, kBlockBytes,
                intermediate / 64);
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
