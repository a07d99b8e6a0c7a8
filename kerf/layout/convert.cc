#include "kerf/layout/convert.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"
#include "kerf/layout/internal/kernels.h"
#include "kerf/layout/internal/piece.h"
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

void check_widened(std::int64_t intermediate, std::int64_t width) {
  if (intermediate < 1 || width < intermediate)
    fail(ErrorKind::bug, "experts of width {} padded to {}", intermediate, width);
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
  // From a row to the one that lies 32 converted rows later.
  [[nodiscard]] std::int64_t group_bytes() const { return 16 * row_bytes; }
};
template <typename T>
struct W2Rows {
  T* base;
  std::int64_t row_bytes;
  T* operator()(std::int64_t r) const { return base + w2_source(r) * row_bytes; }
  [[nodiscard]] std::int64_t group_bytes() const { return 32 * row_bytes; }
};

using internal::kGroup;

// Padding. Rows of up and gate from `count` on are one row of zeros.
struct PaddedW13Rows {
  W13Rows<const std::byte> rows;
  std::int64_t count;
  const std::byte* zeros;
  const std::byte* operator()(std::int64_t r) const { return w13_source(r).row < count ? rows(r) : zeros; }
};
// Rows of down are copied, each to one of `slots` places of `width` bytes in turn, whose ends stay zero. So a
// row holds until `slots` more were asked for.
class PaddedW2Rows {
 public:
  PaddedW2Rows(const W2Rows<const std::byte>& rows, std::int64_t width, std::int64_t slots)
      : rows_(rows), width_(width), slots_(slots), places_(static_cast<std::size_t>(width * slots)) {}
  const std::byte* operator()(std::int64_t r) {
    std::byte* place = places_.data() + r % slots_ * width_;
    std::copy_n(rows_(r), rows_.row_bytes, place);
    return place;
  }

 private:
  W2Rows<const std::byte> rows_;
  std::int64_t width_, slots_;
  std::vector<std::byte> places_;
};

using internal::Gemm;
using internal::half_rows;
using internal::Piece;

// Rows [first, end) of the converted side; both are multiples of 32 for rows, of 128 for scales.
struct Range {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

std::size_t size_of(std::span<const std::byte> bytes) { return bytes.size(); }
std::size_t size_of(const tensor::Source& source) { return static_cast<std::size_t>(source.bytes()); }

// What moves: `blocks` blocks of `bytes` bytes a row, which lie together on the logical side and `stride`
// bytes apart on the converted side, where row r's first block is at r * bytes.
struct Blocks {
  std::int64_t bytes = 0;
  std::int64_t blocks = 1;
  std::int64_t stride = 0;
};

// The 32 rows from r0.
template <typename Rows>
internal::Pieces pieces_of(Rows& logical, std::byte* converted, std::int64_t r0, const Blocks& b) {
  internal::Pieces pieces{{}, {}, b.bytes, b.blocks, b.bytes, b.stride};
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::int64_t r = r0 + static_cast<std::int64_t>(i);
    pieces.from[i] = logical(r);
    pieces.to[i] = converted + r * b.bytes;
  }
  return pieces;
}
template <typename Rows>
internal::Pieces pieces_of(Rows& logical, const std::byte* converted, std::int64_t r0, const Blocks& b) {
  internal::Pieces pieces{{}, {}, b.bytes, b.blocks, b.stride, b.bytes};
  for (std::size_t i = 0; i < kGroup; ++i) {
    const std::int64_t r = r0 + static_cast<std::int64_t>(i);
    pieces.from[i] = converted + r * b.bytes;
    pieces.to[i] = logical(r);
  }
  return pieces;
}

// [rows, blocks * bytes] <-> [blocks, rows, bytes], rows permuted, those of the range. One block is a plain
// copy of rows. Where every group of 32 rows is like the one before it, pointers are worked out once: for
// narrow rows that costs as much as copying them.
template <typename Rows, typename T>
void transfer_rows(Rows logical, T* converted, std::int64_t rows, Range range, std::int64_t bytes,
                   std::int64_t blocks = 1) {
  constexpr auto group = static_cast<std::int64_t>(kGroup);
  const Blocks moved{bytes, blocks, rows * bytes};
  if constexpr (requires { logical.group_bytes(); }) {
    internal::Pieces pieces = pieces_of(logical, converted, range.first, moved);
    pieces.groups = (range.end - range.first) / group;
    pieces.from_group = logical.group_bytes();
    pieces.to_group = group * bytes;
    if constexpr (std::is_const_v<T>) std::swap(pieces.from_group, pieces.to_group);
    if (pieces.groups > 0) internal::copy_pieces(pieces);
  } else {
    for (std::int64_t r = range.first; r < range.end; r += group)
      internal::copy_pieces(pieces_of(logical, converted, r, moved));
  }
}

// The 128 rows of a tile of scales, from row m.
template <typename T, typename Rows>
std::array<T*, 128> tile_of(Rows& logical, std::int64_t m) {
  std::array<T*, 128> tile;
  for (std::int64_t r = 0; r < 128; ++r) tile[static_cast<std::size_t>(r)] = logical(m + r);
  return tile;
}

// The same tile for every 128 rows of a range, in turn: where they follow from each other, by an addition.
template <typename T, typename Rows, typename Visit>
void for_each_tile(Rows logical, Range range, Visit visit) {
  if (range.first == range.end) return;
  auto tile = tile_of<T>(logical, range.first);
  for (std::int64_t m = range.first;;) {
    visit(m, tile);
    m += 128;
    if (m == range.end) return;
    if constexpr (requires { logical.group_bytes(); })
      for (T*& row : tile) row += 128 / static_cast<std::int64_t>(kGroup) * logical.group_bytes();
    else
      tile = tile_of<T>(logical, m);
  }
}

// Where tiles follow from each other, what the next one reads can be asked for.
template <typename Rows>
void weave(Rows logical, std::byte* converted, Range range, std::int64_t columns) {
  std::int64_t next = 0;
  if constexpr (requires { logical.group_bytes(); })
    next = 128 / static_cast<std::int64_t>(kGroup) * logical.group_bytes();
  for_each_tile<const std::byte>(logical, range, [&](std::int64_t m, const auto& tile) {
    internal::weave(tile, m + 128 < range.end ? next : 0, columns / 4, converted + m * columns);
  });
}
template <typename Rows>
void weave(const Rows& logical, const std::byte* converted, Range range, std::int64_t columns) {
  for_each_tile<std::byte>(logical, range, [&](std::int64_t m, const auto& tile) {
    internal::unweave(converted + m * columns, m + 128 < range.end ? 128 * columns : 0, columns / 4, tile);
  });
}

template <typename Logical, typename C>
void check_nvfp4(const Logical& logical, const ConvertedNvfp4<C>& converted, std::int64_t hidden,
                 std::int64_t intermediate, std::int64_t width) {
  require(convertible(hidden, width));
  const auto codes = [&](std::int64_t i) { return i * hidden / 2; };  // bytes of one matrix
  const auto scales = [&](std::int64_t i) { return i * hidden / 16; };
  check_sizes({{"gate", size_of(logical.gate), codes(intermediate)},
               {"gate_sf", size_of(logical.gate_sf), scales(intermediate)},
               {"up", size_of(logical.up), codes(intermediate)},
               {"up_sf", size_of(logical.up_sf), scales(intermediate)},
               {"down", size_of(logical.down), codes(intermediate)},
               {"down_sf", size_of(logical.down_sf), scales(intermediate)},
               {"w13", converted.w13.size(), 2 * codes(width)},
               {"w13_sf", converted.w13_sf.size(), 2 * scales(width)},
               {"w2", converted.w2.size(), codes(width)},
               {"w2_sf", converted.w2_sf.size(), scales(width)}});
}

template <typename L, typename C>
void transfer_w13(const LogicalNvfp4<L>& logical, const ConvertedNvfp4<C>& converted, std::int64_t hidden,
                  std::int64_t intermediate, Range range) {
  transfer_rows(W13Rows<L>{logical.up.data(), logical.gate.data(), hidden / 2}, converted.w13.data(),
                2 * intermediate, range, hidden / 2);
  weave(W13Rows<L>{logical.up_sf.data(), logical.gate_sf.data(), hidden / 16}, converted.w13_sf.data(), range,
        hidden / 16);
}
template <typename L, typename C>
void transfer_w2(const LogicalNvfp4<L>& logical, const ConvertedNvfp4<C>& converted, std::int64_t hidden,
                 std::int64_t intermediate, Range range) {
  transfer_rows(W2Rows<L>{logical.down.data(), intermediate / 2}, converted.w2.data(), hidden, range,
                intermediate / 2);
  weave(W2Rows<L>{logical.down_sf.data(), intermediate / 16}, converted.w2_sf.data(), range,
        intermediate / 16);
}

void pad_w13(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
             std::int64_t hidden, std::int64_t intermediate, std::int64_t width, Range range) {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(hidden / 2));  // as long as the longer row
  const auto rows = [&](std::span<const std::byte> up, std::span<const std::byte> gate, std::int64_t bytes) {
    return PaddedW13Rows{{up.data(), gate.data(), bytes}, intermediate, zeros.data()};
  };
  transfer_rows(rows(from.up, from.gate, hidden / 2), to.w13.data(), 2 * width, range, hidden / 2);
  weave(rows(from.up_sf, from.gate_sf, hidden / 16), to.w13_sf.data(), range, hidden / 16);
}
void pad_w2(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
            std::int64_t hidden, std::int64_t intermediate, std::int64_t width, Range range) {
  transfer_rows(PaddedW2Rows({from.down.data(), intermediate / 2}, width / 2, kGroup), to.w2.data(), hidden,
                range, width / 2);
  weave(PaddedW2Rows({from.down_sf.data(), intermediate / 16}, width / 16, 128), to.w2_sf.data(), range,
        width / 16);
}

void convert_rows(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
                  std::int64_t hidden, std::int64_t intermediate, std::int64_t width, Gemm gemm,
                  Range range) {
  const bool padded = width != intermediate;
  if (gemm == Gemm::w13)
    padded ? pad_w13(from, to, hidden, intermediate, width, range)
           : transfer_w13(from, to, hidden, intermediate, range);
  else
    padded ? pad_w2(from, to, hidden, intermediate, width, range)
           : transfer_w2(from, to, hidden, intermediate, range);
  internal::finish();
}

template <typename Logical>
void check_nvfp4_from(const Logical& from, const ConvertedNvfp4<std::byte>& to, std::int64_t hidden,
                      std::int64_t intermediate, std::int64_t width) {
  if (width != intermediate) {
    require(paddable(intermediate));
    check_widened(intermediate, width);
  }
  check_nvfp4(from, to, hidden, intermediate, width);
}

}  // namespace

void internal::check_convert(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
                             std::int64_t hidden, std::int64_t intermediate, std::int64_t width) {
  check_nvfp4_from(from, to, hidden, intermediate, width);
}
void internal::check_convert(const StoredNvfp4& from, const ConvertedNvfp4<std::byte>& to,
                             std::int64_t hidden, std::int64_t intermediate, std::int64_t width) {
  check_nvfp4_from(from, to, hidden, intermediate, width);
}

// A piece is an expert of its own: all permutations stay inside 128 rows, where pieces begin and end.
void internal::convert_piece(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
                             std::int64_t hidden, std::int64_t intermediate, std::int64_t width,
                             const Piece& piece) {
  const std::int64_t rows = piece.end - piece.first;
  const auto part = [&](std::span<std::byte> all, std::int64_t row_bytes) {
    return all.subspan(static_cast<std::size_t>(piece.first * row_bytes),
                       static_cast<std::size_t>(rows * row_bytes));
  };
  if (piece.gemm == Gemm::w13)
    convert_rows(from, {part(to.w13, hidden / 2), part(to.w13_sf, hidden / 16), {}, {}}, hidden,
                 half_rows(piece, intermediate), rows / 2, Gemm::w13, {0, rows});
  else
    convert_rows(from, {{}, {}, part(to.w2, width / 2), part(to.w2_sf, width / 16)}, rows, intermediate,
                 width, Gemm::w2, {0, rows});
}

void convert(const LogicalNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const ConvertedNvfp4<std::byte>& to) {
  convert_padded(from, hidden, intermediate, intermediate, to);
}

void convert_padded(const LogicalNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
                    std::int64_t width, const ConvertedNvfp4<std::byte>& to) {
  internal::check_convert(from, to, hidden, intermediate, width);
  convert_rows(from, to, hidden, intermediate, width, Gemm::w13, {0, 2 * width});
  convert_rows(from, to, hidden, intermediate, width, Gemm::w2, {0, hidden});
}

void restore(const ConvertedNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalNvfp4<std::byte>& to) {
  check_nvfp4(to, from, hidden, intermediate, intermediate);
  transfer_w13(to, from, hidden, intermediate, {0, 2 * intermediate});
  transfer_w2(to, from, hidden, intermediate, {0, hidden});
  internal::finish();
}

namespace {

constexpr std::int64_t kBlockBytes = 128;  // 64 values of one row: the block of the block-major layout

template <typename Logical, typename C>
void check_bf16(const Logical& logical, const ConvertedBf16<C>& converted, std::int64_t hidden,
                std::int64_t intermediate, std::int64_t width) {
  require(convertible_bf16(hidden, width));
  const std::int64_t matrix = intermediate * hidden * 2;
  check_sizes({{"gate", size_of(logical.gate), matrix},
               {"up", size_of(logical.up), matrix},
               {"down", size_of(logical.down), matrix},
               {"w13", converted.w13.size(), 2 * width * hidden * 2},
               {"w2", converted.w2.size(), width * hidden * 2}});
}

// Here and below: blocks of one row are as far apart as `rows` rows, all of the converted matrix, are long.
template <typename L, typename C>
void transfer_w13(const LogicalBf16<L>& logical, C* w13, std::int64_t hidden, std::int64_t rows,
                  Range range) {
  transfer_rows(W13Rows<L>{logical.up.data(), logical.gate.data(), hidden * 2}, w13, rows, range, kBlockBytes,
                hidden / 64);
}
template <typename L, typename C>
void transfer_w2(const LogicalBf16<L>& logical, C* w2, std::int64_t intermediate, std::int64_t rows,
                 Range range) {
  transfer_rows(W2Rows<L>{logical.down.data(), intermediate * 2}, w2, rows, range, kBlockBytes,
                intermediate / 64);
}

// Rows of w13 that have `count` rows of up and gate to come from, into `w13`, where the first of them lies.
void convert_w13(const LogicalBf16<const std::byte>& from, std::byte* w13, std::int64_t hidden,
                 std::int64_t count, std::int64_t rows, Range range) {
  if (2 * count == range.end) {
    transfer_w13(from, w13, hidden, rows, range);
  } else {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(hidden * 2));
    transfer_rows(PaddedW13Rows{{from.up.data(), from.gate.data(), hidden * 2}, count, zeros.data()}, w13,
                  rows, range, kBlockBytes, hidden / 64);
  }
  internal::finish();
}
void convert_w2(const LogicalBf16<const std::byte>& from, std::byte* w2, std::int64_t intermediate,
                std::int64_t width, std::int64_t rows, Range range) {
  if (width == intermediate)
    transfer_w2(from, w2, intermediate, rows, range);
  else
    transfer_rows(PaddedW2Rows({from.down.data(), intermediate * 2}, width * 2, kGroup), w2, rows, range,
                  kBlockBytes, width / 64);
  internal::finish();
}

template <typename Logical>
void check_bf16_from(const Logical& from, const ConvertedBf16<std::byte>& to, std::int64_t hidden,
                     std::int64_t intermediate, std::int64_t width) {
  if (width != intermediate) check_widened(intermediate, width);
  check_bf16(from, to, hidden, intermediate, width);
}

}  // namespace

void internal::check_convert(const LogicalBf16<const std::byte>& from, const ConvertedBf16<std::byte>& to,
                             std::int64_t hidden, std::int64_t intermediate, std::int64_t width) {
  check_bf16_from(from, to, hidden, intermediate, width);
}
void internal::check_convert(const StoredBf16& from, const ConvertedBf16<std::byte>& to, std::int64_t hidden,
                             std::int64_t intermediate, std::int64_t width) {
  check_bf16_from(from, to, hidden, intermediate, width);
}

void internal::convert_piece(const LogicalBf16<const std::byte>& from, const ConvertedBf16<std::byte>& to,
                             std::int64_t hidden, std::int64_t intermediate, std::int64_t width,
                             const Piece& piece) {
  const Range rows{0, piece.end - piece.first};
  const std::int64_t first = piece.first * kBlockBytes;
  if (piece.gemm == Gemm::w13)
    convert_w13(from, to.w13.data() + first, hidden, half_rows(piece, intermediate), 2 * width, rows);
  else
    convert_w2(from, to.w2.data() + first, intermediate, width, hidden, rows);
}

void convert(const LogicalBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const ConvertedBf16<std::byte>& to) {
  convert_padded(from, hidden, intermediate, intermediate, to);
}

void convert_padded(const LogicalBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
                    std::int64_t width, const ConvertedBf16<std::byte>& to) {
  internal::check_convert(from, to, hidden, intermediate, width);
  convert_w13(from, to.w13.data(), hidden, intermediate, 2 * width, {0, 2 * width});
  convert_w2(from, to.w2.data(), intermediate, width, hidden, {0, hidden});
}

void restore(const ConvertedBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalBf16<std::byte>& to) {
  check_bf16(to, from, hidden, intermediate, intermediate);
  transfer_w13(to, from.w13.data(), hidden, 2 * intermediate, {0, 2 * intermediate});
  transfer_w2(to, from.w2.data(), intermediate, hidden, {0, hidden});
  internal::finish();
}

}  // namespace kerf::layout
