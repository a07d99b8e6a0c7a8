// The scale interleaves of a matrix of any size, with padding.
#include <algorithm>
#include <cstring>

#include "kerf/base/format.h"
#include "kerf/layout/convert.h"
#include "kerf/layout/rows.h"

namespace kerf::layout {

namespace {

using OffsetOf = std::int64_t (*)(std::int64_t m, std::int64_t k, std::int64_t columns);

void interleave(std::span<const std::byte> from, std::int64_t rows, std::int64_t columns,
                std::span<std::byte> to, std::int64_t tile_rows, OffsetOf offset_of) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (rows < 0 || columns < 0 || rows > kMost || columns > kMost)
    fail(ErrorKind::bug, "interleaving scales: a matrix of {} rows, {} columns", rows, columns);
  const std::int64_t padded = (rows + tile_rows - 1) / tile_rows * tile_rows * ((columns + 3) / 4 * 4);
  if (static_cast<std::int64_t>(from.size()) != rows * columns ||
      static_cast<std::int64_t>(to.size()) != padded)
    fail(ErrorKind::bug,
         "interleaving {} x {} scales in tiles of {} rows: {} bytes from, {} wanted; {} bytes to, {} wanted",
         rows, columns, tile_rows, from.size(), rows * columns, to.size(), padded);
  if (rows % tile_rows != 0 || columns % 4 != 0) std::fill(to.begin(), to.end(), std::byte{0});
  for (std::int64_t m = 0; m < rows; ++m) {
    const std::byte* row = from.data() + m * columns;
    for (std::int64_t k = 0; k + 4 <= columns; k += 4)
      std::memcpy(to.data() + offset_of(m, k, columns), row + k, 4);
    if (const std::int64_t k = columns / 4 * 4; k < columns)
      std::memcpy(to.data() + offset_of(m, k, columns), row + k, static_cast<std::size_t>(columns - k));
  }
}

}  // namespace

void interleave_128x4(std::span<const std::byte> from, std::int64_t rows, std::int64_t columns,
                      std::span<std::byte> to) {
  interleave(from, rows, columns, to, 128, scale_offset_128x4);
}

void interleave_8x4(std::span<const std::byte> from, std::int64_t rows, std::int64_t columns,
                    std::span<std::byte> to) {
  interleave(from, rows, columns, to, 8, scale_offset_8x4);
}

}  // namespace kerf::layout
