// Block dots from products in 16 bits, which every AArch64 CPU has. Included after neon-inl.h, by kernels.cc:
// on purpose without a guard.

#include <arm_neon.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

inline constexpr const char* kIsa = "neon";

// Sums of eight products of at most 12 * 128, in 16 bits: half a block each, of four blocks.
HWY_INLINE int16x8_t HalfDots(const Codes& w, const Runs& x, int part) {
  const auto load = [&](std::size_t r) HWY_ATTR { return vld1q_s8(x[r].data() + 16 * part); };
  const int8x16_t first = load(0);
  int16x8_t low = vmull_s8(vget_low_s8(w.run[0][part]), vget_low_s8(first));
  int16x8_t high = vmull_high_s8(w.run[0][part], first);
  for (std::size_t r = 1; r < 4; ++r) {
    const int8x16_t run = load(r);
    low = vmlal_s8(low, vget_low_s8(w.run[r][part]), vget_low_s8(run));
    high = vmlal_high_s8(high, w.run[r][part], run);
  }
  return vpaddq_s16(low, high);
}
HWY_INLINE int32x4_t DotsOfPart(const Codes& w, const Chunk& x, int part) {
  return vpaddlq_s16(HalfDots(w, x.x, part));
}
HWY_INLINE int32x4_t DotsOfPart(const Codes& w, const WideChunk& x, int part) {
  const int32x4_t high = vshlq_n_s32(vpaddlq_s16(HalfDots(w, x.high, part)), 8);
  return vpadalq_s16(high, HalfDots(w, x.low, part));
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
