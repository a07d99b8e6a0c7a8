// Block dots from the instruction that adds four byte products to 32 bits. Included after neon-inl.h, by
// dotprod_kernels.cc: on purpose without a guard.

#include <arm_neon.h>

HWY_BEFORE_NAMESPACE();
namespace kerf::op::cpu::HWY_NAMESPACE {
namespace {

inline constexpr const char* kIsa = "dotprod";

HWY_INLINE int32x4_t AddRuns(int32x4_t sum, const Codes& w, const Runs& x, int part) {
  for (std::size_t r = 0; r < 4; ++r) sum = vdotq_s32(sum, w.run[r][part], vld1q_s8(x[r].data() + 16 * part));
  return sum;
}
HWY_INLINE int32x4_t DotsOfPart(const Codes& w, const Chunk& x, int part) {
  return AddRuns(vdupq_n_s32(0), w, x.x, part);
}
HWY_INLINE int32x4_t DotsOfPart(const Codes& w, const WideChunk& x, int part) {
  return AddRuns(vshlq_n_s32(AddRuns(vdupq_n_s32(0), w, x.high, part), 8), w, x.low, part);
}

}  // namespace
}  // namespace kerf::op::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
