// The pieces of the NVFP4 kernels on AArch64 with nothing but what every such CPU has. Included by kernels.cc
// for that target alone: on purpose without a guard. What sets and units are, avx512-inl.h says; here a unit
// is one row, and its eight chains are two registers. Byte products of two signed sides exist here, so
// weights are looked up as 2w and a chunk's bias is not needed.

#include <arm_neon.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

inline constexpr BlockOrder kOrder = {0, 1, 2, 3, 4, 5, 6, 7};
inline constexpr int kRowsAUnit = 1;
template <int Count>
inline constexpr int kAtOnce = Count == 1 ? 2 : 1;

struct Lanes {
  float32x4_t low;
  float32x4_t high;
};
struct Sixteen {
  float32x4_t four[4];
};
struct Sums {  // block dots of a unit
  int32x4_t low;
  int32x4_t high;
};

// Places: four m's of each g in turn.
constexpr int RowOf(int place) { return place % 4 + 32 * (place / 4); }

HWY_INLINE Lanes ZeroLanes() { return {vdupq_n_f32(0.0F), vdupq_n_f32(0.0F)}; }
HWY_INLINE Lanes MulAdd(const Sums& dots, const Lanes& weight_scale, const float* x_scale, const Lanes& sum) {
  const float32x4_t low = vmulq_f32(weight_scale.low, vld1q_f32(x_scale));
  const float32x4_t high = vmulq_f32(weight_scale.high, vld1q_f32(x_scale + 4));
  return {vfmaq_f32(sum.low, vcvtq_f32_s32(dots.low), low),
          vfmaq_f32(sum.high, vcvtq_f32_s32(dots.high), high)};
}
HWY_INLINE Sixteen Add(const Sixteen& a, const Sixteen& b) {
  Sixteen out;
  for (int i = 0; i < 4; ++i) out.four[i] = vaddq_f32(a.four[i], b.four[i]);
  return out;
}
HWY_INLINE void StoreSixteen(const Sixteen& v, float* rows) {
  for (int g = 0; g < 4; ++g) vst1q_f32(rows + 32 * g, v.four[g]);
}

// ((c0+c1)+(c2+c3))+((c4+c5)+(c6+c7)) of a set's sixteen rows.
HWY_INLINE Sixteen SegmentSums(const Lanes* units) {
  const auto pairs = [](const Lanes& row) HWY_ATTR { return vpaddq_f32(row.low, row.high); };
  Sixteen out;
  for (int i = 0; i < 4; ++i) {
    const Lanes* r = units + 4 * i;
    out.four[i] = vpaddq_f32(vpaddq_f32(pairs(r[0]), pairs(r[1])), vpaddq_f32(pairs(r[2]), pairs(r[3])));
  }
  return out;
}

// A row's 128 values of K, looked up as 2w: of each run blocks 0-3, then blocks 4-7.
struct Codes {
  int8x16_t run[4][2];
};

// Blocks `part` (0: 0-3, 1: 4-7) from their 32 bytes.
HWY_INLINE void LookUp(uint8x16_t first, uint8x16_t second, int part, Codes& out) {
  const int8x16_t table = vld1q_s8(numeric::e2m1_doubled.data());
  const uint32x4_t a = vreinterpretq_u32_u8(first);
  const uint32x4_t b = vreinterpretq_u32_u8(second);
  const uint8x16_t front = vreinterpretq_u8_u32(vuzp1q_u32(a, b));
  const uint8x16_t back = vreinterpretq_u8_u32(vuzp2q_u32(a, b));
  const uint8x16_t nibble = vdupq_n_u8(15);
  out.run[0][part] = vqtbl1q_s8(table, vandq_u8(front, nibble));
  out.run[1][part] = vqtbl1q_s8(table, vshrq_n_u8(front, 4));
  out.run[2][part] = vqtbl1q_s8(table, vandq_u8(back, nibble));
  out.run[3][part] = vqtbl1q_s8(table, vshrq_n_u8(back, 4));
}
HWY_INLINE Codes LookUpWhole(const std::uint8_t* codes, std::int64_t row_bytes, int u) {
  const std::uint8_t* row = codes + RowOf(u) * row_bytes;
  Codes out;
  LookUp(vld1q_u8(row), vld1q_u8(row + 16), 0, out);
  LookUp(vld1q_u8(row + 32), vld1q_u8(row + 48), 1, out);
  return out;
}
HWY_INLINE Codes LookUpHalf(const std::uint8_t* codes, std::int64_t row_bytes, int u) {
  const std::uint8_t* row = codes + RowOf(u) * row_bytes;
  Codes out;
  LookUp(vld1q_u8(row), vld1q_u8(row + 16), 0, out);
  LookUp(vdupq_n_u8(0), vdupq_n_u8(0), 1, out);
  return out;
}

// The block dots of a unit, exact, from those of its parts (DotsOfPart: the file included next).
template <typename X>
HWY_INLINE Sums Dots(const Codes& w, const X& x) {
  return {DotsOfPart(w, x, 0), DotsOfPart(w, x, 1)};
}

HWY_INLINE void UnpackScales(const std::uint8_t* scales, bool half, std::uint16_t* out) {
  const uint8x16_t unsigned_part = vdupq_n_u8(0x7F);
  for (int m = 0; m < 4; ++m) {
    const uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(scales + 16 * m));
    const uint32x4_t second = half ? vdupq_n_u32(0) : vreinterpretq_u32_u8(vld1q_u8(scales + 512 + 16 * m));
    const uint8x16_t g01 = vandq_u8(vreinterpretq_u8_u32(vzip1q_u32(first, second)), unsigned_part);
    const uint8x16_t g23 = vandq_u8(vreinterpretq_u8_u32(vzip2q_u32(first, second)), unsigned_part);
    vst1q_u16(out + 8 * m, vshll_n_u8(vget_low_u8(g01), 7));
    vst1q_u16(out + 8 * (m + 4), vshll_high_n_u8(g01, 7));
    vst1q_u16(out + 8 * (m + 8), vshll_n_u8(vget_low_u8(g23), 7));
    vst1q_u16(out + 8 * (m + 12), vshll_high_n_u8(g23, 7));
  }
}
HWY_INLINE Lanes UnitScale(const std::uint16_t* unpacked, int u) {
  const float16x8_t scale = vreinterpretq_f16_u16(vld1q_u16(unpacked + 8 * u));
  return {vcvt_f32_f16(vget_low_f16(scale)), vcvt_high_f32_f16(scale)};
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
