// Dots of a 128-row tile of NVFP4 weights in canonical order, from the pieces of one instruction set.
// Included by kernels.cc, once per target: on purpose without a guard.
//
// A tile is taken as eight sets of 16 rows, so that scales are read along the 128x4 tiles, whole cache lines,
// and a segment of K at a time, so that one reduction serves all 16 rows. While a set is worked on, the same
// bytes of the next one are asked for: a step reads every weight once, and the hardware's own prefetch does
// not follow rows across their ends.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

inline constexpr int kUnits = 16 / kRowsAUnit;  // of a set
inline constexpr int kSegmentChunks = 4;

// How many sets ahead bytes are asked for: a memory access takes as long as reading some KiB does, and the
// sets of short rows are small.
HWY_INLINE int Lead(std::int64_t k) { return k >= 1024 ? 1 : k >= 512 ? 2 : k >= 256 ? 4 : 8; }

// numeric::BalancedSum for sixteen rows of each of Count token rows.
template <int Count>
struct SegmentTree {
  Sixteen level[24][Count];
  std::uint64_t count = 0;
  int depth = 0;

  // Where the sums of the next segment go; then close it.
  HWY_INLINE Sixteen* Top() { return level[depth]; }
  HWY_INLINE void Close() {
    for (std::uint64_t bits = count++; (bits & 1U) != 0; bits >>= 1) {
      --depth;
      for (int t = 0; t < Count; ++t) level[depth][t] = Add(level[depth][t], level[depth + 1][t]);
    }
    ++depth;
  }
  HWY_INLINE Sixteen Sum(int t) const {
    Sixteen total = level[depth - 1][t];
    for (int i = depth - 2; i >= 0; --i) total = Add(level[i][t], total);
    return total;
  }
};

// A set's bytes within one segment: where its codes and scales are, and those of the next set.
struct Window {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t row_bytes;
  const std::uint8_t* next_codes;
  const std::uint8_t* next_scales;
  std::int64_t next_row_bytes;
};

// Asks for the bytes that a unit of the next set reads of a chunk.
HWY_INLINE void AskFor(const Window& w, int chunk, int u) {
  for (int r = 0; r < kRowsAUnit; ++r)
    __builtin_prefetch(w.next_codes + 64 * chunk + RowOf(kRowsAUnit * u + r) * w.next_row_bytes, 0, 2);
}

// The chain sums of a set over a segment of `whole` chunks (a constant where it can be, so that the loop is
// unrolled) and, where `half`, half a chunk.
template <int Count, typename X, typename Int>
HWY_INLINE void SegmentOf(const Window& w, const X* const* x, Int whole, bool half, Sixteen* out) {
  alignas(64) std::uint16_t unpacked[kSegmentChunks][128];
  const int chunks = whole + (half ? 1 : 0);
  for (int c = 0; c < chunks; ++c) {
    UnpackScales(w.scales + 1024 * c, c == whole, unpacked[c]);  // two k-tiles
    __builtin_prefetch(w.next_scales + 1024 * c, 0, 2);
    __builtin_prefetch(w.next_scales + 1024 * c + 512, 0, 2);
  }
  Lanes sums[Count][kUnits];
  for (int u = 0; u < kUnits; u += kAtOnce<Count>) {
    Lanes sum[Count][kAtOnce<Count>];
    for (auto& row : sum)
      for (Lanes& s : row) s = ZeroLanes();
    const auto add = [&](int c, auto look_up) HWY_ATTR {
      Codes codes[kAtOnce<Count>];
      Lanes scale[kAtOnce<Count>];
      for (int i = 0; i < kAtOnce<Count>; ++i) {
        AskFor(w, c, u + i);
        codes[i] = look_up(w.codes + 64 * c, w.row_bytes, u + i);
        scale[i] = UnitScale(unpacked[c], u + i);
      }
      for (int t = 0; t < Count; ++t)
        for (int i = 0; i < kAtOnce<Count>; ++i)
          sum[t][i] = MulAdd(Dots(codes[i], x[t][c]), scale[i], x[t][c].scale.data(), sum[t][i]);
    };
    for (int c = 0; c < whole; ++c) add(c, [](auto... a) HWY_ATTR { return LookUpWhole(a...); });
    if (half) add(whole, [](auto... a) HWY_ATTR { return LookUpHalf(a...); });
    for (int t = 0; t < Count; ++t)
      for (int i = 0; i < kAtOnce<Count>; ++i) sums[t][u + i] = sum[t][i];
  }
  for (int t = 0; t < Count; ++t) out[t] = SegmentSums(sums[t]);
}

// The window of a set at the start of its rows.
HWY_INLINE Window WindowOf(const Nvfp4Tile& tile, const Nvfp4Tile& ahead, int set) {
  const int to = set + Lead(tile.k);
  const Nvfp4Tile& next = to < 8 ? tile : ahead;
  return {tile.codes + 4 * set * (tile.k / 2),      tile.scales + 64 * set,      tile.k / 2,
          next.codes + 4 * (to % 8) * (next.k / 2), next.scales + 64 * (to % 8), next.k / 2};
}

// Count rows of x against the tile. X: Chunk or WideChunk.
template <int Count, typename X>
void DotsOf(const Nvfp4Tile& tile, const Nvfp4Tile& ahead, const X* const* rows, float* dots) {
  const std::int64_t whole = tile.k / 128;
  for (int set = 0; set < 8; ++set) {
    Window w = WindowOf(tile, ahead, set);
    SegmentTree<Count> tree;
    const X* x[Count];
    std::copy_n(rows, Count, x);
    const auto advance = [&] {
      tree.Close();
      for (const X*& row : x) row += kSegmentChunks;
      for (const std::uint8_t** p : {&w.codes, &w.next_codes}) *p += 64 * kSegmentChunks;
      for (const std::uint8_t** p : {&w.scales, &w.next_scales}) *p += 1024 * kSegmentChunks;
    };
    std::int64_t left = whole;
    for (; left >= kSegmentChunks; left -= kSegmentChunks) {
      SegmentOf<Count>(w, x, std::integral_constant<int, kSegmentChunks>{}, false, tree.Top());
      advance();
    }
    const bool half = tile.k % 128 != 0;
    if (left > 0 || half) {
      SegmentOf<Count>(w, x, static_cast<int>(left), half, tree.Top());
      advance();
    }
    for (int t = 0; t < Count; ++t) StoreSixteen(tree.Sum(t), dots + t * tile_rows + 4 * set);
  }
}

// The same for rows of one or two chunks, as narrow slices have: one segment of a constant length, no tree.
template <int Count, typename X, int Chunks>
void ShortDotsOf(const Nvfp4Tile& tile, const Nvfp4Tile& ahead, const X* const* rows, float* dots) {
  for (int set = 0; set < 8; ++set) {
    Sixteen sums[Count];
    SegmentOf<Count>(WindowOf(tile, ahead, set), rows, std::integral_constant<int, Chunks>{}, false, sums);
    for (int t = 0; t < Count; ++t) StoreSixteen(sums[t], dots + t * tile_rows + 4 * set);
  }
}

template <typename X>
void DotsByCount(const Nvfp4Tile& tile, const Nvfp4Tile& ahead, const X* const* rows, int count,
                 float* dots) {
  using Dots = decltype(&DotsOf<1, X>);
  constexpr auto by_count = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<std::array<Dots, 3>, most_rows_a_pass>{
        {{DotsOf<I + 1, X>, ShortDotsOf<I + 1, X, 1>, ShortDotsOf<I + 1, X, 2>}...}};
  }(std::make_integer_sequence<int, most_rows_a_pass>());
  const std::size_t way = tile.k == 128 ? 1 : tile.k == 256 ? 2 : 0;
  by_count[static_cast<std::size_t>(count - 1)][way](tile, ahead, rows, dots);
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
