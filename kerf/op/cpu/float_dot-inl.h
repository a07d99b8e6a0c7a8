// Dots with f32 rows: NVFP4 weights with bf16 activations (W4A16) and BF16 weights. Eight lanes on every
// target, so all vector instruction sets give the same bits. Included by kernels.cc, once per target: on
// purpose without a guard.

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {

// Eight lanes to one, as a balanced tree.
HWY_INLINE float LaneSum(V v) {
  const F f;
  alignas(32) float c[8];
  hn::Store(v, f, c);
  return ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
}

constexpr int kRowsAtOnce = 4;  // independent sums in flight

template <int Count>
void DotsBf16Of(const Bf16Tile& tile, const float* const* rows, float* dots) {
  const F f;
  const hn::FixedTag<std::uint16_t, 8> half;
  const hn::FixedTag<std::uint32_t, 8> wide;
  for (int r = 0; r < tile_rows; r += kRowsAtOnce) {
    V sum[Count][kRowsAtOnce];
    for (auto& row : sum)
      for (V& v : row) v = hn::Zero(f);
    for (std::int64_t k = 0; k < tile.k; k += 64) {
      const std::uint16_t* block = tile.values + (k / 64) * tile.block_stride + r * 64;
      for (int j = 0; j < 64; j += 8) {
        V w[kRowsAtOnce];
        for (int g = 0; g < kRowsAtOnce; ++g)
          w[g] = hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(half, block + 64 * g + j))));
        for (int t = 0; t < Count; ++t) {
          const V x = hn::LoadU(f, rows[t] + k + j);
          for (int g = 0; g < kRowsAtOnce; ++g) sum[t][g] = hn::MulAdd(w[g], x, sum[t][g]);
        }
      }
    }
    for (int t = 0; t < Count; ++t)
      for (int g = 0; g < kRowsAtOnce; ++g) dots[t * tile_rows + r + g] = LaneSum(sum[t][g]);
  }
}

alignas(16) inline constexpr std::int8_t kDoubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                         0, -1, -2, -3, -4, -6, -8, -12};

template <int Count>
void DotsW4a16Of(const Nvfp4Tile& tile, const float* const* rows, float* dots) {
  const F f;
  const I i;
  const hn::FixedTag<std::uint8_t, 16> u8;
  const hn::FixedTag<std::int8_t, 8> s8;
  const auto table = hn::Load(u8, reinterpret_cast<const std::uint8_t*>(kDoubled));
  const auto nibble = hn::Set(u8, 15);
  for (std::int64_t m = 0; m < 32; ++m) {
    V sum[Count][4];
    for (auto& row : sum)
      for (V& v : row) v = hn::Zero(f);
    for (std::int64_t k = 0; k < tile.k; k += 64) {  // one k-tile: four blocks of four rows
      const std::uint8_t* scales = tile.scales + (k / 64) * 512 + 16 * m;
      for (int g = 0; g < 4; ++g) {
        const std::uint8_t* codes = tile.codes + (m + 32 * g) * (tile.k / 2) + k / 2;
        alignas(16) std::int8_t even[32];
        alignas(16) std::int8_t odd[32];
        for (int p = 0; p < 32; p += 16) {
          const auto c = hn::LoadU(u8, codes + p);
          hn::Store(hn::TableLookupBytes(table, hn::And(c, nibble)), u8,
                    reinterpret_cast<std::uint8_t*>(even) + p);
          hn::Store(hn::TableLookupBytes(table, hn::ShiftRight<4>(c)), u8,
                    reinterpret_cast<std::uint8_t*>(odd) + p);
        }
        for (int b = 0; b < 4; ++b) {
          // A code times its block scale is exact in f32; the lookup's factor of two goes into the scale.
          const V scale = hn::Set(f, numeric::e4m3_to_f32(scales[4 * g + b]) * 0.5F);
          const V w0 = hn::Mul(hn::ConvertTo(f, hn::PromoteTo(i, hn::LoadU(s8, even + 8 * b))), scale);
          const V w1 = hn::Mul(hn::ConvertTo(f, hn::PromoteTo(i, hn::LoadU(s8, odd + 8 * b))), scale);
          for (int t = 0; t < Count; ++t) {
            const float* x = rows[t] + k + 16 * b;
            sum[t][g] = hn::MulAdd(w0, hn::LoadU(f, x), sum[t][g]);
            sum[t][g] = hn::MulAdd(w1, hn::LoadU(f, x + 8), sum[t][g]);
          }
        }
      }
    }
    for (int t = 0; t < Count; ++t)
      for (int g = 0; g < 4; ++g) dots[t * tile_rows + m + 32 * g] = LaneSum(sum[t][g]);
  }
}

void DotsBf16(const Bf16Tile& tile, const float* const* rows, int count, float* dots) {
  constexpr decltype(&DotsBf16Of<1>) by_count[] = {DotsBf16Of<1>, DotsBf16Of<2>, DotsBf16Of<3>,
                                                   DotsBf16Of<4>};
  by_count[count - 1](tile, rows, dots);
}

void DotsW4a16(const Nvfp4Tile& tile, const float* const* rows, int count, float* dots) {
  constexpr decltype(&DotsW4a16Of<1>) by_count[] = {DotsW4a16Of<1>, DotsW4a16Of<2>, DotsW4a16Of<3>,
                                                    DotsW4a16Of<4>};
  by_count[count - 1](tile, rows, dots);
}

}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
