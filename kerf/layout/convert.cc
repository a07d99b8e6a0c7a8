#include "kerf/layout/convert.h"

#include <algorithm>
#include <array>
#include <vector>

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
};
template <typename T>
struct W2Rows {
  T* base;
  std::int64_t row_bytes;
  T* operator()(std::int64_t r) const { return base + w2_source(r) * row_bytes; }
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

// 32 rows from r0, of `blocks` blocks of `bytes` bytes. A row's blocks lie together on the logical side and
// `stride` bytes apart on the converted side, where row r's first block is at r * bytes.
template <typename Rows>
void transfer_group(Rows& logical, std::byte* converted, std::int64_t r0, std::int64_t bytes,
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
void transfer_group(Rows& logical, const std::byte* converted, std::int64_t r0, std::int64_t bytes,
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
void transfer_rows(Rows logical, T* converted, std::int64_t rows, std::int64_t bytes,
                   std::int64_t blocks = 1) {
  for (std::int64_t r = 0; r < rows; r += static_cast<std::int64_t>(kGroup))
    transfer_group(logical, converted, r, bytes, blocks, rows * bytes);
}

// `foreseen`: rows lie at equal distances, so that what the next tile reads can be asked for.
template <typename Rows>
void weave(Rows logical, std::byte* converted, std::int64_t rows, std::int64_t columns,
           bool foreseen = true) {
  std::array<const std::byte*, 128> tile;
  for (std::int64_t m = 0; m < rows; m += 128) {
    for (std::int64_t r = 0; r < 128; ++r) tile[static_cast<std::size_t>(r)] = logical(m + r);
    const std::int64_t ahead = foreseen && m + 128 < rows ? logical(m + 128) - logical(m) : 0;
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
void check_nvfp4(const LogicalNvfp4<L>& logical, const ConvertedNvfp4<C>& converted, std::int64_t hidden,
                 std::int64_t intermediate, std::int64_t width) {
  require(convertible(hidden, width));
  const auto codes = [&](std::int64_t i) { return i * hidden / 2; };  // bytes of one matrix
  const auto scales = [&](std::int64_t i) { return i * hidden / 16; };
  check_sizes({{"gate", logical.gate.size(), codes(intermediate)},
               {"gate_sf", logical.gate_sf.size(), scales(intermediate)},
               {"up", logical.up.size(), codes(intermediate)},
               {"up_sf", logical.up_sf.size(), scales(intermediate)},
               {"down", logical.down.size(), codes(intermediate)},
               {"down_sf", logical.down_sf.size(), scales(intermediate)},
               {"w13", converted.w13.size(), 2 * codes(width)},
               {"w13_sf", converted.w13_sf.size(), 2 * scales(width)},
               {"w2", converted.w2.size(), codes(width)},
               {"w2_sf", converted.w2_sf.size(), scales(width)}});
}

template <typename L, typename C>
void transfer_nvfp4(const LogicalNvfp4<L>& logical, const ConvertedNvfp4<C>& converted, std::int64_t hidden,
                    std::int64_t intermediate) {
  check_nvfp4(logical, converted, hidden, intermediate, intermediate);
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

void convert_padded(const LogicalNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
                    std::int64_t width, const ConvertedNvfp4<std::byte>& to) {
  if (width == intermediate) return convert(from, hidden, intermediate, to);
  require(paddable(intermediate));
  check_widened(intermediate, width);
  check_nvfp4(from, to, hidden, intermediate, width);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(hidden / 2));  // as long as the longer row
  const auto w13 = [&](std::span<const std::byte> up, std::span<const std::byte> gate, std::int64_t bytes) {
    return PaddedW13Rows{{up.data(), gate.data(), bytes}, intermediate, zeros.data()};
  };
  transfer_rows(w13(from.up, from.gate, hidden / 2), to.w13.data(), 2 * width, hidden / 2);
  weave(w13(from.up_sf, from.gate_sf, hidden / 16), to.w13_sf.data(), 2 * width, hidden / 16, false);
  transfer_rows(PaddedW2Rows({from.down.data(), intermediate / 2}, width / 2, kGroup), to.w2.data(), hidden,
                width / 2);
  weave(PaddedW2Rows({from.down_sf.data(), intermediate / 16}, width / 16, 128), to.w2_sf.data(), hidden,
        width / 16, false);
  internal::finish();
}

void restore(const ConvertedNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalNvfp4<std::byte>& to) {
  transfer_nvfp4(to, from, hidden, intermediate);
}

namespace {

constexpr std::int64_t kBlockBytes = 128;  // 64 values of one row: the block of the block-major layout

template <typename L, typename C>
void check_bf16(const LogicalBf16<L>& logical, const ConvertedBf16<C>& converted, std::int64_t hidden,
                std::int64_t intermediate, std::int64_t width) {
  require(convertible_bf16(hidden, width));
  const std::int64_t matrix = intermediate * hidden * 2;
  check_sizes({{"gate", logical.gate.size(), matrix},
               {"up", logical.up.size(), matrix},
               {"down", logical.down.size(), matrix},
               {"w13", converted.w13.size(), 2 * width * hidden * 2},
               {"w2", converted.w2.size(), width * hidden * 2}});
}

template <typename L, typename C>
void transfer_bf16(const LogicalBf16<L>& logical, const ConvertedBf16<C>& converted, std::int64_t hidden,
                   std::int64_t intermediate) {
  check_bf16(logical, converted, hidden, intermediate, intermediate);
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

void convert_padded(const LogicalBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
                    std::int64_t width, const ConvertedBf16<std::byte>& to) {
  if (width == intermediate) return convert(from, hidden, intermediate, to);
  check_widened(intermediate, width);
  check_bf16(from, to, hidden, intermediate, width);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(hidden * 2));
  transfer_rows(PaddedW13Rows{{from.up.data(), from.gate.data(), hidden * 2}, intermediate, zeros.data()},
                to.w13.data(), 2 * width, kBlockBytes, hidden / 64);
  transfer_rows(PaddedW2Rows({from.down.data(), intermediate * 2}, width * 2, kGroup), to.w2.data(), hidden,
                kBlockBytes, width / 64);
  internal::finish();
}

void restore(const ConvertedBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalBf16<std::byte>& to) {
  transfer_bf16(to, from, hidden, intermediate);
}

}  // namespace kerf::layout
