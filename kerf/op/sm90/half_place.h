// What the GEMMs of 16-bit rows (BF16 and W4A16) read as their second operand, and where values lie in it.
// For each tile of the metadata, bf16 [K/64, tile, 64]: blocks of 64 values of K, a row's 64 together, as
// shared memory is to have them, so that a block comes by one bulk copy. Rows are 128-byte swizzled; and the
// 64 values stand in the order in which the weights' side has its own.
#pragma once

namespace kerf::op::sm90 {

// Place of value k, both of 64, where weights are decoded from NVFP4. Products go over 16 places at a time;
// the thread t (of four) of a weight row holds places 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16. It is to
// decode one block of 16 values, whose scale it then converts once: the codes of one 32-bit word, of which it
// has two, are taken apart in pairs n and n + 4.
constexpr int decoded_place(int k) {
  const int t = k / 16;
  const int word = k % 16 / 8;
  const int pair = k % 4;
  const int high = k % 8 / 4;
  return 16 * (2 * word + pair / 2) + 8 * (pair % 2) + 2 * t + high;
}

// Where place `place` of row `row` lies in a block [tile, 64]: groups of 8 values (16 bytes) are swizzled by
// row.
constexpr int swizzled(int row, int place) { return 64 * row + (place ^ (8 * (row % 8))); }

}  // namespace kerf::op::sm90
