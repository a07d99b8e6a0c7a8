// How a dot product over K is summed in canonical arithmetic, and how a balanced sum by position is formed.
//
// A segment is 32 blocks, or 512 values of K, and has eight chains. Block b belongs to chain j = b mod 8; a
// chain begins at +0 and takes its blocks one after the other, c_j = fma(d_b, s_b, c_j). The chains are added
// in pairs (segment_sum), and so are the segments: n of them are split into p to the left and n - p to the
// right, with p < n the highest such power of two, and either side is summed by this rule again. Hence a
// slice of K that holds just the segments under one node of this tree sums to the value of that node.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace kerf::numeric {

// Of a segment: chains, blocks, values of K.
inline constexpr int chains = 8;
inline constexpr int blocks_per_segment = 32;
inline constexpr int values_per_segment = 512;

// The sum of a segment's chains.
constexpr float segment_sum(const std::array<float, chains>& c) {
  return ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
}

// How many of n >= 2 terms are to the left: the largest power of two below n.
constexpr std::int64_t terms_to_the_left(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n - 1)));
}

// Whether terms [first, first + count) of n, count >= 1, are just what is under one node of the tree.
constexpr bool is_node(std::int64_t n, std::int64_t first, std::int64_t count) {
  if (first == 0 && count == n) return true;
  if (n < 2) return false;
  const std::int64_t left = terms_to_the_left(n);
  if (first + count <= left) return is_node(left, first, count);
  return first >= left && is_node(n - left, first - left, count);
}

// Whether each of `slices` equal slices of K values is a node, so that the slices' sums, added by the tree's
// own rule for so many terms, are the sum of the whole. That is so for all of them where it is so for the
// first.
constexpr bool slices_are_nodes(std::int64_t values, std::int64_t slices) {
  if (slices == 1) return true;
  if (slices < 1 || values % slices != 0 || values / slices % values_per_segment != 0) return false;
  return is_node(values / values_per_segment, 0, values / slices / values_per_segment);
}

// Adds terms in order and yields their balanced sum, in O(log n) memory: finished subtrees wait on a stack,
// exactly as the bits of a binary counter.
class BalancedSum {
 public:
  // The next term; any number of them.
  constexpr void add(float term) {
    for (std::uint64_t bits = count_++; (bits & 1U) != 0; bits >>= 1) term = stack_[--depth_] + term;
    stack_[depth_++] = term;
  }
  // The sum of all terms added so far; +0 for none. More terms may follow.
  [[nodiscard]] constexpr float sum() const {
    if (depth_ == 0) return 0.0F;
    float total = stack_[depth_ - 1];
    for (int i = depth_ - 2; i >= 0; --i) total = stack_[i] + total;
    return total;
  }

 private:
  std::array<float, 64> stack_{};
  std::uint64_t count_ = 0;
  int depth_ = 0;
};

// The canonical sum of products over blocks: d(b) is the exact block dot, s(b) the product of the two block
// scales.
template <typename Dot, typename Scale>
float canonical_dot(std::int64_t blocks, Dot d, Scale s) {
  BalancedSum tree;
  for (std::int64_t first = 0; first < blocks; first += blocks_per_segment) {
    std::array<float, chains> c{};
    const std::int64_t end = first + blocks_per_segment < blocks ? first + blocks_per_segment : blocks;
    for (std::int64_t b = first; b < end; ++b) {
      float& chain = c[static_cast<std::size_t>(b % chains)];
      chain = std::fma(d(b), s(b), chain);
    }
    tree.add(segment_sum(c));
  }
  return tree.sum();
}

}  // namespace kerf::numeric
