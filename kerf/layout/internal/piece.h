// Conversion cut into pieces of rows, for several workers, and for experts that are read piece by piece.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kerf/layout/convert.h"

namespace kerf::layout::internal {

// One of the two GEMMs' weights.
enum class Gemm : std::uint8_t { w13, w2 };

// Converted rows [first, end) of it; both are multiples of 128 (NVFP4) or 64 (BF16).
struct Piece {
  Gemm gemm = Gemm::w13;
  std::int64_t first = 0;
  std::int64_t end = 0;
};

// The rows of up, and as many of gate, that such rows of w13 are made of begin at first / 2. There may be
// fewer than half of the piece's rows, down to none, where experts of width `intermediate` are padded.
constexpr std::int64_t half_rows(const Piece& piece, std::int64_t intermediate) {
  return std::max<std::int64_t>(0, std::min(piece.end / 2, intermediate) - piece.first / 2);
}

// Converts a piece of one expert: `from` has the rows alone that it is made of (of up and gate, or of down;
// the others are not looked at), `to` is the whole expert.
void convert_piece(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
                   std::int64_t hidden, std::int64_t intermediate, std::int64_t width, const Piece& piece);
void convert_piece(const LogicalBf16<const std::byte>& from, const ConvertedBf16<std::byte>& to,
                   std::int64_t hidden, std::int64_t intermediate, std::int64_t width, const Piece& piece);

// The errors of convert_padded(), for a whole expert.
void check_convert(const LogicalNvfp4<const std::byte>& from, const ConvertedNvfp4<std::byte>& to,
                   std::int64_t hidden, std::int64_t intermediate, std::int64_t width);
void check_convert(const StoredNvfp4& from, const ConvertedNvfp4<std::byte>& to, std::int64_t hidden,
                   std::int64_t intermediate, std::int64_t width);
void check_convert(const LogicalBf16<const std::byte>& from, const ConvertedBf16<std::byte>& to,
                   std::int64_t hidden, std::int64_t intermediate, std::int64_t width);
void check_convert(const StoredBf16& from, const ConvertedBf16<std::byte>& to, std::int64_t hidden,
                   std::int64_t intermediate, std::int64_t width);

}  // namespace kerf::layout::internal
