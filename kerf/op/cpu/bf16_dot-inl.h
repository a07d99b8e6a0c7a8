// Dots of a 128-row tile of BF16 weights with f32 rows. Sixteen lanes on every target, so all vector
// instruction sets give the same bits. Included by kernels.cc, once per target: on purpose without a guard.
//
// In memory a block of 64 values of K is 128 rows of 128 bytes, and the next block is far away. So blocks are
// the outer loop, over as many rows as have their sums in the first-level cache.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

constexpr int kSumRows = 64;

// Sixteen lanes to one, by halves.
HWY_INLINE float HalvingSum(const float* lanes) {
  float c[16];
  std::copy_n(lanes, 16, c);
  for (int n = 8; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) c[i] += c[i + n];
  return c[0];
}

// Row sums of one block of 64 values: lane l takes values 2l and 2l + 1 of every 32.
template <int Count>
HWY_INLINE void AddBf16Row(const std::uint16_t* weights, const float* const* rows, std::int64_t k,
                           float (*sums)[kSumRows][16], int row) {
  const hn::CappedTag<float, 16> f;
  const hn::RebindToUnsigned<decltype(f)> u32;
  const hn::Repartition<std::uint16_t, decltype(f)> u16;
  const auto high = hn::Set(u32, 0xFFFF0000U);
  for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(f)) {
    hn::Vec<decltype(f)> sum[Count];
    for (int t = 0; t < Count; ++t) sum[t] = hn::Load(f, sums[t][row] + lane);
    for (std::int64_t j = 0; j < 64; j += 32) {
      const auto pairs = hn::BitCast(u32, hn::LoadU(u16, weights + j + 2 * static_cast<std::int64_t>(lane)));
      const auto even = hn::BitCast(f, hn::ShiftLeft<16>(pairs));
      const auto odd = hn::BitCast(f, hn::And(pairs, high));
      for (int t = 0; t < Count; ++t) {
        const float* x = rows[t] + k + j + static_cast<std::int64_t>(lane);
        sum[t] = hn::MulAdd(even, hn::LoadU(f, x), sum[t]);
        sum[t] = hn::MulAdd(odd, hn::LoadU(f, x + 16), sum[t]);
      }
    }
    for (int t = 0; t < Count; ++t) hn::Store(sum[t], f, sums[t][row] + lane);
  }
}

template <int Count>
void DotsBf16Of(const Bf16Tile& tile, const Bf16Tile& ahead, const float* const* rows, float* dots) {
  const std::int64_t blocks = tile.k / 64;
  for (int r0 = 0; r0 < tile_rows; r0 += kSumRows) {
    alignas(64) float sums[Count][kSumRows][16] = {};
    const std::uint16_t* next_rows =
        r0 + kSumRows < tile_rows ? tile.values + (r0 + kSumRows) * 64 : ahead.values;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::uint16_t* block = tile.values + b * tile.block_stride + r0 * 64;
      const std::uint16_t* next = b + 1 < blocks ? block + tile.block_stride : next_rows;
      for (int r = 0; r < kSumRows; ++r) {
        __builtin_prefetch(next + 64 * r, 0, 2);
        __builtin_prefetch(next + 64 * r + 32, 0, 2);
        AddBf16Row<Count>(block + 64 * r, rows, 64 * b, sums, r);
      }
    }
    for (int t = 0; t < Count; ++t)
      for (int r = 0; r < kSumRows; ++r) dots[t * tile_rows + r0 + r] = HalvingSum(sums[t][r]);
  }
}

void DotsBf16(const Bf16Tile& tile, const Bf16Tile& ahead, const float* const* rows, int count, float* dots) {
  constexpr decltype(&DotsBf16Of<1>) by_count[most_rows_a_pass] = {
      DotsBf16Of<1>, DotsBf16Of<2>, DotsBf16Of<3>, DotsBf16Of<4>,
      DotsBf16Of<5>, DotsBf16Of<6>, DotsBf16Of<7>, DotsBf16Of<8>};
  by_count[count - 1](tile, ahead, rows, dots);
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
