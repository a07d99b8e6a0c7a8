// A part of a strided block's packed form, as copies of rows that lie at one distance from each other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kerf/tensor/view.h"

namespace kerf::comm::nccl {

// Copy `rows` rows of `width` bytes, `pitch` apart in the block, to adjoining rows.
struct Piece {
  std::int64_t from = 0;  // bytes behind the block's base
  std::int64_t pitch = 0;
  std::int64_t width = 0;
  std::int64_t rows = 0;
  std::int64_t to = 0;  // bytes behind the part's beginning
};

// Visits the pieces that make bytes [first, first + count) of the block's packed form, in order.
template <typename Visit>
void for_each_piece(const tensor::StridedBytes& block, std::int64_t first, std::int64_t count, Visit visit) {
  const std::int64_t end = first + count;
  for (std::int64_t at = first; at < end;) {
    const std::int64_t run = at / block.run_bytes;
    const std::int64_t inside = at % block.run_bytes;
    const std::int64_t in_plane = run % block.runs;
    Piece piece;
    piece.from = run / block.runs * block.plane_stride + in_plane * block.run_stride + inside;
    piece.to = at - first;
    if (inside != 0 || end - at < block.run_bytes) {
      piece.rows = 1;
      piece.width = piece.pitch = std::min(block.run_bytes - inside, end - at);
    } else {
      piece.rows = std::min((end - at) / block.run_bytes, block.runs - in_plane);
      piece.width = block.run_bytes;
      piece.pitch = piece.rows > 1 ? block.run_stride : piece.width;
    }
    visit(piece);
    at += piece.rows * piece.width;
  }
}

}  // namespace kerf::comm::nccl
